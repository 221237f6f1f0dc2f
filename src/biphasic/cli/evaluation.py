"""What `biphasic evaluate` does and prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from biphasic.analysis.sentences import coverage_sentence
from biphasic.analysis.text import count, metric_name, score_cell, truncations
from biphasic.cli.options import echo
from biphasic.config import parse_overrides
from biphasic.errors import visible
from biphasic.records import Convention
from biphasic.study.config import PAPER
from biphasic.study.evaluation import Evaluation, evaluate_all, task_from_text
from biphasic.study.run import default_workers

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
) -> Iterator[Evaluation]:
    """Evaluate a model on several tasks; everything is checked before the first.

    Raises:
        ConfigError: A setting is wrong.
    """
    settings: dict[str, Any] = parse_overrides(overrides)
    chosen = [
        task_from_text(task).model_copy(update={"copies": copies, "protocol": settings})
        for task in tasks
    ]
    return evaluate_all(
        model,
        chosen,
        learning_rates=learning_rates,
        seeds=seeds,
        protocol=PAPER if is_paper else None,
        revision=revision,
        convention=cast(Convention, convention),
        root=root,
        num_workers=num_workers or default_workers(),
    )


def print_evaluation(evaluation: Evaluation) -> bool:
    """Print one task's score, and what must be known with it; tell whether there is a score."""
    info = evaluation.task
    if evaluation.estimate is None:
        echo(f"{info.name}: every run diverged; lower the learning rate", err=True)
        return False
    echo(f"{info.name} {metric_name(evaluation.metric)}: {score_cell(evaluation.estimate)}")
    if evaluation.convention != "standard" and evaluation.estimate.half_width is not None:
        seeds = evaluation.estimate.num_seeds
        echo(f"  {coverage_sentence(evaluation.convention, seeds)}")
    lost = {r.seed for r in evaluation.results} - {r.seed for r in evaluation.selected}
    if lost:
        echo(f"  without {count(len(lost), 'seed')}, whose every rate diverged", err=True)
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


def _other_metrics(evaluation: Evaluation) -> dict[str, float]:
    """Return the means over the selected runs of all metrics but the one that decides."""
    tests = [result.test or {} for result in evaluation.selected]
    return {
        name: sum(test[name] for test in tests) / len(tests)
        for name in tests[0]
        if name != evaluation.metric
    }


def _type_table(evaluation: Evaluation) -> Table | None:
    """Lay out precision, recall and F1 of each entity type, as means over the selected runs."""
    parts = [result.by_type.get("test", {}) for result in evaluation.selected]
    # A type that test lacks is there in the runs that predict it.
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
