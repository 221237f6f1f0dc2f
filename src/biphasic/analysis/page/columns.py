"""Columns of the page: the scores of all arms on a dataset, on one scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.figures.strips import Scale, Strip, axis, strip
from biphasic.analysis.records import StudyRecords
from biphasic.analysis.scores.reference import ReferenceValues
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Score, Scores
from biphasic.analysis.statistics.compare import ranked
from biphasic.analysis.statistics.doubts import cell_doubt
from biphasic.analysis.text import score_text
from biphasic.palette import SeriesStyle

MOST_ROWS = 12  # maximum arms for which a chart shows all, in the study's order
# With more arms, number of best ones shown besides the untrained encoder; others are folded.
SHOWN_OF_MANY = 8
MOST_FOLDED = 24  # maximum folded arms below a chart; the others are only in the table of scores


@dataclass(frozen=True)
class Column:
    """One dataset or average on the page."""

    scores: Scores
    dataset: DatasetInfo
    first_cell: int  # place of its first score in the page's data
    reference: ReferenceValues  # the paper's values

    def score(self, model: str) -> Score:
        """Return the score of a model."""
        return self.scores.get(model, self.dataset.name)

    def cell(self, model: str) -> int:
        """Return the place of a score in the page's data."""
        return self.first_cell + [*self.scores.labels].index(model) * len(self.scores.datasets)

    def paper(self, model: str) -> Estimate | None:
        """Return the paper's value for the same training."""
        return self.reference.get((model, self.dataset.name))

    def strip(self, model: str, style: SeriesStyle) -> Strip | None:
        """Return the marks of a model on the column's scale."""
        scale = self.scale
        return scale and strip(self.score(model), style, scale, self.paper(model))

    @cached_property
    def scale(self) -> Scale | None:
        """The scale of all its scores; None without any."""
        names = [*self.scores.labels]
        references = [value for value in map(self.paper, names) if value is not None]
        return axis([self.score(name) for name in names], references)

    @cached_property
    def best(self) -> set[str]:
        """The models that are marked as the best."""
        return self.scores.finished.best(self.dataset.name)

    @cached_property
    def doubts(self) -> dict[str, str]:
        """Why the score of a model is not a valid result, or empty."""
        return {name: cell_doubt(self.scores, name, self.dataset) for name in self.scores.labels}

    @property
    def shown(self) -> list[ModelInfo]:
        """All of a few models, or the best of many in rank order."""
        return [model for model in self._inorder if model.name in self._chosen]

    @property
    def more(self) -> list[ModelInfo]:
        """The models that are folded."""
        return [model for model in self._inorder if model.name not in self._chosen][:MOST_FOLDED]

    @property
    def has_paper(self) -> bool:
        """Whether the paper has a value for one of the models of the chart."""
        return any(self.paper(model.name) for model in (*self.shown, *self.more))

    @property
    def num_elsewhere(self) -> int:
        """Number of further models, which only the table of scores has."""
        return len(self._inorder) - len(self._chosen) - len(self.more)

    @cached_property
    def _inorder(self) -> list[ModelInfo]:
        models = self.scores.models
        if len(models) <= MOST_ROWS:
            return [*models]
        places = {name: place for place, name in enumerate(ranked(self.scores, self.dataset.name))}
        return sorted(models, key=lambda model: places.get(model.name, len(models)))

    @cached_property
    def _chosen(self) -> set[str]:
        untrained = {model.name for model in self._inorder if model.is_untrained}
        most = MOST_ROWS if len(self._inorder) <= MOST_ROWS else SHOWN_OF_MANY
        return {model.name for model in self._inorder[:most]} | untrained

    @property
    def baselines(self) -> list[ModelInfo]:
        """The floors and references that have a score."""
        return [model for model in self.scores.baselines if self.score(model.name).estimate]

    @property
    def floors(self) -> list[float]:
        """Positions of untrained encoders, floors and references, in percent of the width."""
        untrained = [model for model in self.scores.models if model.is_untrained]
        scale, names = self.scale, (m.name for m in (*untrained, *self.baselines))
        means = [found.mean for name in names if (found := self.score(name).estimate)]
        return [scale.place(mean) for mean in means] if scale else []


def columns_of(scores: Scores, reference: ReferenceValues, *, first_cell: int = 0) -> list[Column]:
    """Return a column for each dataset and average, in order."""
    return [
        Column(scores, dataset, first_cell + place, reference)
        for place, dataset in enumerate(scores.datasets)
    ]


def dataset_titles(records: StudyRecords, scores: Scores) -> Mapping[str, str]:
    """Return the title of each dataset and average."""
    titles = {task.name: task.title for task in records.tasks}
    return {dataset.name: titles.get(dataset.name, dataset.name) for dataset in scores.datasets}


def paper_text(estimate: Estimate | None) -> str:
    """Format a value of the paper as in its tables, `paper: 87.85 (0.13)`; empty if none."""
    return "" if estimate is None else f"paper: {score_text(estimate)}"
