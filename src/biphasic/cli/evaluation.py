"""The `biphasic evaluate` command: run and print evaluations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from biphasic.analysis.statistics.doubts import doubt
from biphasic.analysis.tables.sentences import coverage_sentence
from biphasic.analysis.text import count, metric_name, points_cell, rate, truncations
from biphasic.cli.options import echo
from biphasic.config import parse_overrides
from biphasic.errors import visible
from biphasic.evaluation.evaluate import Evaluation, evaluate_all, known_convention
from biphasic.evaluation.plan import task_from_text
from biphasic.records import ZERO_SHOT, Convention
from biphasic.study.run.run import default_workers
from biphasic.study.spec.resolved import evaluation_text
from biphasic.study.spec.study import PAPER, TaskConfig

_ABSENT = {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0.0}


def evaluate_tasks(
    model: str,
    tasks: Sequence[str],
    *,
    root: Path,
    learning_rates: Sequence[float] | None,
    seeds: Sequence[int] | None,
    overrides: Iterable[str],
    is_paper: bool,
    revision: str | None,
    copies: Path | None,
    num_workers: int | None,
    convention: str,
    console: Console,
    device: str | None = None,
) -> Iterator[Evaluation]:
    """Evaluate a model on several tasks; check all inputs before the first runs.

    Raises:
        ConfigError: A setting is invalid.
    """
    return evaluate_all(
        model,
        _tasks(tasks, copies=copies, settings=parse_overrides(overrides)),
        learning_rates=learning_rates,
        seeds=seeds,
        protocol=PAPER if is_paper else None,
        revision=revision,
        convention=cast(Convention, convention),
        root=root,
        num_workers=num_workers or default_workers(device=device),
        device=device,
        console=console,
    )


def evaluation_config(
    tasks: Sequence[str],
    *,
    learning_rates: Sequence[float] | None,
    seeds: Sequence[int] | None,
    overrides: Iterable[str],
    is_paper: bool,
    copies: Path | None,
    convention: str,
) -> str:
    """Return the full settings of `evaluate_tasks` as YAML.

    Raises:
        ConfigError: A setting is invalid.
    """
    settings = parse_overrides(overrides)
    return evaluation_text(
        _tasks(tasks, copies=copies, settings=settings),
        learning_rates=learning_rates,
        seeds=seeds,
        protocol=settings,
        is_paper=is_paper,
        convention=known_convention(convention),
    )


def _tasks(
    tasks: Sequence[str], *, copies: Path | None, settings: dict[str, Any]
) -> list[TaskConfig]:
    return [
        task_from_text(task).model_copy(update={"copies": copies, "protocol": settings})
        for task in tasks
    ]


def print_evaluation(evaluation: Evaluation) -> bool:
    """Print one task's score and its caveats; return whether there is a score."""
    info = evaluation.task
    if evaluation.estimate is None:
        echo(f"{info.name}: every run diverged; lower the learning rate", err=True)
        return False
    echo(f"{info.name} {metric_name(evaluation.metric)}: {points_cell(evaluation.estimate)}")
    if chosen := _chosen_rates(evaluation):
        echo(f"  {chosen}")
    if reason := doubt(evaluation.estimate, evaluation.metric):
        echo(f"  no result: {reason}")
    if evaluation.convention != "standard" and evaluation.estimate.half_width is not None:
        seeds = evaluation.estimate.num_seeds
        echo(f"  {coverage_sentence(evaluation.convention, seeds)}")
    lost = {r.seed for r in evaluation.results} - {r.seed for r in evaluation.selected}
    if lost:
        echo(f"  excluded {count(len(lost), 'seed')}: every rate diverged", err=True)
    for name, value in _other_metrics(evaluation).items():
        echo(f"  {metric_name(name)}: {100 * value:.2f}")
    for pair, number in info.overlaps.items():
        earlier, later = pair.split("/")
        echo(f"  also in {earlier}: {count(number, 'example')} of {later}")
    if cut := truncations(evaluation.selected[0].num_truncated):
        echo(f"  cut by the length limit: {cut}")
    table = _type_table(evaluation)
    if table is not None:
        Console().print(table)
    return True


def _chosen_rates(evaluation: Evaluation) -> str:
    """Describe the chosen rates, their seeds, and their place among the rates tried.

    Empty for zero-shot tasks.
    """
    if evaluation.task.kind == ZERO_SHOT:
        return ""
    chosen = Counter(result.learning_rate for result in evaluation.selected)
    tried = sorted({result.learning_rate for result in evaluation.results})
    seeds = count(len(evaluation.selected), "seed")
    if len(tried) == 1:
        return f"rate: {rate(tried[0])}, the only one tried, with {seeds}"
    by_rate = [(rate(value), f"for {number} of {seeds}") for value, number in chosen.most_common()]
    if len(by_rate) == 1:
        best = f"best rate: {by_rate[0][0]} with {seeds}"
    else:
        best = f"best rates: {', '.join(map(' '.join, by_rate))}"
    edges = [
        f"{rate(edge)} is the {name} of {len(tried)} tried; a {beyond} one may be better "
        "(--learning-rate)"
        for edge, name, beyond in ((tried[0], "lowest", "lower"), (tried[-1], "highest", "higher"))
        if edge in chosen
    ]
    return "; ".join((best, *(edges or [f"none is at the edge of the {len(tried)} tried"])))


def _other_metrics(evaluation: Evaluation) -> dict[str, float]:
    """Return the mean of each secondary metric over the selected runs."""
    tests = [result.test or {} for result in evaluation.selected]
    return {
        name: sum(test[name] for test in tests) / len(tests)
        for name in tests[0]
        if name != evaluation.metric
    }


def _type_table(evaluation: Evaluation) -> Table | None:
    """Return a table of mean precision, recall and F1 per entity type over the selected runs."""
    parts = [result.by_type.get("test", {}) for result in evaluation.selected]
    # Runs may predict a type that the test split lacks.
    kinds = sorted({kind for part in parts for kind in part})
    if not kinds:
        return None
    table = Table(title="By entity type, on test", title_justify="left", box=None)
    table.add_column("type")
    for column in ("precision", "recall", "F1", "entities"):
        table.add_column(column, justify="right")
    for kind in kinds:
        rows = [part.get(kind, _ABSENT) for part in parts]
        means = {name: sum(row[name] for row in rows) / len(rows) for name in _ABSENT}
        scores = [f"{100 * means[name]:.2f}" for name in ("precision", "recall", "f1")]
        table.add_row(Text(visible(kind)), *scores, f"{means['support']:.0f}")
    return table
