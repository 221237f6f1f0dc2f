"""The commands that use a model, such as `biphasic evaluate`, `finetune` and `export`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import typer

from biphasic.api import task
from biphasic.api.evaluation import evaluate_all, finetune
from biphasic.api.use import encode, export_model, predict, push, run_mteb
from biphasic.cli.command import Commands
from biphasic.cli.output import echo, print_table

if TYPE_CHECKING:
    from biphasic.evaluation.benchmark import BenchmarkScores
    from biphasic.evaluation.result import Evaluation
    from biphasic.export.finetuned.write import FinetunedFolder
    from biphasic.export.push import Upload
    from biphasic.tasks.encode import Vectors
    from biphasic.tasks.predict import Predictions

commands = Commands()
task_app = Commands("Show published tasks.")


@task_app.calls("show", task.show)
def _show_task(text: str) -> None:
    echo(text.rstrip())


@commands.calls("evaluate", evaluate_all)
def _evaluate(evaluations: Iterator[Evaluation]) -> None:
    has_scores = [print_evaluation(evaluation) for evaluation in evaluations]
    if not all(has_scores):
        raise typer.Exit(1)


@commands.calls("finetune", finetune)
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


@commands.calls("predict", predict)
def _predict(predicted: Predictions) -> None:
    _print_notes(predicted.notes)
    if predicted.out is not None:
        echo(str(predicted))


@commands.calls("encode", encode)
def _encode(encoded: Vectors) -> None:
    _print_notes(encoded.notes)
    echo(str(encoded))


@commands.calls("mteb", run_mteb)
def _mteb(scores: BenchmarkScores) -> None:
    echo(str(scores))
    echo(f"results: {scores.out}; compare models: biphasic analyze {scores.out} --compare")


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        echo(note, err=True)


commands.prints("export", export_model)


@commands.calls("push", push)
def _push(upload: Upload) -> None:
    echo(str(upload))
    for note in upload.notes:
        echo(f"warning: {note}", err=True)
    echo(upload.address or "nothing uploaded; add --go to upload")
