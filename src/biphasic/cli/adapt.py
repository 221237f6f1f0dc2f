"""The `biphasic adapt` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from biphasic.cli.options import (
    CheckpointEvery,
    Compute,
    Device,
    PrintConfig,
    Quiet,
    Revision,
    SkipSteps,
    StoreRoot,
    Wandb,
    echo,
    progress_console,
)


def adapt_command(
    model: Annotated[
        str, typer.Argument(help="Folder of a decoder, an encoder or a state, or a hub id.")
    ],
    corpus: Annotated[
        str,
        typer.Option(
            help="Text file or folder, hf:DATASET, builtin:pydocs, a folder made by 'biphasic "
            "corpus build', or a corpus file (YAML)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 2000,
    mlm_probability: Annotated[
        float | None, typer.Option(help="Probability of masking a token. Default: 0.4.")
    ] = None,
    objective: Annotated[
        str, typer.Option(help="mlm, or mntp (masked next-token prediction).")
    ] = "mlm",
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Peak learning rate. Default: the state's, else 0.4 / hidden size."),
    ] = None,
    warmup_steps: Annotated[
        int | None, typer.Option(help="Linear warm-up steps. Default: 1/20 of the steps.")
    ] = None,
    decay_steps: Annotated[
        int | None, typer.Option(help="Final linear decay steps. Default: 1/10 of the steps.")
    ] = None,
    reset_optimizer: Annotated[
        bool, typer.Option("--reset-optimizer", help="Reset the optimizer moments of a state.")
    ] = False,
    max_seqlen: Annotated[
        int | None,
        typer.Option(
            help="Row length in tokens. Default: the state's, else 512 or the model's limit."
        ),
    ] = None,
    rows_per_step: Annotated[
        int | None, typer.Option(help="Rows per batch. Default: the state's, else 32.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="bf16 or fp32. Default: the state's, else bf16.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of masks and data order. Default: the state's, else 0.")
    ] = None,
    compute: Compute = None,
    format: Annotated[
        str, typer.Option(help="hf, sentence-transformers or onnx; see 'biphasic export'.")
    ] = "sentence-transformers",
    revision: Revision = None,
    checkpoint_every: CheckpointEvery = 200,
    root: StoreRoot = Path("runs"),
    device: Device = None,
    skip_steps: SkipSteps = None,
    wandb: Wandb = None,
    print_config: PrintConfig = False,
    quiet: Quiet = False,
) -> None:
    """Continue training a decoder or encoder, and export it."""
    from typing import cast

    from biphasic.adaptation import adapt, adaptation_text
    from biphasic.config import parse_overrides
    from biphasic.export.write import Format

    console = progress_console(quiet=quiet)
    options: dict[str, Any] = {
        "steps": steps,
        "objective": objective,
        "mlm_probability": mlm_probability,
        "learning_rate": learning_rate,
        "warmup_steps": warmup_steps,
        "decay_steps": decay_steps,
        "optimizer_state": "reset" if reset_optimizer else None,
        "max_seqlen": max_seqlen,
        "rows_per_step": rows_per_step,
        "precision": precision,
        "seed": seed,
        "skip_steps": skip_steps,
    }
    settings = {name: value for name, value in options.items() if value is not None}
    how = parse_overrides(compute or ())
    if print_config:
        text = adaptation_text(
            model, corpus=corpus, settings=settings, revision=revision, compute=how
        )
        echo(text, nl=False)
        return
    folder = adapt(
        model,
        out,
        corpus=corpus,
        settings=settings,
        format=cast(Format, format),
        revision=revision,
        root=root,
        checkpoint_every=checkpoint_every,
        compute=how,
        device=device,
        wandb=wandb,
        console=console,
    )
    echo(f"encoder: {folder}")
