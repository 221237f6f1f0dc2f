"""Test scores of every fine-tuning, by learning rate and without selection."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from biphasic.analysis.records import StudyRecords
from biphasic.analysis.scores.table import PERCENT

ByRate = Mapping[float, list[float]]
"""Test scores over seeds, in percentage points, by learning rate."""


@dataclass(frozen=True)
class RunScores:
    """The runs of a grid.

    Attributes:
        metrics: Metric of each dataset, in order; zero-shot ones are absent.
        learning_rates: Rates of the grid.
        by_cell: Scores by names of model and dataset; without diverged runs.
        diverged: Number of diverged runs by learning rate.
    """

    metrics: Mapping[str, str]
    learning_rates: frozenset[float]
    by_cell: Mapping[tuple[str, str], ByRate]
    diverged: Mapping[float, int] = field(default_factory=dict)


def study_runs(records: StudyRecords) -> RunScores:
    """Return the runs of a study."""
    metrics = {task.name: task.metric for task in records.tasks if not task.is_zero_shot}
    cells: dict[tuple[str, str], dict[float, list[float]]] = {}
    for (arm, task), outcomes in records.by_cell.items():
        by_rate = cells[arm, task] = defaultdict(list)
        for outcome in outcomes if task in metrics else ():
            if (score := outcome.score("test", metrics[task])) is not None:
                by_rate[outcome.run.learning_rate].append(PERCENT * score)
    diverged = Counter(o.run.learning_rate for o in records.outcomes if o.status == "diverged")
    return RunScores(metrics, frozenset(records.study.learning_rates), cells, diverged)
