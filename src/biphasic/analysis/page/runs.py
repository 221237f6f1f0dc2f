"""Data of every run, which the page shows on demand.

Fifty thousand runs as table rows would be too large for browsers. As data they take about a hundred
bytes each, and only the runs of one number are ever shown together.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

from biphasic.amounts import rate
from biphasic.analysis.page.columns import dataset_titles, paper_text
from biphasic.analysis.records import Status, StudyRecords
from biphasic.analysis.scores.reference import ReferenceValues
from biphasic.analysis.scores.table import PERCENT, Scores
from biphasic.analysis.text import plain
from biphasic.records import RunRecord

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
