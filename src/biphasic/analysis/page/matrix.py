"""The rows of the page's tables: scores, learning rates, comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from biphasic.analysis.page.cards import Card, CardRow
from biphasic.analysis.page.evidence import Evidence
from biphasic.analysis.records import ArmData, StudyRecords
from biphasic.analysis.scores.selection import selected_runs
from biphasic.analysis.statistics.compare import ModelComparison
from biphasic.analysis.tables.results import lowest_loss
from biphasic.analysis.tables.sentences import source_sentence
from biphasic.analysis.text import count, rate

_MOST_COMPARISONS = 24
"""Maximum comparisons of one dataset, the closest first; the others are counted."""
LossCell = tuple[str, float | None, bool]
"""Text, value, and whether it is the lowest."""
ScoreCell = tuple[CardRow, bool, str]
"""A score, whether it is best and clearly so, and what it lacks."""


def score_rows(
    records: StudyRecords,
    cards: Sequence[Card],
    *,
    objectives: Sequence[str],
    clear: Collection[str] = (),
) -> Iterator[tuple[ArmData, list[LossCell], list[ScoreCell]]]:
    """Yield each arm with its held-out losses and its scores on all datasets and averages.

    `clear` names the datasets on which the best arm is clearly ahead of every other.
    """
    lowest = {name: lowest_loss(records, name) for name in objectives}
    for arm in records.arms:
        losses: list[LossCell] = []
        for name in objectives:
            loss = arm.final_heldout.get(name)
            text = "–" if loss is None else f"{loss:.3f}"
            losses.append((text, loss, loss is not None and loss == lowest[name]))
        cells: list[ScoreCell] = []
        for card in cards:
            cell, dataset = card.by_arm[arm.name], card.dataset.name
            gaps = "" if cell.is_complete else _gaps(records, arm.name, dataset)
            cells.append((cell, cell.is_best and dataset in clear, gaps))
        yield arm, losses, cells


def _gaps(records: StudyRecords, arm: str, dataset: str) -> str:
    for task in records.tasks:
        if task.name == dataset:
            expected = count(len(records.seeds_of(task)), "seed")
            return f"{len(selected_runs(records)[arm, dataset])} of {expected}, runs missing"
    return "runs missing"


def rate_rows(records: StudyRecords) -> Iterator[tuple[ArmData, list[list[str]]]]:
    """Yield each arm with its chosen rates for each tuned task, as `2e-4 ×3`."""
    tuned = [task.name for task in records.tasks if not task.is_zero_shot]
    for arm in records.arms:
        selected = (selected_runs(records)[arm.name, task] for task in tuned)
        counts = [Counter(outcome.run.learning_rate for outcome in runs) for runs in selected]
        yield arm, [[f"{rate(value)} ×{n}" for value, n in sorted(of.items())] for of in counts]


@dataclass(frozen=True)
class ComparisonTable:
    """The comparisons of a dataset's best arm with every other, the closest first."""

    title: str
    best: str
    rows: tuple[ModelComparison, ...]
    rest: str
    """Summary of the arms further behind, if there are many."""
    notes: tuple[str, ...]


def comparison_tables(
    evidence: Iterable[Evidence], titles: Mapping[str, str], labels: Mapping[str, str]
) -> Iterator[ComparisonTable]:
    """Yield a table for each dataset with something to compare."""
    for of_dataset in evidence:
        comparisons = of_dataset.comparisons
        if comparisons:
            shown, rest = comparisons[:_MOST_COMPARISONS], comparisons[_MOST_COMPARISONS:]
            clear = sum(one.is_clear for one in rest)
            behind = f"Of {count(len(rest), 'further arm')}, {clear:,} are clearly behind."
            yield ComparisonTable(
                title=titles[of_dataset.dataset.name],
                best=labels[comparisons[0].first],
                rows=shown,
                rest=behind if rest else "",
                notes=tuple(source_sentence(source) for source in of_dataset.split.sources),
            )
