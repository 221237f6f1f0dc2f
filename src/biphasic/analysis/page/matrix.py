"""The rows of the page's tables: scores, learning rates, costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from biphasic.analysis.figures.palette import SeriesStyle
from biphasic.analysis.page.cards import Card, CardRow
from biphasic.analysis.page.evidence import Evidence
from biphasic.analysis.records import StudyRecords, TrainedSegment
from biphasic.analysis.scores.runs import Cell
from biphasic.analysis.statistics.compare import ModelComparison
from biphasic.analysis.statistics.crossed import ExampleInterval
from biphasic.analysis.statistics.power import EffectSize
from biphasic.analysis.tables.results import lowest_loss
from biphasic.analysis.tables.sentences import number, probability, source_sentence
from biphasic.analysis.tables.summary import CostRow, cost_rows, segment_rows
from biphasic.analysis.text import count, listing, rate

_MOST_USERS = 6
_MOST_COMPARISONS = 24
"""Maximum comparisons of one dataset, the closest first; the others are counted."""


@dataclass(frozen=True)
class ScoreRow:
    """One arm in the table of scores."""

    label: str
    variable: str
    losses: tuple[tuple[str, float | None, bool], ...]
    """Text, value, and whether it is the lowest."""
    scores: tuple[tuple[CardRow, bool, str], ...]
    """A cell for each column, whether it is best and clearly so, and what it lacks."""


def score_rows(
    records: StudyRecords,
    table: Mapping[tuple[str, str], Cell],
    cards: Sequence[Card],
    styles: Mapping[str, SeriesStyle],
    *,
    objectives: Sequence[str],
    clear: Collection[str] = (),
) -> Iterator[ScoreRow]:
    """Yield a row per arm, with held-out losses and the scores on all datasets and averages.

    `clear` names the datasets on which the best arm is clearly ahead of every other.
    """
    lowest = {name: lowest_loss(records, name) for name in objectives}
    for arm in records.arms:
        cells = []
        for card in cards:
            cell, dataset = card.by_arm[arm.name], card.dataset.name
            gaps = "" if cell.is_complete else _gaps(table.get((arm.name, dataset)))
            cells.append((cell, cell.is_best and dataset in clear, gaps))
        losses = [(arm.final_heldout.get(name), lowest[name]) for name in objectives]
        yield ScoreRow(
            label=arm.label,
            variable=styles[arm.name].variable,
            losses=tuple(
                ("–" if loss is None else f"{loss:.3f}", loss, loss is not None and loss == least)
                for loss, least in losses
            ),
            scores=tuple(cells),
        )


def _gaps(cell: Cell | None) -> str:
    if cell is None:
        return "runs missing"
    return f"{len(cell.selected)} of {count(cell.num_expected, 'seed')}, runs missing"


def rate_rows(
    records: StudyRecords,
    table: Mapping[tuple[str, str], Cell],
    styles: Mapping[str, SeriesStyle],
) -> Iterator[tuple[str, str, list[list[str]]]]:
    """Yield label, color and, for each tuned task, the chosen rates of each arm: `2e-4 ×3`."""
    tuned = [task.name for task in records.tasks if not task.is_zero_shot]
    for arm in records.arms:
        selected = (table[arm.name, task].selected for task in tuned)
        counts = [Counter(outcome.run.learning_rate for outcome in runs) for runs in selected]
        texts = [[f"{rate(value)} ×{n}" for value, n in sorted(of.items())] for of in counts]
        yield arm.label, styles[arm.name].variable, texts


def cost_lines(
    records: StudyRecords, styles: Mapping[str, SeriesStyle]
) -> list[tuple[str, str, CostRow]]:
    """Return label, color and costs of each arm's phases and total."""
    labels = {arm.name: arm.label for arm in records.arms}
    return [(labels[row.arm], styles[row.arm].variable, row) for row in cost_rows(records)]


def segment_lines(records: StudyRecords) -> Iterator[tuple[TrainedSegment, str, float]]:
    """Yield each training segment with the first few of its arms, and its tokens per second."""
    for row in segment_rows(records):
        users, seconds = listing(row.arms, most=_MOST_USERS), row.segment.seconds
        yield row.segment, users, row.segment.tokens / seconds if seconds > 0 else 0.0


@dataclass(frozen=True)
class ComparisonRow:
    """The best arm of a dataset against another arm."""

    other: str
    difference: str
    mean: float
    p_value: str
    adjusted: float | None
    effect: str
    size: float | None
    examples: str
    detectable: str
    least: float | None
    verdict: str


@dataclass(frozen=True)
class ComparisonTable:
    """A dataset's comparisons."""

    title: str
    best: str
    rows: tuple[ComparisonRow, ...]
    rest: str
    """Summary of the arms further behind, if there are many."""
    notes: tuple[str, ...]


_VERDICTS = {
    "higher": "clearly ahead",
    "lower": "clearly behind",
    "undecided": "not clearly ahead",
    "unknown": "no test",
}


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
                rows=tuple(_comparison_row(one, labels) for one in shown),
                rest=behind if rest else "",
                notes=tuple(source_sentence(source) for source in of_dataset.split.sources),
            )


def _comparison_row(comparison: ModelComparison, labels: Mapping[str, str]) -> ComparisonRow:
    difference, effect, examples = comparison.difference, comparison.effect, comparison.examples
    interval = "" if difference.half_width is None else (
        f" ({number(difference.low)} to {number(difference.high)})"
    )  # fmt: skip
    p_value = "–" if comparison.p_adjusted is None else probability(comparison.p_adjusted)
    return ComparisonRow(
        other=labels[comparison.second],
        difference=f"{number(difference.mean)}{interval}",
        mean=difference.mean,
        p_value=p_value.removeprefix("p ").removeprefix("= "),
        adjusted=comparison.p_adjusted,
        effect="–" if effect is None else f"{number(effect.value)} ({_range(effect)})",
        size=None if effect is None else effect.value,
        examples="–" if examples is None else _range(examples),
        detectable="–" if comparison.detectable is None else number(comparison.detectable),
        least=comparison.detectable,
        verdict=_VERDICTS[comparison.verdict],
    )


def _range(interval: EffectSize | ExampleInterval) -> str:
    return f"{number(interval.low)} to {number(interval.high)}"
