"""Options that commands share, and printing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from biphasic.errors import visible
from biphasic.shown import shown_path as shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from biphasic.study.run.run import StudyOutcome

INTERRUPTED = 130  # exit code of an interrupted command, as in shells
_WIDEST = 10_000  # characters; no table is wider

# Without a text here, an option is described in the docstring of each command that has it.
AtLeastOne = Annotated[int, typer.Option(min=1)]
AsJson = Annotated[bool, typer.Option("--json")]
CheckedModel = Annotated[
    str, typer.Argument(help="Folder of a state or of a transformers model, or a hub id.")
]
ConventionOption = Annotated[
    Literal["standard", "paper"] | None,
    typer.Option(
        help="Intervals: 'standard' (Student's t) or 'paper' (1.96 standard errors). "
        "Default: the study's, else standard."
    ),
]
Copies = Annotated[
    Path | None, typer.Option(help="Folder with local copies of hub datasets, as OWNER/NAME.")
]
Device = Annotated[
    str | None,
    typer.Option(help="Compute device: cpu, cuda or cuda:N. Default: the first GPU, else the CPU."),
]
Fresh = Annotated[
    bool,
    typer.Option(
        help="Delete the states and results that other code than the running one made, and make "
        "them again."
    ),
]
LearningRates = Annotated[list[float] | None, typer.Option("--learning-rate")]
Out = Annotated[Path, typer.Option()]
Positive = Annotated[int | None, typer.Option(min=1)]
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")]
PrintConfig = Annotated[
    bool, typer.Option(help="Print all settings as YAML, with defaults, and exit.")
]
Quiet = Annotated[bool, typer.Option(help="Show results and errors only.")]
RecipeFile = Annotated[Path, typer.Argument(help="Recipe file (YAML).")]
Revision = Annotated[str | None, typer.Option(help="Revision of a model on the hub.")]
Root = Annotated[Path, typer.Option(help="Folder of studies and their shared store.")]
Seeds = Annotated[list[int] | None, typer.Option("--seed")]
StoreRoot = Annotated[Path, typer.Option(help="Folder of the store.")]
StudyFile = Annotated[Path, typer.Argument(help="Study file (YAML).")]
StudyName = Annotated[
    str | None,
    typer.Argument(help="Study file, folder or name; default: the only study of the root."),
]
Threads = Annotated[
    int, typer.Option(min=1, help="Threads per job; may change the last bits of results.")
]
Wandb = Annotated[
    str | None,
    typer.Option(
        metavar="PROJECT",
        help="Log training to a Weights & Biases project; offline unless WANDB_MODE is set. "
        "Needs the extra 'wandb'.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Parallel jobs. Default: one per core, or one on a GPU."),
]


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text with terminal control characters escaped."""
    typer.echo(visible(text), err=err, nl=nl)


def progress_console(*, quiet: bool) -> Console:
    """Return the progress console: standard error, or silent."""
    from biphasic import progress

    return progress.progress_console(quiet=quiet)


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
