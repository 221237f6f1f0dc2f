"""Printing of commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from biphasic.errors import visible
from biphasic.shown import shown_path as shown

if TYPE_CHECKING:
    from rich.table import Table

    from biphasic.study.run.run import StudyOutcome

INTERRUPTED = 130  # exit code of an interrupted command, as in shells
_WIDEST = 10_000  # characters; no table is wider


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text with terminal control characters escaped."""
    typer.echo(visible(text), err=err, nl=nl)


def show_outcome(outcome: StudyOutcome) -> None:
    """Print a study's table and failures; exit with code 1 if a job failed."""
    from biphasic.analysis.tables.results import format_table

    if outcome.is_stopped:
        echo(f"report: {shown(outcome.report)}")
        raise typer.Exit(INTERRUPTED)  # main() prints the message
    table = format_table(outcome.records())
    if outcome.num_executed == 0 and not outcome.failures:
        echo("all finished; nothing to do")
    print_table(table)
    echo_answers(outcome.report)
    echo(f"report: {shown(outcome.report)}")
    if outcome.failures:
        for failure in outcome.failures:
            echo(f"failed: {failure}", err=True)
        raise typer.Exit(1)


def echo_answers(report: Path) -> None:
    """Print the answer to each question of a study, from the file beside its report."""
    import csv

    from biphasic.amounts import level_within

    path = report.with_name("questions.csv")
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            rows = [*csv.DictReader(file)]
        answers = {row["question"]: row["answer"] for row in rows}
        margins = {row["question"]: row.get("margin", "") for row in rows}
        lacking = {row["question"] for row in rows if row["complete"] == "no"}
        for question, answer in answers.items():
            is_provisional = question in lacking and answer != "no data"
            why = ", provisional: runs are missing or diverged" * is_provisional
            within = level_within(float(margins[question])) if "level" in answer else ""
            echo(f"{question}: {answer.replace('level', within)}{why}")


def print_table(table: Table) -> None:
    """Print a table; files and pipes have no width, so numbers in them are not wrapped."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    if not console.is_terminal:
        unbounded = console.options.update(width=_WIDEST)
        console.width = Measurement.get(console, unbounded, table).maximum
    console.print(table)
