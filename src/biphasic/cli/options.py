"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
