"""Strips: one row per model with its mean, interval and seeds; floors and references are lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pandas import DataFrame

from biphasic.analysis.figures.catalog import models_of
from biphasic.analysis.figures.chart import Chart, Skipped, Spec, chart_of
from biphasic.analysis.scores.reference import ReferenceValues
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Score, Scores
from biphasic.analysis.words import words
from biphasic.facts import REFERENCE, is_baseline
from biphasic.palette import FLOOR, SeriesStyle

_OF_BASELINE = SeriesStyle(FLOOR, "D", ":")
STRIPS = Spec(
    None, "strips", "Scores", lambda m: m, "place", lambda m, _: m, "", lambda _: (), "rows",
    note=None,
)  # fmt: skip


def strips_of(
    scores: Scores,
    styles: Mapping[str, SeriesStyle],
    titles: Mapping[str, str],
    *,
    datasets: Sequence[DatasetInfo] | None = None,
    reference: ReferenceValues | None = None,
    every: Scores | None = None,
) -> Chart | Skipped:
    """Chart the strips of datasets, by default all except averages."""
    # Values of a reference are tall ticks. `every` has models that are not drawn, too: one of them
    # may be the best.
    if datasets is None:
        datasets = [dataset for dataset in scores.datasets if not dataset.is_average]
    models = models_of(replace(scores, models=(*scores.models, *scores.baselines)))
    looks = [styles.get(name, _OF_BASELINE) for name in models["name"]]
    models = models.assign(series=models["label"], line=models["name"], style=looks)
    rows = (
        {"panel": dataset.name, "heading": titles[dataset.name],
         "unit": f"{dataset.metric_facts.title}, %", **row}
        for dataset in datasets
        for row in _rows(scores, dataset, reference or {}, (every or scores).finished)
    )  # fmt: skip
    columns = ["name", "panel", "heading", "unit", "place", "mean", "low", "high", "text",
               "is_best", "seeds", "level", "reference"]  # fmt: skip
    values = DataFrame(rows, columns=columns).astype({"mean": float, "reference": float})
    return chart_of(STRIPS, models, values)


def _rows(
    scores: Scores, dataset: DatasetInfo, reference: ReferenceValues, compared: Scores
) -> Iterator[dict[str, Any]]:
    """Yield the models, and the floors and references with a score on a dataset."""
    baselines = (m for m in scores.baselines if scores.get(m.name, dataset.name).estimate)
    best = compared.best(dataset.name)
    for place, model in enumerate((*scores.models, *baselines)):
        score, name = scores.get(model.name, dataset.name), model.name
        found, theirs = score.estimate, reference.get((name, dataset.name))
        low, high = found.ends if found else (None, None)
        yield {
            "name": name, "place": place, "mean": found and found.mean, "low": low, "high": high,
            "text": words().strip(found), "is_best": name in best,
            "seeds": _seeds(model, score), "level": _level(model),
            "reference": theirs and theirs.mean,
        }  # fmt: skip


def _seeds(model: ModelInfo, score: Score) -> list[float]:
    # The score of a baseline is the same for every seed.
    return [] if is_baseline(model.name) else [*(score.by_seed or {}).values()]


def _level(model: ModelInfo) -> Any:
    """Return the dashes of the line at the score of a floor or reference; None without a line."""
    if not (model.is_untrained or is_baseline(model.name)):
        return None
    return (0, (5, 3)) if model.name.startswith(REFERENCE) else (0, (1, 2))
