"""Printing of evaluations."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from biphasic.amounts import count
from biphasic.analysis.statistics.doubts import doubt
from biphasic.analysis.tables.sentences import coverage_sentence
from biphasic.analysis.text import points_cell, rate, truncations
from biphasic.cli.options import echo
from biphasic.errors import visible
from biphasic.evaluation.evaluate import Evaluation
from biphasic.tasks.kinds.registry import KINDS

_TYPE_COLUMNS = {"f1": "F1", "support": "entities"}
"""Headings of a table by type, where they are not the metric's name."""


def print_evaluation(evaluation: Evaluation) -> bool:
    """Print one task's score and its caveats; return whether there is a score."""
    info, facts = evaluation.task, KINDS[evaluation.task.kind].facts
    if evaluation.estimate is None:
        echo(f"{info.name}: every run diverged; lower the learning rate", err=True)
        return False
    echo(f"{info.name} {facts.metric(evaluation.metric).title}: {points_cell(evaluation.estimate)}")
    if chosen := _chosen_rates(evaluation):
        echo(f"  {chosen}")
    if reason := doubt(evaluation.estimate, facts.metric(evaluation.metric)):
        echo(f"  no result: {reason}")
    if evaluation.convention != "standard" and evaluation.estimate.half_width is not None:
        seeds = evaluation.estimate.num_seeds
        echo(f"  {coverage_sentence(evaluation.convention, seeds)}")
    lost = {r.seed for r in evaluation.results} - {r.seed for r in evaluation.selected}
    if lost:
        echo(f"  excluded {count(len(lost), 'seed')}: every rate diverged", err=True)
    tests = [result.test or {} for result in evaluation.selected]
    for name in tests[0]:
        if name != evaluation.metric:
            mean = sum(test[name] for test in tests) / len(tests)
            echo(f"  {facts.metric(name).title}: {100 * mean:.2f}")
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
    """Describe the chosen rates and their place among those tried; empty for zero-shot tasks."""
    if not KINDS[evaluation.task.kind].facts.is_trained:
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


def _type_table(evaluation: Evaluation) -> Table | None:
    """Return a table of mean scores by type of entity or paradigm over the selected runs."""
    parts = [result.by_type.get("test", {}) for result in evaluation.selected]
    # Runs may predict a type that the test split lacks.
    kinds = sorted({kind for part in parts for kind in part})
    if not kinds:
        return None
    names = next(iter(next(filter(None, parts)).values()))
    table = Table(title="By type, on test", title_justify="left", box=None)
    table.add_column("type")
    for name in names:
        table.add_column(_TYPE_COLUMNS.get(name, name), justify="right")
    for kind in kinds:
        rows = [part.get(kind, dict.fromkeys(names, 0)) for part in parts]
        means = {name: sum(row[name] for row in rows) / len(rows) for name in names}
        texts = [
            f"{mean:.0f}" if isinstance(names[name], int) else f"{100 * mean:.2f}"
            for name, mean in means.items()
        ]
        table.add_row(Text(visible(kind)), *texts)
    return table
