"""Options that several commands share, and how they print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biphasic.errors import ConfigError, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from biphasic.study.run.run import StudyOutcome


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text with terminal control characters escaped."""
    typer.echo(visible(text), err=err, nl=nl)


Root = Annotated[Path, typer.Option(help="Folder of studies and their shared store.")]
Device = Annotated[
    str | None,
    typer.Option(help="Compute device: cpu, cuda or cuda:N. Default: the first GPU, else the CPU."),
]
StudyFile = Annotated[Path, typer.Argument(help="Study file (YAML).")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Parallel jobs. Default: one per core, or one on a GPU."),
]
Threads = Annotated[
    int, typer.Option(min=1, help="Threads per job; may change the last bits of results.")
]
PrintConfig = Annotated[
    bool,
    typer.Option("--print-config", help="Print all settings as YAML, with defaults, and exit."),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh",
        help="Delete the states and results that other code than the running one made, and make "
        "them again.",
    ),
]
Wandb = Annotated[
    str | None,
    typer.Option(
        metavar="PROJECT",
        help="Log training to a Weights & Biases project; offline unless WANDB_MODE is set. "
        "Needs the extra 'wandb'.",
    ),
]
Revision = Annotated[str | None, typer.Option(help="Revision of a model on the hub.")]
Copies = Annotated[
    Path | None, typer.Option(help="Folder with local copies of hub datasets, as OWNER/NAME.")
]
StoreRoot = Annotated[Path, typer.Option(help="Folder of the store.")]
HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of every command's context."""
Quiet = Annotated[bool, typer.Option("--quiet", help="Print results and errors only.")]

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}
"""Torch dtype names by value of --precision; both are accepted."""


INTERRUPTED = 130
"""Exit code of an interrupted command, as in shells."""
_WIDEST = 10_000  # characters; no table is wider


def renamed(old: str | None, new: str | None, *, old_name: str, new_name: str) -> str | None:
    """Return the value of a renamed option; warn if the old name was used."""
    if old is None:
        return new
    if new is not None:
        raise ConfigError(f"give {new_name} only; {old_name} is its old name")
    echo(f"{old_name} is deprecated; use {new_name}", err=True)
    return old


def precision_dtype(precision: str | None) -> str:
    """Return the torch dtype name of a precision; None means fp32."""
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
    echo_answers(outcome.report)
    echo(f"report: {shown(outcome.report)}")
    if outcome.failures:
        for failure in outcome.failures:
            echo(f"failed: {failure}", err=True)
        raise typer.Exit(1)


def echo_answers(report: Path) -> None:
    """Print the answer to each question of a study, from the file beside its report."""
    import csv

    path = report.with_name("questions.csv")
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            answers = {row["question"]: row["answer"] for row in csv.DictReader(file)}
        for question, answer in answers.items():
            echo(f"{question}: {answer}")


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
