"""Columns of the page: the scores of all arms on a dataset, on one scale."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

from biphasic.amounts import rate
from biphasic.analysis.estimate import Estimate
from biphasic.analysis.figures.strips import Scale, Strip, axis, strip
from biphasic.analysis.records import Status, StudyRecords
from biphasic.analysis.scores.reference import ReferenceValues
from biphasic.analysis.scores.table import PERCENT, DatasetInfo, ModelInfo, Score, Scores
from biphasic.analysis.statistics.compare import ranked
from biphasic.analysis.statistics.doubts import cell_doubt
from biphasic.analysis.text import plain, score_text
from biphasic.palette import SeriesStyle
from biphasic.records import RunRecord

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


_STATUS: tuple[str, ...] = get_args(Status)


def store_link(page: Path, store: Path) -> str:
    """Return the relative link from a page to a store."""
    return quote(Path(os.path.relpath(store, page.parent)).as_posix())


def run_data(
    records: StudyRecords, sources: Sequence[Scores], paper: ReferenceValues, store: str
) -> dict[str, Any]:
    """Return arms, datasets and the runs of each cell, for the page's script."""
    # A run is `[seed, index of its rate, status, validation, test, whether it is selected, id]`,
    # with scores in percent points; an average over datasets and a recipe have the scores of their
    # seeds instead. `sources` are the scores of arms, then those of recipes if they are not the
    # same; `store` is the link to the store.
    scores = sources[0]
    models = [(source, model) for source in sources for model in source.models]
    rates = sorted({run.learning_rate for run in records.runs})
    titles = dataset_titles(records, scores)
    groups, selected = records.by_cell, records.selected
    cells = []
    for source, model in models:
        for dataset in source.datasets:
            key = model.name, dataset.name
            entry: dict[str, Any] = {}
            if key in selected and source is scores:
                chosen = {result.id for result in selected[key]}
                runs = [
                    _run(records, run, dataset.metric, rates=rates, chosen=chosen)
                    for run in groups.get(key, ())
                ]
                entry["runs"] = sorted(runs, key=lambda run: run[:2])  # by seed, then by rate
            elif by_seed := source.get(*key).by_seed:
                entry["seeds"] = [[seed, round(value, 2)] for seed, value in by_seed.items()]
                entry["unit"] = source.unit.capitalize()
            if reference := paper_text(paper.get(key)):
                entry["paper"] = reference
            cells.append(entry)
    return {
        "arms": [plain(model.label) for _, model in models],
        "datasets": [
            [plain(titles[dataset.name]), dataset.metric_facts.title] for dataset in scores.datasets
        ],
        "rates": [rate(value) if value else "none" for value in rates],
        "status": _STATUS,
        "records": f"{store}/finetunes",
        "cells": cells,
    }


def _run(
    records: StudyRecords, run: RunRecord, metric: str, *, rates: Sequence[float], chosen: set[str]
) -> list[Any]:
    scores = records.scores_of(run, metric)
    return [
        run.seed,
        rates.index(run.learning_rate),
        _STATUS.index(records.status(run)),
        *(None if score is None else round(PERCENT * score, 2) for score in scores),
        int(run.id in chosen),
        run.id,
    ]
