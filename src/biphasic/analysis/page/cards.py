"""The overview's charts: the scores of all arms on each dataset, with notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.figures.palette import SeriesStyle
from biphasic.analysis.figures.strips import Scale, Strip, axis, strip
from biphasic.analysis.records import StudyRecords
from biphasic.analysis.scores.reference import ReferenceValues
from biphasic.analysis.scores.table import UNTRAINED, DatasetInfo, ModelInfo, Score, Scores
from biphasic.analysis.statistics.doubts import cell_doubt
from biphasic.analysis.tables.summary import task_line, task_notes

MOST_ROWS = 12
"""Maximum arms for which a chart shows all, in the study's order."""
SHOWN_OF_MANY = 8
"""With more arms, number of best ones shown besides the untrained encoder; others are folded."""
MOST_FOLDED = 24
"""Maximum folded arms below a chart; the others are only in the table of scores."""


@dataclass(frozen=True)
class CardRow:
    """One arm in a chart."""

    model: str
    label: str
    cell: int
    """Index of its cell in the page's data."""
    text: str
    strip: Strip | None
    paper: str
    """The paper's value, or empty."""
    is_best: bool
    is_complete: bool
    doubt: str
    """Why it is not a valid result, or empty."""


@dataclass(frozen=True)
class Card:
    """The overview's content for one dataset."""

    dataset: DatasetInfo
    title: str
    line: str
    notes: tuple[str, ...]
    axis: Scale | None
    rows: tuple[CardRow, ...]
    more: tuple[CardRow, ...]
    """Arms beyond the best, if there are many."""
    num_elsewhere: int
    """Number of further arms, which only the table of scores has."""
    floor: float | None
    """Position of the untrained encoder's mean, in percent of the width."""


@dataclass(frozen=True)
class _Column:
    """A dataset with all data that a row needs."""

    scores: Scores
    dataset: DatasetInfo
    place: int
    styles: Mapping[str, SeriesStyle]
    paper: ReferenceValues
    first_cell: int

    def score(self, model: ModelInfo) -> Score | None:
        return self.scores.get(model.name, self.dataset.name)

    def reference(self, model: ModelInfo) -> Estimate | None:
        return self.paper.get(model.name, self.dataset.name)

    def axis(self) -> Scale | None:
        scores = [self.score(model) for model in self.scores.models]
        references = [self.reference(model) for model in self.scores.models]
        return axis([score for score in scores if score], [r for r in references if r])


def task_cards(
    records: StudyRecords,
    scores: Scores,
    styles: Mapping[str, SeriesStyle],
    paper: ReferenceValues,
    *,
    first_cell: int = 0,
) -> list[Card]:
    """Return a card for each dataset and average, in order.

    `first_cell` is the place of the first score in the page's data.
    """
    tasks = {task.name: task for task in records.tasks}
    titles = dataset_titles(records, scores)
    cards = []
    for place, dataset in enumerate(scores.datasets):
        column = _Column(scores, dataset, place, styles, paper, first_cell)
        on = column.axis()
        task = tasks.get(dataset.name)
        shown, more = _fold(_rows(column, on), column)
        cards.append(
            Card(
                dataset=dataset,
                title=titles[dataset.name],
                line=_average_line(scores, dataset) if task is None else task_line(task),
                notes=() if task is None else tuple(task_notes(records, task)),
                axis=on,
                rows=shown,
                more=more[:MOST_FOLDED],
                num_elsewhere=len(more[MOST_FOLDED:]),
                floor=_floor(column, on),
            )
        )
    return cards


def dataset_titles(records: StudyRecords, scores: Scores) -> dict[str, str]:
    """Return the title of each dataset and average."""
    titles = {task.name: task.title for task in records.tasks}
    return {dataset.name: titles.get(dataset.name, dataset.name) for dataset in scores.datasets}


def score_text(estimate: Estimate | None) -> str:
    """Format an estimate in percentage points as `mean (±half-width)`."""
    if estimate is None:
        return "–"
    if estimate.half_width is None:
        return f"{estimate.mean:.2f}"
    return f"{estimate.mean:.2f} (±{estimate.half_width:.2f})"


def paper_text(estimate: Estimate | None) -> str:
    """Format a value of the paper as in its tables, `paper: 87.85 (0.13)`; empty if none."""
    if estimate is None:
        return ""
    half_width = "" if estimate.half_width is None else f" ({estimate.half_width:.2f})"
    return f"paper: {estimate.mean:.2f}{half_width}"


def ranked(scores: Scores, dataset: str) -> list[tuple[str, Estimate]]:
    """Order the models that have a score on a dataset, best first; ties keep their order."""
    by_model = [(model.name, scores.get(model.name, dataset)) for model in scores.models]
    scored = [(name, score.estimate) for name, score in by_model if score and score.estimate]
    return sorted(scored, key=lambda entry: -entry[1].mean)


def best_of(scores: Scores, dataset: str) -> set[str]:
    """Return the models with the highest mean on a dataset; none if all are equal."""
    order = ranked(scores, dataset)
    best = {name for name, estimate in order if estimate.mean == order[0][1].mean}
    return set() if len(best) == len(order) > 1 else best


def _rows(column: _Column, on: Scale | None) -> list[CardRow]:
    best = best_of(column.scores, column.dataset.name)
    rows = []
    for index, model in enumerate(column.scores.models):
        score, reference = column.score(model), column.reference(model)
        style = column.styles[model.name]
        rows.append(
            CardRow(
                model=model.name,
                label=model.label,
                cell=column.first_cell + index * len(column.scores.datasets) + column.place,
                text=score_text(score.estimate if score else None),
                strip=strip(score, style, on, reference) if score and on else None,
                paper=paper_text(reference),
                is_best=model.name in best,
                is_complete=score is None or score.is_complete,
                doubt=cell_doubt(column.scores, model.name, column.dataset),
            )
        )
    return rows


def _fold(
    rows: Sequence[CardRow], column: _Column
) -> tuple[tuple[CardRow, ...], tuple[CardRow, ...]]:
    """Return all of a few rows, or the best of many in rank order and the rows to fold."""
    if len(rows) <= MOST_ROWS:
        return tuple(rows), ()
    order = [name for name, _ in ranked(column.scores, column.dataset.name)]
    untrained = {m.name for m in column.scores.models if m.objective == UNTRAINED}
    places = {name: place for place, name in enumerate(order)}
    inorder = sorted(rows, key=lambda row: places.get(row.model, len(rows)))
    shown = {row.model for row in inorder[:SHOWN_OF_MANY]} | untrained
    return (
        tuple(row for row in inorder if row.model in shown),
        tuple(row for row in inorder if row.model not in shown),
    )


def _floor(column: _Column, on: Scale | None) -> float | None:
    for model in column.scores.models:
        score = column.score(model)
        if model.objective == UNTRAINED and score and score.estimate and on:
            return on.place(score.estimate.mean)
    return None


def _average_line(scores: Scores, dataset: DatasetInfo) -> str:
    return f"mean of {len(scores.members(dataset))} datasets; each seed is averaged over them first"
