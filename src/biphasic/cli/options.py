"""Options that several commands have, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

Root = Annotated[Path, typer.Option(help="Folder for studies and for the store that they share.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print results and errors only.")]


def progress_console(*, quiet: bool) -> Console:
    """Return the console for progress: standard error, or nothing."""
    from rich.console import Console

    return Console(stderr=True, quiet=quiet)
