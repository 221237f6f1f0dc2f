"""Helpers of commands that read or show results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import typer

from biphasic.cli.options import echo

if TYPE_CHECKING:
    from rich.table import Table

    from biphasic.analysis.records import Problem
    from biphasic.analysis.scores.table import Scores
    from biphasic.records import Convention
    from biphasic.study.run.run import StudyOutcome

INTERRUPTED = 130
"""Exit code of an interrupted command, as in shells."""
_WIDEST = 10_000  # characters; no table is wider


def chosen_convention(text: str | None) -> Convention | None:
    """Check the value of `--convention`; None if not given.

    Raises:
        ConfigError: Unknown convention.
    """
    from typing import get_args

    from biphasic.config import nearest
    from biphasic.errors import ConfigError
    from biphasic.records import Convention

    known = get_args(Convention)
    if text is not None and text not in known:
        raise ConfigError(f"--convention {text}: unknown convention{nearest(text, known)}")
    return cast("Convention | None", text)


def read_scores(folder: Path, convention: Convention | None) -> tuple[Scores, tuple[Problem, ...]]:
    """Read the scores of a study or of external results, and the problems of their records.

    Args:
        folder: A study's folder, or one with results by model, task and dataset.
        convention: Of intervals; default: the study's, else standard.

    Raises:
        DataError: The folder has no results.
        StudyError: The study's record is damaged.
    """
    from biphasic.analysis.records import load_study
    from biphasic.analysis.scores.layout import read_layout
    from biphasic.analysis.scores.source import study_scores

    folder = folder.resolve()
    if (folder / "study.json").is_file():
        records = load_study(folder, folder.parent / "store")
        return study_scores(records, convention), records.problems
    layout = read_layout(folder)
    return layout.scores(convention or "standard"), layout.problems


def show_outcome(outcome: StudyOutcome) -> None:
    """Print a study's table and failures; exit with code 1 if a job failed."""
    from biphasic.analysis.records import load_study
    from biphasic.analysis.tables.results import format_table
    from biphasic.study.paths import STORE

    if outcome.is_stopped:
        echo(f"report: {shown(outcome.report)}")
        raise typer.Exit(INTERRUPTED)  # main() prints the message
    table = format_table(load_study(outcome.folder, outcome.folder.parent / STORE))
    if outcome.num_executed == 0 and not outcome.failures:
        echo("all finished; nothing to do")
    print_table(table)
    echo(f"report: {shown(outcome.report)}")
    if outcome.failures:
        for failure in outcome.failures:
            echo(f"failed: {failure}", err=True)
        raise typer.Exit(1)


def print_table(table: Table) -> None:
    """Print a table; files and pipes have no width, so numbers in them are not wrapped."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    if not console.is_terminal:
        unbounded = console.options.update(width=_WIDEST)
        console.width = Measurement.get(console, unbounded, table).maximum
    console.print(table)


def shown(path: Path) -> str:
    """Return a path relative to the working directory, if it lies below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
