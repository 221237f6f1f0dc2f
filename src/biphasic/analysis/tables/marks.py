"""Marks the best score of a column, and those not clearly below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Scores
from biphasic.analysis.statistics.compare import indistinguishable

Mark = Literal["best", "level"]


def marks(scores: Scores, dataset: DatasetInfo, models: Sequence[ModelInfo]) -> dict[str, Mark]:
    """Mark the best of some models on a dataset, and those not clearly below it.

    Models that share the highest mean are all best. Nothing is marked if fewer than two have a
    score, or all are equal.
    """
    means = {
        model.name: score.estimate.mean
        for model in models
        if (score := scores.get(model.name, dataset.name)) is not None
        and score.estimate is not None
    }
    if len(set(means.values())) < 2:
        return {}
    level = indistinguishable(scores, dataset.name, models=[*means])
    by_model: dict[str, Mark] = dict.fromkeys(level, "level")
    highest = max(means.values())
    by_model.update({name: "best" for name, mean in means.items() if mean == highest})
    return by_model


def marks_note(scores: Scores) -> str:
    """Explain the marks, under the convention of a table."""
    how = {
        "paper": "their intervals overlap",
        "standard": "a paired t test over seeds, and over test examples where these are known, "
        "Holm-corrected for all pairs, does not separate them",
    }[scores.convention]
    return f"Bold: the best. ≈: no clear difference from it ({how}, or one has no interval)."
