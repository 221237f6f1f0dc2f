"""The difference of two models over test examples, from the scores of single ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from biphasic.analysis.examples import ResampledCell
from biphasic.analysis.resample import ExampleInterval, example_interval, resampled_values
from biphasic.analysis.score_table import PERCENT, DatasetInfo, Scores
from biphasic.errors import DataError
from biphasic.files import digest


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
    seeds = tuple(differences)
    members = scores.members(dataset)
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
    one, other = (resampled_cell(scores, model, dataset) for model in (first, second))
    if one.ids_sha256 != other.ids_sha256:
        raise DataError(f"{dataset}: the models were scored on different examples")
    lost = [seed for seed in seeds if seed not in one.by_seed or seed not in other.by_seed]
    if lost:
        raise DataError(f"{dataset}: no examples of seed {lost[0]}")
    differences = [one.by_seed[seed] - other.by_seed[seed] for seed in seeds]
    return PERCENT * np.stack(differences), one.num_examples


def resampled_cell(scores: Scores, model: str, dataset: str) -> ResampledCell:
    """Return a model's scores on resamples of a dataset's test examples.

    Files are read and resampled once for a table of scores, since every average and every
    comparison with the best asks again; what is kept is 16 KB for each run.

    Raises:
        DataError: There are no examples, or they are damaged; also where that was found before.
    """
    key = model, dataset
    if key not in scores.resampled:
        try:
            scores.resampled[key] = _resample(scores, model, dataset)
        except DataError as error:
            scores.resampled[key] = error
    found = scores.resampled[key]
    if isinstance(found, DataError):
        raise DataError(str(found))
    return found


def _resample(scores: Scores, model: str, dataset: str) -> ResampledCell:
    if scores.examples is None:
        raise DataError("there are no scores of single examples")
    examples = scores.examples(model, dataset)
    if len(examples.ids) < 2:
        raise DataError(f"{dataset}: a spread needs two examples or more")
    values = resampled_values(examples.by_seed.values(), dataset=dataset)
    by_seed = dict(zip(examples.by_seed, values, strict=True))
    return ResampledCell(digest([*examples.ids]), len(examples.ids), by_seed)
