"""The `biphasic corpus` commands: build, inspect, verify, merge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from biphasic.api.corpus import build, inspect, merge, verify
from biphasic.cli.command import Commands, command
from biphasic.cli.options import echo

if TYPE_CHECKING:
    from biphasic.api.results.corpus import BuiltCorpus, InspectedCorpus, IntactCorpus

corpus_app = Commands("Build and inspect corpora for pretraining.")


@corpus_app.command("build")
@command(build, sources=typer.Argument(metavar="SOURCE..."))
def _build(built: BuiltCorpus) -> None:
    echo(str(built))


@corpus_app.command("inspect")
@command(inspect)
def _inspect(inspected: InspectedCorpus) -> None:
    for note in inspected.notes:
        echo(note, err=True)
    echo(str(inspected))


@corpus_app.command("verify")
@command(verify)
def _verify(intact: IntactCorpus) -> None:
    """The exit code is 2 if it is damaged."""
    echo(str(intact))


@corpus_app.command("merge")
@command(merge)
def _merge(merged: BuiltCorpus) -> None:
    echo(str(merged))
