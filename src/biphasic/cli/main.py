"""`biphasic`: commands, their help, and exit codes.

Exit codes: 0 for success, 1 for a failure while running, 2 for bad input. Nothing here imports
torch before a command runs, so help answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from biphasic import __version__
from biphasic.errors import BiphasicError, CheckpointError, ConfigError, DataError, LockedError

app = typer.Typer(
    help="Pretrain text encoders under control, evaluate them, and compare objectives honestly.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
study_app = typer.Typer(help="Run and report studies.", no_args_is_help=True)
app.add_typer(study_app, name="study")

_FILE_WIDTH = 140  # of tables that go to a file or a pipe, where no terminal sets one

Root = Annotated[Path, typer.Option(help="Folder for studies and for the store that they share.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a setting, e.g. recipe.model=micro."),
]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@study_app.command("run")
def study_run(
    file: Annotated[Path, typer.Argument(help="Study file (YAML).")],
    root: Root = Path("runs"),
    workers: Annotated[
        int | None, typer.Option(min=1, help="Jobs at once; default: one per core.")
    ] = None,
    threads: Annotated[
        int,
        typer.Option(min=1, help="Threads per job; results may depend on it in the last bits."),
    ] = 1,
    overrides: Overrides = None,
) -> None:
    """Run what a study still lacks, print its table and write its report."""
    from rich.console import Console

    from biphasic.analysis.load import load_study
    from biphasic.analysis.tables import format_table
    from biphasic.study.api import run_study
    from biphasic.study.run import STORE

    outcome = run_study(
        file, root=root, overrides=overrides or (), num_workers=workers, num_threads=threads
    )
    console = Console()
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    if outcome.num_executed == 0:
        console.print("all finished; nothing to do", highlight=False)
    console.print(format_table(load_study(outcome.folder, root.resolve() / STORE)))
    typer.echo(f"report: {_shown(outcome.report)}")
    if outcome.failures:
        for failure in outcome.failures:
            typer.echo(f"failed: {failure}", err=True)
        raise typer.Exit(1)


@study_app.command("report")
def study_report(
    folder: Annotated[Path, typer.Argument(help="A study's folder, e.g. runs/quickstart.")],
) -> None:
    """Write a study's report anew from its records."""
    from biphasic.analysis.report import write_report

    folder = folder.resolve()
    typer.echo(f"report: {_shown(write_report(folder, folder.parent / 'store'))}")


@app.command("pretrain")
def pretrain_command(
    file: Annotated[Path, typer.Argument(help="Recipe file (YAML).")],
    root: Root = Path("runs"),
    overrides: Overrides = None,
) -> None:
    """Train one recipe on the built-in corpus and print the folder of its final state."""
    from biphasic.config import load_config
    from biphasic.study.api import pretrain
    from biphasic.training.recipe import Recipe

    typer.echo(_shown(pretrain(load_config(Recipe, file, overrides or ()), root=root)))


@app.command("evaluate")
def evaluate_command(
    model: Annotated[Path, typer.Argument(help="Folder of a state or of a transformers model.")],
    task: Annotated[
        str, typer.Argument(help="pydocs-sc, pydocs-tc, pydocs-qa, pydocs-ir, or a task folder.")
    ],
    root: Root = Path("runs"),
    rates: Annotated[
        list[float] | None,
        typer.Option("--learning-rate", help="Peak rate; repeat for several. Default: six."),
    ] = None,
    seeds: Annotated[
        list[int] | None, typer.Option("--seed", help="Repeat for several. Default: 0 to 4.")
    ] = None,
    max_steps: Annotated[int, typer.Option(min=1, help="Most steps of a fine-tuning.")] = 1000,
    max_seqlen: Annotated[
        int | None, typer.Option(min=8, help="Longest input in tokens. Default: the model's.")
    ] = None,
) -> None:
    """Fine-tune an encoder over a grid and print its score with a 95 % interval."""
    from biphasic.analysis.text import score_cell
    from biphasic.study.api import evaluate

    settings = {"max_steps": max_steps}
    if max_seqlen is not None:
        settings["max_seqlen"] = max_seqlen
    found = evaluate(model, task, learning_rates=rates, seeds=seeds, protocol=settings, root=root)
    if found.estimate is None:
        typer.echo(f"{found.task}: every run diverged; lower the learning rate", err=True)
        raise typer.Exit(1)
    typer.echo(f"{found.task} {found.metric}: {score_cell(found.estimate)}")


def main() -> None:
    """Run the command line; one clear line and an exit code for every foreseen error."""
    try:
        app()
    except (ConfigError, DataError, CheckpointError, LockedError) as error:
        _fail(error, code=2)
    except (BiphasicError, OSError) as error:  # among the latter: disk full, folder not writable
        _fail(error, code=1)
    except KeyboardInterrupt:
        typer.echo("interrupted; run again to go on", err=True)
        sys.exit(130)


def _fail(error: Exception, *, code: int) -> None:
    typer.echo(f"error: {error}", err=True)
    sys.exit(code)


def _shown(path: Path) -> str:
    """Return a path as a person would type it from here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
