"""The overview's charts: the scores of all arms on each dataset, with notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.figures.palette import SeriesStyle
from biphasic.analysis.figures.strips import Scale, Strip, axis, strip
from biphasic.analysis.records import StudyRecords
from biphasic.analysis.scores.reference import ReferenceValues
from biphasic.analysis.scores.table import UNTRAINED, DatasetInfo, Scores
from biphasic.analysis.statistics.compare import ranked
from biphasic.analysis.statistics.doubts import cell_doubt
from biphasic.analysis.tables.sheets import score_text
from biphasic.analysis.tables.summary import task_line, task_notes
from biphasic.analysis.text import points_cell

MOST_ROWS = 12
"""Maximum arms for which a chart shows all, in the study's order."""
SHOWN_OF_MANY = 8
"""With more arms, number of best ones shown besides the untrained encoder; others are folded."""
MOST_FOLDED = 24
"""Maximum folded arms below a chart; the others are only in the table of scores."""


@dataclass(frozen=True)
class CardRow:
    """One arm on one dataset: in a chart, and in the table of scores."""

    model: str
    label: str
    cell: int
    """Index of its cell in the page's data."""
    text: str
    mean: float | None
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
    by_arm: Mapping[str, CardRow]
    """All of them, for the table of scores."""
    floor: float | None
    """Position of the untrained encoder's mean, in percent of the width."""


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
        keys = [(model.name, dataset.name) for model in scores.models]
        on = axis([scores.get(*key) for key in keys], [paper[key] for key in keys if key in paper])
        made = _rows(scores, dataset, styles, paper, cell=first_cell + place, on=on)
        rows = {row.model: row for row in made}
        shown, more = _fold([*rows.values()], scores, dataset)
        untrained = (rows[model.name] for model in scores.models if model.objective == UNTRAINED)
        floors = [row.mean for row in untrained if row.mean is not None]
        task = tasks.get(dataset.name)
        if task is None:
            number = len(scores.members(dataset))
            line = f"mean of {number} datasets; each {scores.unit} is averaged over them first"
        else:
            line = task_line(task)
        cards.append(
            Card(
                dataset=dataset,
                title=titles[dataset.name],
                line=line,
                notes=() if task is None else tuple(task_notes(records, task)),
                axis=on,
                rows=shown,
                more=more[:MOST_FOLDED],
                num_elsewhere=len(more[MOST_FOLDED:]),
                by_arm=rows,
                floor=on.place(floors[0]) if on and floors else None,
            )
        )
    return cards


def dataset_titles(records: StudyRecords, scores: Scores) -> dict[str, str]:
    """Return the title of each dataset and average."""
    titles = {task.name: task.title for task in records.tasks}
    return {dataset.name: titles.get(dataset.name, dataset.name) for dataset in scores.datasets}


def paper_text(estimate: Estimate | None) -> str:
    """Format a value of the paper as in its tables, `paper: 87.85 (0.13)`; empty if none."""
    return "" if estimate is None else f"paper: {score_text(estimate)}"


def best_of(scores: Scores, dataset: str) -> set[str]:
    """Return the finished models with the highest mean on a dataset; none if all are equal."""
    means = scores.finished.means(dataset)
    highest = max(means.values(), default=0.0)
    best = {name for name, mean in means.items() if mean == highest}
    return set() if len(best) == len(means) > 1 else best


def _rows(
    scores: Scores,
    dataset: DatasetInfo,
    styles: Mapping[str, SeriesStyle],
    paper: ReferenceValues,
    *,
    cell: int,
    on: Scale | None,
) -> list[CardRow]:
    best = best_of(scores, dataset.name)
    rows = []
    for index, model in enumerate(scores.models):
        key = model.name, dataset.name
        score, reference = scores.get(*key), paper.get(key)
        estimate = score.estimate
        rows.append(
            CardRow(
                model=model.name,
                label=model.label,
                cell=cell + index * len(scores.datasets),
                text=points_cell(estimate),
                mean=estimate.mean if estimate else None,
                strip=strip(score, styles[model.name], on, reference) if on else None,
                paper=paper_text(reference),
                is_best=model.name in best,
                is_complete=score.is_complete,
                doubt=cell_doubt(scores, model.name, dataset),
            )
        )
    return rows


def _fold(
    rows: Sequence[CardRow], scores: Scores, dataset: DatasetInfo
) -> tuple[tuple[CardRow, ...], tuple[CardRow, ...]]:
    """Return all of a few rows, or the best of many in rank order and the rows to fold."""
    if len(rows) <= MOST_ROWS:
        return tuple(rows), ()
    places = {name: place for place, name in enumerate(ranked(scores, dataset.name))}
    inorder = sorted(rows, key=lambda row: places.get(row.model, len(rows)))
    shown = {row.model for row in inorder[:SHOWN_OF_MANY]}
    shown |= {model.name for model in scores.models if model.objective == UNTRAINED}
    return (
        tuple(row for row in inorder if row.model in shown),
        tuple(row for row in inorder if row.model not in shown),
    )
