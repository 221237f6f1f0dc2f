"""The `biphasic pretrain`, `estimate` and `adapt` commands, which train one model or plan to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biphasic.cli.options import (
    AsJson,
    AtLeastOne,
    Device,
    Fresh,
    Out,
    Overrides,
    PrintConfig,
    Quiet,
    RecipeFile,
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
        help="Compute settings: processes=N to split the rows over N processes, shard=full to "
        "divide the weights over them, max_tokens_per_pass=N to save memory, "
        "activation_checkpointing=true, compile=true.",
    ),
]
CheckpointEvery = Annotated[int, typer.Option(min=0, help=CHECKPOINT_EVERY.help)]
HeldoutEvery = Annotated[int, typer.Option(min=0, help=HELDOUT_EVERY.help)]


def pretrain_command(
    file: RecipeFile,
    corpus: str | None = None,
    root: Root = Path("runs"),
    overrides: Overrides = None,
    checkpoint_every: CheckpointEvery = CHECKPOINT_EVERY.default,
    heldout_every: HeldoutEvery = HELDOUT_EVERY.default,
    minimal_pairs: Path | None = None,
    compute: Compute = None,
    device: Device = None,
    max_time: Annotated[str | None, typer.Option(metavar="HH:MM:SS")] = None,
    skip_steps: SkipSteps = None,
    rewinds: Annotated[int, typer.Option(min=0, metavar="K")] = 0,
    fresh: Fresh = False,
    wandb: Wandb = None,
    print_config: PrintConfig = False,
    quiet: Quiet = False,
) -> None:
    """Train one recipe on a corpus, and print the state's folder.

    Args:
        corpus: Text file or folder, hf:DATASET, a folder made by 'biphasic corpus build', or a
            corpus file (YAML). Default: the built-in documentation.
        overrides: Override a setting, e.g. model=micro.
        minimal_pairs: File of minimal pairs such as BLiMP's, or a task file of kind mp: record the
            accuracy on it with each held-out loss.
        max_time: Save the progress and exit with code 130 after this time.
        rewinds: Skip a non-finite step and resume from the previous weights, up to K times.
    """
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
        minimal_pairs=minimal_pairs,
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
    file: RecipeFile,
    devices: int = 1,
    device: str | None = None,
    vocab_size: int | None = None,
    mfu: float | None = None,
    flops: float | None = None,
    memory: float | None = None,
    watts: float | None = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Estimate memory, time and energy of a recipe, without training it.

    Prints parameters, FLOPs, memory per device, the rows that fit, and compute settings.

    Args:
        devices: Devices that train one model.
        device: h100, h200, a100-80gb, a100-40gb, mi250x (one of its two dies) or cpu. Default:
            h100, or with --flops another GPU.
        vocab_size: Entries of the tokenizer's vocabulary. Default: those of a trained one.
        mfu: Share of the peak that model FLOPs reach. Default: 0.4, an assumption; for mi250x
            0.11, by the reference study's hours.
        flops: Peak FLOP/s of a device, e.g. 90e9 for a CPU.
        memory: Memory of a device in bytes, e.g. 24e9.
        watts: Power of a device.
        overrides: Override a setting, e.g. model=610m.
        as_json: Print the estimate as JSON.
    """
    import json

    from biphasic.amounts import rough_duration
    from biphasic.study.sizing.estimate import estimate
    from biphasic.study.sizing.here import speed_here

    result = estimate(
        file,
        overrides=overrides or (),
        vocab_size=vocab_size,
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
        echo(str(result))
        here = speed_here(result.precision)
        days = rough_duration(result.flops / here.flops_per_second)
        echo(f"on this machine: about {days}, on one core by a second of measurement")


def adapt_command(
    model: str,
    corpus: Annotated[str, typer.Option()],
    out: Out,
    steps: AtLeastOne = 2000,
    mlm_probability: float | None = None,
    objective: str = "mlm",
    learning_rate: float | None = None,
    warmup_steps: int | None = None,
    decay_steps: int | None = None,
    optimizer: str | None = None,
    reset_optimizer: bool = False,
    max_seqlen: int | None = None,
    rows_per_step: int | None = None,
    precision: str | None = None,
    seed: int | None = None,
    compute: Compute = None,
    format: str = "sentence-transformers",
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
    """Continue training a decoder or encoder, and export it.

    Args:
        model: Folder of a decoder, an encoder or a state, or a hub id.
        corpus: Text file or folder, hf:DATASET, builtin:pydocs, a folder made by 'biphasic corpus
            build', or a corpus file (YAML).
        out: Folder to write.
        steps: Optimizer steps.
        mlm_probability: Probability of masking a token. Default: 0.4.
        objective: mlm, or mntp (masked next-token prediction).
        learning_rate: Peak learning rate. Default: the state's, else 0.4 / hidden size.
        warmup_steps: Linear warm-up steps. Default: 1/20 of the steps.
        decay_steps: Final linear decay steps. Default: 1/10 of the steps.
        optimizer: adamw or muon. Default: the state's, else adamw.
        reset_optimizer: Reset the optimizer moments of a state.
        max_seqlen: Row length in tokens. Default: the state's, else 512 or the model's limit.
        rows_per_step: Rows per batch. Default: the state's, else 32.
        precision: bf16 or fp32. Default: the state's, else bf16.
        seed: Seed of masks and data order. Default: the state's, else 0.
        format: hf, sentence-transformers or onnx; see 'biphasic export'.
    """
    from biphasic.adaptation import adapt, adaptation_text
    from biphasic.config import parse_overrides

    options = {
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
        format=format,  # type: ignore[arg-type]  # checked there
        revision=revision,
        root=root,
        checkpoint_every=checkpoint_every,
        compute=how,
        device=device,
        fresh=fresh,
        wandb=wandb,
        console=progress_console(quiet=quiet),
    )
    echo(f"encoder: {folder}")


def _seconds(text: str, *, option: str) -> int:
    """Return the seconds of a time `HH:MM:SS`."""
    import re

    from biphasic.config import DURATION, duration_seconds

    if not re.match(DURATION, text):
        raise ConfigError(f"{option} {text}: give a time as HH:MM:SS")
    return duration_seconds(text)
