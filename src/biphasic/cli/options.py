"""Options that several commands have, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biphasic.errors import ConfigError, visible

if TYPE_CHECKING:
    from rich.console import Console


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text; no name in it can steer the terminal."""
    typer.echo(visible(text), err=err, nl=nl)


Root = Annotated[Path, typer.Option(help="Folder for studies and for the store that they share.")]
Device = Annotated[
    str | None,
    typer.Option(
        help="Where models compute: cpu, cuda or cuda:N. Default: the first GPU, else the CPU."
    ),
]
PrintConfig = Annotated[
    bool,
    typer.Option(
        "--print-config", help="Print all settings as YAML, defaults filled in, and do nothing."
    ),
]
Wandb = Annotated[
    str | None,
    typer.Option(
        metavar="PROJECT",
        help="Show training in a project of Weights & Biases; offline unless WANDB_MODE says "
        "otherwise. Needs the extra 'wandb'.",
    ),
]
HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of every command's context."""
Quiet = Annotated[bool, typer.Option("--quiet", help="Print results and errors only.")]

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}
"""Values of --precision by torch's names of the types, which are accepted too."""


def renamed(old: str | None, new: str | None, *, old_name: str, new_name: str) -> str | None:
    """Return the value of an option that had another name before, and say so where that was used.

    Raises:
        ConfigError: Both were given.
    """
    if old is None:
        return new
    if new is not None:
        raise ConfigError(f"{new_name}: given twice, as {old_name} is its old name; give it once")
    echo(f"{old_name} is called {new_name} now", err=True)
    return old


def precision_dtype(precision: str | None) -> str:
    """Return torch's name of a precision; that of fp32 for None.

    Raises:
        ConfigError: There is none of this name.
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
    """Return the console for progress: standard error, or nothing."""
    from rich.console import Console

    return Console(stderr=True, quiet=quiet)
