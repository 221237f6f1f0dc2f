"""Options shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biphasic.errors import ConfigError, visible

if TYPE_CHECKING:
    from rich.console import Console


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text with terminal control characters escaped."""
    typer.echo(visible(text), err=err, nl=nl)


Root = Annotated[Path, typer.Option(help="Folder of studies and their shared store.")]
Device = Annotated[
    str | None,
    typer.Option(help="Compute device: cpu, cuda or cuda:N. Default: the first GPU, else the CPU."),
]
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
StudyFile = Annotated[Path, typer.Argument(help="Study file (YAML).")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Parallel jobs. Default: one per core, or one on a GPU."),
]
FinetuneWorkers = Annotated[
    int | None,
    typer.Option(min=1, help="Parallel fine-tunings. Default: one per core, or one on a GPU."),
]
Threads = Annotated[
    int, typer.Option(min=1, help="Threads per job; may change the last bits of results.")
]
ByPretraining = Annotated[
    bool,
    typer.Option(
        "--by-pretraining",
        help="For studies with several pretraining seeds: intervals over pretraining runs.",
    ),
]
PrintConfig = Annotated[
    bool,
    typer.Option("--print-config", help="Print all settings as YAML, with defaults, and exit."),
]
Wandb = Annotated[
    str | None,
    typer.Option(
        metavar="PROJECT",
        help="Log training to a Weights & Biases project; offline unless WANDB_MODE is set. "
        "Needs the extra 'wandb'.",
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
CheckpointEvery = Annotated[int, typer.Option(min=0, help="Steps between checkpoints; 0 for none.")]
Revision = Annotated[str | None, typer.Option(help="Revision of a model on the hub.")]
Copies = Annotated[
    Path | None, typer.Option(help="Folder with local copies of hub datasets, as OWNER/NAME.")
]
StoreRoot = Annotated[Path, typer.Option(help="Folder of the store.")]
ConventionOption = Annotated[
    str | None,
    typer.Option(
        help="Intervals: 'standard' (Student's t) or 'paper' (1.96 standard errors). "
        "Default: the study's, else standard."
    ),
]
HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of every command's context."""
Quiet = Annotated[bool, typer.Option("--quiet", help="Print results and errors only.")]

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}
"""Torch dtype names by value of --precision; both are accepted."""


def renamed(old: str | None, new: str | None, *, old_name: str, new_name: str) -> str | None:
    """Return the value of a renamed option; warn if the old name was used.

    Raises:
        ConfigError: Both were given.
    """
    if old is None:
        return new
    if new is not None:
        raise ConfigError(f"give {new_name} only; {old_name} is its old name")
    echo(f"{old_name} is deprecated; use {new_name}", err=True)
    return old


def seconds(text: str, *, option: str) -> int:
    """Return the seconds of a time `HH:MM:SS`.

    Raises:
        ConfigError: It is not such a time.
    """
    import re

    from biphasic.config import DURATION, duration_seconds

    if not re.match(DURATION, text):
        raise ConfigError(f"{option} {text}: give a time as HH:MM:SS")
    return duration_seconds(text)


def precision_dtype(precision: str | None) -> str:
    """Return the torch dtype name of a precision; None means fp32.

    Raises:
        ConfigError: Unknown precision.
    """
    if precision is None:
        return "float32"
    if precision in PRECISIONS.values():
        return precision
    if precision not in PRECISIONS:
        from biphasic.config import nearest

        known = nearest(precision, PRECISIONS)
        raise ConfigError(f"--precision: unknown value '{precision}'{known}")
    return PRECISIONS[precision]


def progress_console(*, quiet: bool) -> Console:
    """Return the progress console: standard error, or silent."""
    from biphasic import progress

    return progress.progress_console(quiet=quiet)
