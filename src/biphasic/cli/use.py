"""The `biphasic evaluate`, `finetune`, `predict` and `encode` commands, which use a model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from biphasic.api.use import encode, predict, run_mteb
from biphasic.cli.command import command
from biphasic.cli.options import (
    CheckedModel,
    Copies,
    Device,
    LearningRates,
    Out,
    Overrides,
    PrintConfig,
    Quiet,
    Revision,
    Root,
    Seeds,
    StoreRoot,
    echo,
)

if TYPE_CHECKING:
    from biphasic.api.results.use import BenchmarkScores, Predictions, Vectors

FinetuneWorkers = Annotated[
    int | None,
    typer.Option(min=1, help="Parallel fine-tunings. Default: one per core, or one on a GPU."),
]


def evaluate_command(
    model: CheckedModel,
    tasks: Annotated[list[str], typer.Option("--task")],
    root: Root = Path("runs"),
    rates: LearningRates = None,
    seeds: Seeds = None,
    overrides: Overrides = None,
    paper: bool = False,
    revision: Revision = None,
    copies: Copies = None,
    workers: FinetuneWorkers = None,
    convention: Literal["standard", "paper"] = "standard",
    device: Device = None,
    print_config: PrintConfig = False,
    quiet: Quiet = False,
) -> None:
    """Fine-tune an encoder over a grid, and print its scores.

    Scores have 95 % intervals.

    Args:
        tasks: pydocs-sc, pydocs-tc, pydocs-qa or pydocs-ir; a published dataset such as mnli or
            squad; KIND:PATH with kind {kinds}; a task file (YAML); a task folder. Repeat for
            several. See docs/tasks.md.
        rates: Peak rate; repeat for several. Default: six.
        seeds: Repeat for several. Default: 0 to 4.
        overrides: Override a fine-tuning setting, e.g. max_steps=200, max_seqlen=256,
            precision=bf16, batching=padded.
        paper: Use the reference study's protocol; see docs/protocol.md.
        convention: Intervals: 'standard' (Student's t) or 'paper' (1.96 standard errors).
    """
    from biphasic.cli.evaluation import print_evaluation
    from biphasic.config import parse_overrides
    from biphasic.evaluation.evaluate import evaluate_all
    from biphasic.evaluation.plan import chosen_tasks
    from biphasic.study.spec.resolved import evaluation_text
    from biphasic.study.spec.study import PAPER

    if print_config:
        text = evaluation_text(
            chosen_tasks(tasks, overrides=overrides or (), copies=copies),
            learning_rates=rates,
            seeds=seeds,
            protocol=parse_overrides(overrides or ()),
            is_paper=paper,
            convention=convention,
        )
        echo(text, nl=False)
        return
    evaluations = evaluate_all(
        model,
        tasks,
        learning_rates=rates,
        seeds=seeds,
        protocol=PAPER if paper else None,
        overrides=overrides or (),
        revision=revision,
        copies=copies,
        convention=convention,
        root=root,
        workers=workers,
        device=device,
        quiet=quiet,
    )
    failed = [evaluation for evaluation in evaluations if not print_evaluation(evaluation)]
    if failed:
        raise typer.Exit(1)


def finetune_command(
    model: CheckedModel,
    task: Annotated[str, typer.Option()],
    out: Out,
    rates: LearningRates = None,
    seeds: Seeds = None,
    overrides: Overrides = None,
    revision: Revision = None,
    copies: Copies = None,
    root: StoreRoot = Path("runs"),
    workers: FinetuneWorkers = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Fine-tune an encoder, keep the best model, print scores.

    The best model is the one with the highest validation score.

    Args:
        task: KIND:PATH for custom data, with kind {trained_kinds}; a task file (YAML); a published
            dataset such as mnli; a built-in task. See docs/tasks.md.
        out: Output folder of the fine-tuned model.
        rates: Peak rate; repeat for several. Default: four from 2e-5 to 2e-4.
        seeds: Repeat for several. Default: 0.
        overrides: Override a fine-tuning setting, e.g. max_epochs=10, max_steps=5000,
            max_seqlen=256, precision=bf16, batching=padded.
    """
    from biphasic.cli.evaluation import print_evaluation
    from biphasic.export.finetuned.write import finetune

    finetuned = finetune(
        model,
        task,
        out,
        learning_rates=rates,
        seeds=seeds,
        overrides=overrides or (),
        revision=revision,
        copies=copies,
        root=root,
        workers=workers,
        device=device,
        quiet=quiet,
    )
    print_evaluation(finetuned.evaluation)
    echo("\n".join(finetuned.sentences()))


@command(predict, defaults={"out": "-"}, source=typer.Argument(metavar="INPUT"))
def predict_command(predicted: Predictions) -> None:
    _print_notes(predicted.notes)
    if predicted.out is not None:
        echo(str(predicted))


@command(encode, defaults={"out": ...}, source=typer.Argument(metavar="FILE"))
def encode_command(encoded: Vectors) -> None:
    _print_notes(encoded.notes)
    echo(str(encoded))


@command(run_mteb, tasks=typer.Option("--task", metavar="NAME"))
def mteb_command(scores: BenchmarkScores) -> None:
    echo(str(scores))
    echo(f"results: {scores.out}; compare models: biphasic analyze {scores.out} --compare")


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        echo(note, err=True)
