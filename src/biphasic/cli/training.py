"""The `biphasic pretrain`, `estimate` and `adapt` commands, which train one model or plan to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from biphasic.cli.options import (
    Device,
    Fresh,
    PrintConfig,
    Quiet,
    Revision,
    Root,
    StoreRoot,
    Wandb,
    echo,
    progress_console,
    shown,
)
from biphasic.errors import ConfigError
from biphasic.training.intervals import CHECKPOINT_EVERY, HELDOUT_EVERY

SkipSteps = Annotated[
    list[int] | None,
    typer.Option(
        "--skip-step",
        min=0,
        metavar="N",
        help="Read the rows of step N, counted from 0, but change no weight; repeat for several. "
        "For a loss that is not finite.",
    ),
]
Compute = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Compute settings: processes=N to split the rows over N processes, "
        "shard=full to divide the weights over them, max_tokens_per_pass=N to save memory, "
        "activation_checkpointing=true, "
        "compile=true.",
    ),
]
CheckpointEvery = Annotated[int, typer.Option(min=0, help=CHECKPOINT_EVERY.help)]


def pretrain_command(
    file: Annotated[Path, typer.Argument(help="Recipe file (YAML).")],
    corpus: Annotated[
        Path | None,
        typer.Option(
            help="Folder made by 'biphasic corpus build', or a corpus file (YAML). "
            "Default: the built-in documentation."
        ),
    ] = None,
    root: Root = Path("runs"),
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. model=micro."),
    ] = None,
    checkpoint_every: CheckpointEvery = CHECKPOINT_EVERY.default,
    heldout_every: Annotated[
        int, typer.Option(min=0, help=HELDOUT_EVERY.help)
    ] = HELDOUT_EVERY.default,
    compute: Compute = None,
    device: Device = None,
    max_time: Annotated[
        str | None,
        typer.Option(
            metavar="HH:MM:SS", help="Save the progress and exit with code 130 after this time."
        ),
    ] = None,
    skip_steps: SkipSteps = None,
    rewinds: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="K",
            help="Skip a non-finite step and resume from the previous weights, up to K times.",
        ),
    ] = 0,
    fresh: Fresh = False,
    wandb: Wandb = None,
    print_config: PrintConfig = False,
    quiet: Quiet = False,
) -> None:
    """Train one recipe on a corpus, and print the state's folder."""
    from biphasic.config import parse_overrides
    from biphasic.study.api import parse_compute, pretrain
    from biphasic.study.inputs.corpus import corpus_settings
    from biphasic.study.spec.arms import read_recipe
    from biphasic.study.spec.resolved import recipe_text

    how = parse_overrides(compute or ())
    max_seconds = None if max_time is None else _seconds(max_time, option="--max-time")
    if print_config:
        recipe = read_recipe(file, overrides or ()).skipping(skip_steps or ())
        text = corpus_settings(corpus)
        echo(recipe_text(recipe, corpus=text, compute=parse_compute(how)), nl=False)
        return
    state = pretrain(
        file,
        corpus=corpus,
        overrides=overrides or (),
        root=root,
        checkpoint_every=checkpoint_every,
        heldout_every=heldout_every,
        compute=how,
        device=device,
        max_seconds=max_seconds,
        skip_steps=skip_steps or (),
        rewinds=rewinds,
        fresh=fresh,
        wandb=wandb,
        console=progress_console(quiet=quiet),
    )
    echo(shown(state))


def estimate_command(
    file: Annotated[Path, typer.Argument(help="Recipe file (YAML).")],
    devices: Annotated[int, typer.Option(help="Devices that train one model.")] = 1,
    device: Annotated[
        str | None,
        typer.Option(
            help="h100, h200, a100-80gb, a100-40gb, mi250x (one of its two dies) or cpu. "
            "Default: h100, or with --flops another GPU."
        ),
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            help="Entries of the tokenizer's vocabulary. Default: those of a trained one."
        ),
    ] = None,
    mfu: Annotated[
        float | None,
        typer.Option(
            help="Share of the peak that model FLOPs reach. Default: 0.4, an assumption; for "
            "mi250x 0.11, by the reference study's hours."
        ),
    ] = None,
    flops: Annotated[
        float | None, typer.Option(help="Peak FLOP/s of a device, e.g. 90e9 for a CPU.")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(help="Memory of a device in bytes, e.g. 24e9.")
    ] = None,
    watts: Annotated[float | None, typer.Option(help="Power of a device.")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. model=610m."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the estimate as JSON.")] = False,
) -> None:
    """Estimate memory, time and energy of a recipe, without training it.

    Prints parameters, FLOPs, memory per device, the rows that fit, and compute settings.
    """
    import json

    from biphasic.study.sizing.estimate import DEFAULT_VOCAB_SIZE, estimate
    from biphasic.study.sizing.text import estimate_lines

    result = estimate(
        file,
        overrides=overrides or (),
        vocab_size=DEFAULT_VOCAB_SIZE if vocab_size is None else vocab_size,
        devices=devices,
        device=device,
        flops=flops,
        memory=memory,
        watts=watts,
        mfu=mfu,
    )
    if as_json:
        echo(json.dumps(result.to_json(), indent=1))
    else:
        echo("\n".join(estimate_lines(result)))


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
    optimizer: Annotated[
        str | None, typer.Option(help="adamw or muon. Default: the state's, else adamw.")
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
    checkpoint_every: CheckpointEvery = CHECKPOINT_EVERY.default,
    root: StoreRoot = Path("runs"),
    device: Device = None,
    skip_steps: SkipSteps = None,
    fresh: Fresh = False,
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
        "optimizer": None if optimizer is None else {"name": optimizer},
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
        fresh=fresh,
        wandb=wandb,
        console=console,
    )
    echo(f"encoder: {folder}")


def _seconds(text: str, *, option: str) -> int:
    """Return the seconds of a time `HH:MM:SS`."""
    import re

    from biphasic.config import DURATION, duration_seconds

    if not re.match(DURATION, text):
        raise ConfigError(f"{option} {text}: give a time as HH:MM:SS")
    return duration_seconds(text)
