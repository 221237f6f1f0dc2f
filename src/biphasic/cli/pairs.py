"""The `biphasic pairs` commands: build and inspect pairs of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from biphasic.api.pairs import build, inspect, mine, teach
from biphasic.cli.command import Commands, command
from biphasic.cli.options import echo

if TYPE_CHECKING:
    from biphasic.api.results.data import BuiltPairs, InspectedPairs

pairs_app = Commands("Build and inspect pairs of texts for contrastive training.")


@pairs_app.command("build")
@command(
    build,
    tables=typer.Argument(metavar="TABLE..."),
    per_document=typer.Option(min=1),
    max_weak_pairs=typer.Option(min=1),
    seed=typer.Option(min=0),
)
def _build(built: BuiltPairs) -> None:
    echo(str(built))


@pairs_app.command("mine")
@command(
    mine,
    miner=typer.Option(),
    negatives=typer.Option(min=1),
    margin=typer.Option(min=0, max=1),
    depth=typer.Option(min=1),
)
def _mine(mined: BuiltPairs) -> None:
    echo(str(mined))


@pairs_app.command("teach")
@command(teach, teacher=typer.Option(), width=typer.Option(min=1))
def _teach(taught: BuiltPairs) -> None:
    echo(str(taught))


@pairs_app.command("inspect")
@command(inspect)
def _inspect(inspected: InspectedPairs) -> None:
    echo(str(inspected))
