"""Notes on scores that look certain but are not valid results."""

from __future__ import annotations

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.scores.table import END_NOTE, DatasetInfo, ModelInfo, Scores
from biphasic.analysis.statistics.paired import NO_SPREAD
from biphasic.analysis.text import flat, listing
from biphasic.errors import DataError
from biphasic.facts import MetricFacts

_MOST_PLACES = 5


def doubt(estimate: Estimate | None, metric: MetricFacts, *, blank: str = "") -> str:
    """Return why a mean in percentage points is not a valid result; empty if it is valid."""
    if estimate is None or estimate.half_width is None:
        return ""
    if estimate.half_width > NO_SPREAD:
        is_wide = 2 * estimate.half_width > (200 if metric.is_signed else 100)
        return "the interval is wider than the scale" if is_wide else ""
    if blank or estimate.mean:
        return blank or "every seed has the same score"
    return metric.at_zero


def cell_doubt(scores: Scores, model: str, dataset: DatasetInfo) -> str:
    """Return why a score is not a valid result, using its predictions; empty if it is valid."""
    score = scores.get(model, dataset.name)
    if score.by_seed is None:  # published means are not checked
        return ""
    text = doubt(score.estimate, dataset.metric_facts)
    if not text or scores.examples is None or len(set(score.by_seed.values())) > 1:
        return text
    try:
        runs = scores.examples(model, dataset.name).by_seed.values()
    except DataError:
        return text
    blanks = {run.blank for run in runs}
    blank = blanks.pop() if len(blanks) == 1 else ""
    return doubt(score.estimate, dataset.metric_facts, blank=blank)


def doubt_notes(
    scores: Scores,
    *,
    models: tuple[ModelInfo, ...] | None = None,
    datasets: tuple[DatasetInfo, ...] | None = None,
) -> list[str]:
    """Explain the sign of scores at an end of the rates, and list those that are no results."""
    places, is_at_end = dict[str, list[str]](), False
    for dataset in scores.datasets if datasets is None else datasets:
        for model in scores.models if models is None else models:
            if text := cell_doubt(scores, model.name, dataset):
                places.setdefault(text, []).append(f"{flat(model.label)} on {flat(dataset.name)}")
            is_at_end |= scores.get(model.name, dataset.name).is_at_end
    invalid = [
        f"No result, as {text}: {listing(names, most=_MOST_PLACES)}."
        for text, names in places.items()
    ]
    return [*([END_NOTE] if is_at_end else []), *invalid]
