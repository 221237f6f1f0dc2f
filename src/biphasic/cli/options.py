"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biphasic.errors import visible


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text; no name in it can steer the terminal."""
    typer.echo(visible(text), err=err, nl=nl)


Root = Annotated[Path, typer.Option(help="Folder for studies and for the store that they share.")]
