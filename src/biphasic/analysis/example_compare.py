"""The difference of two models over test examples, from the scores of single ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from biphasic.analysis.examples import ExampleScores
from biphasic.analysis.resample import ExampleInterval, example_interval, resampled_values
from biphasic.analysis.score_table import PERCENT, DatasetInfo, Scores
from biphasic.errors import DataError


def compare_examples(
    scores: Scores,
    first: str,
    second: str,
    dataset: DatasetInfo,
    differences: Mapping[int, float],
) -> ExampleInterval:
    """Return the interval of a difference over seeds and test examples.

    Args:
        scores: With a reader of single examples.
        first: Name of a model.
        second: Name of the other.
        dataset: A dataset, or an average: then over the examples of all its datasets.
        differences: By seed, in percent points.

    Raises:
        DataError: Examples are missing or do not belong together; the reason.
    """
    if not differences:
        raise DataError("no seeds in common")
    members = [dataset]
    if dataset.is_average:
        members = [d for d in scores.datasets if d.task == dataset.task and not d.is_average]
    seeds = tuple(differences)
    parts = [_resampled(scores, first, second, member.name, seeds) for member in members]
    return example_interval(
        [*differences.values()],
        np.mean([resampled for resampled, _ in parts], axis=0),
        num_examples=sum(count for _, count in parts),
    )


def _resampled(
    scores: Scores, first: str, second: str, dataset: str, seeds: tuple[int, ...]
) -> tuple[NDArray[np.float64], int]:
    """Return differences on resamples, [num_seeds, num_resamples], and the number of examples."""
    one, other = (read_examples(scores, model, dataset) for model in (first, second))
    if one.ids != other.ids:
        raise DataError(f"{dataset}: the models were scored on different examples")
    if len(one.ids) < 2:
        raise DataError(f"{dataset}: a spread needs two examples or more")
    lost = [seed for seed in seeds if seed not in one.by_seed or seed not in other.by_seed]
    if lost:
        raise DataError(f"{dataset}: no examples of seed {lost[0]}")
    runs = [found.by_seed[seed] for found in (one, other) for seed in seeds]
    values = PERCENT * resampled_values(runs, dataset=dataset)
    return values[: len(seeds)] - values[len(seeds) :], len(one.ids)


def read_examples(scores: Scores, model: str, dataset: str) -> ExampleScores:
    """Return the examples of a model on a dataset.

    Raises:
        DataError: There are none, or they are damaged.
    """
    if scores.examples is None:
        raise DataError("there are no scores of single examples")
    return scores.examples(model, dataset)
