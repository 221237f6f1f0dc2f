"""Scores put together by hand, with examples where asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from biphasic.analysis.estimate import estimate
from biphasic.analysis.scores.examples import ExampleScores, mean_examples
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Score, Scores
from biphasic.analysis.statistics.compare import ModelComparison, family_of
from biphasic.errors import DataError

DATASET = DatasetInfo("d", "SC", "accuracy")


def made_scores(by_model, *, convention="standard", datasets=(DATASET,), reader=None, **models):
    """Return scores from `{model: [scores by seed]}` or `{(model, dataset): ...}`."""
    cells = {}
    for key, values in by_model.items():
        cell = key if isinstance(key, tuple) else (key, datasets[0].name)
        by_seed = values if isinstance(values, Mapping) else dict(enumerate(values))
        found = estimate([*by_seed.values()], convention=convention)
        cells[cell] = Score(found, by_seed)
    names = list(dict.fromkeys(model for model, _ in cells))
    infos = [models.get(name, ModelInfo(name, name)) for name in names]
    return Scores("made", convention, tuple(infos), tuple(datasets), cells, examples=reader)


def example_reader(matrices, *, ids=None):
    """Return a reader of `{model: [num_seeds, num_examples]}`, shares."""

    def read(model, dataset):
        found = matrices.get((model, dataset), matrices.get(model))
        if found is None:
            raise DataError(f"{model}: no examples")
        rows = {seed: mean_examples(row) for seed, row in enumerate(np.asarray(found, float))}
        names = (ids or {}).get(model) or tuple(map(str, range(np.shape(found)[1])))
        return ExampleScores(tuple(names), rows)

    return read


def scores_with_examples(matrices, **options):
    """Return the scores of `{model: [num_seeds, num_examples]}`, with their examples."""
    by_model = {name: 100 * np.asarray(rows).mean(axis=1) for name, rows in matrices.items()}
    return made_scores(by_model, reader=example_reader(matrices), **options)


def compare_arms(
    scores: Scores, first: str, second: str, dataset: str, *, with_examples: bool = True
) -> ModelComparison | None:
    """Compare two models on one dataset, without correction; None if one has no score."""
    scores = scores if with_examples else dataclasses.replace(scores, examples=None)
    family = family_of(scores, dataset, models=(first, second))
    return family.compare(first, second)
