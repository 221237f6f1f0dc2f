"""The commands that use a model, such as `biphasic evaluate`, `finetune` and `export`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from biphasic.api.evaluation import evaluate_all, finetune
from biphasic.api.use import encode, export_model, predict, push, run_mteb
from biphasic.cli.command import Commands
from biphasic.cli.output import echo, print_table

if TYPE_CHECKING:
    from biphasic.api.results.use import BenchmarkScores, Predictions, Upload, Vectors
    from biphasic.evaluation.result import Evaluation
    from biphasic.export.finetuned.write import FinetunedFolder
    from biphasic.records import Convention

commands = Commands()


def _evaluation_text(
    tasks: Sequence[str],
    learning_rates: Sequence[float] | None,
    extend: int | None,
    seeds: Sequence[int] | None,
    overrides: Sequence[str],
    protocol: str | None,
    copies: Path | None,
    convention: Convention,
) -> str:
    from biphasic.config import parse_overrides
    from biphasic.evaluation.plan import chosen_tasks
    from biphasic.study.spec.resolved import evaluation_text

    return evaluation_text(
        chosen_tasks(tasks, overrides=overrides, copies=copies),
        learning_rates=learning_rates,
        extend=extend,
        seeds=seeds,
        protocol=parse_overrides(overrides),
        is_paper=protocol is not None,
        convention=convention,
    )


@commands.calls(
    "evaluate",
    evaluate_all,
    defaults={"protocol": False},
    instead={"print_config": _evaluation_text},
    protocol=typer.Option("--paper"),
    tasks=typer.Option("--task"),
)
def _evaluate(evaluations: Iterator[Evaluation]) -> None:
    has_scores = [print_evaluation(evaluation) for evaluation in evaluations]
    if not all(has_scores):
        raise typer.Exit(1)


@commands.calls("finetune", finetune, task=typer.Option())
def _finetune(finetuned: FinetunedFolder) -> None:
    """Prints the scores."""
    print_evaluation(finetuned.evaluation)
    echo("\n".join(finetuned.sentences()))


def print_evaluation(evaluation: Evaluation) -> bool:
    """Print one task's score and its caveats; return whether there is a score."""
    for line in evaluation.sentences():
        echo(line)
    _print_notes(evaluation.notes)
    table = evaluation.type_table()
    if table is not None:
        print_table(table)
    return evaluation.estimate is not None


@commands.calls("predict", predict, defaults={"out": "-"}, source=typer.Argument(metavar="INPUT"))
def _predict(predicted: Predictions) -> None:
    _print_notes(predicted.notes)
    if predicted.out is not None:
        echo(str(predicted))


@commands.calls("encode", encode, defaults={"out": ...}, source=typer.Argument(metavar="FILE"))
def _encode(encoded: Vectors) -> None:
    _print_notes(encoded.notes)
    echo(str(encoded))


@commands.calls("mteb", run_mteb, tasks=typer.Option("--task", metavar="NAME"))
def _mteb(scores: BenchmarkScores) -> None:
    echo(str(scores))
    echo(f"results: {scores.out}; compare models: biphasic analyze {scores.out} --compare")


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        echo(note, err=True)


commands.prints("export", export_model, model=typer.Argument(metavar="STATE"), out=typer.Argument())


@commands.calls("push", push, repository=typer.Argument(metavar="OWNER/NAME"))
def _push(upload: Upload) -> None:
    echo(str(upload))
    for note in upload.notes:
        echo(f"warning: {note}", err=True)
    echo(upload.address or "nothing uploaded; add --go to upload")
