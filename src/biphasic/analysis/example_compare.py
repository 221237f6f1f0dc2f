"""Differences of models over test examples, from the scores of single ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from biphasic.analysis.crossed import (
    CrossedErrors,
    ExampleInterval,
    example_interval,
    squared_errors,
)
from biphasic.analysis.examples import CellInfluences
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
    parts = []
    for member in scores.members(dataset):
        one, other = (influences(scores, model, member.name) for model in (first, second))
        if one.ids_sha256 != other.ids_sha256:
            raise DataError(f"{member.name}: the models were scored on different examples")
        if lost := differences.keys() - (one.by_seed.keys() & other.by_seed.keys()):
            raise DataError(f"{member.name}: no examples of seed {min(lost)}")
        tables = [_table([cell], differences) for cell in (one, other)]
        parts.append((*squared_errors(*tables), tables[0].shape[2]))
    return example_interval([*differences.values()], _of_mean(parts))


def family_errors(scores: Scores, models: Sequence[str], dataset: DatasetInfo) -> CrossedErrors:
    """Return the errors over test examples of every pair of models, over the seeds of both.

    All at once, since pairs grow with the square of the models.

    Args:
        scores: Of the models.
        models: Names of models that have a score.
        dataset: A dataset, or an average.

    Returns:
        In the order of `itertools.combinations`; NaN where examples of a pair are not known.
    """
    parts = [_member_errors(scores, models, dataset, one.name) for one in scores.members(dataset)]
    return _of_mean(parts)


_Part = tuple[NDArray[np.float64], NDArray[np.float64], int]
"""Errors over the examples of one dataset, and the number of these."""


def _of_mean(parts: Sequence[_Part]) -> CrossedErrors:
    """Return the errors of a mean over datasets, whose examples are drawn independently."""
    examples, shared = (
        np.sum([part[which] for part in parts], axis=0).ravel() / len(parts) ** 2
        for which in (0, 1)
    )
    return CrossedErrors(examples, shared, sum(part[2] for part in parts))


class _Kind(NamedTuple):
    """What models must share for their pairs to be computed together."""

    ids_sha256: str
    seeds: frozenset[int]
    """With a score."""
    read: frozenset[int]
    """With single examples."""


def _member_errors(
    scores: Scores, models: Sequence[str], dataset: DatasetInfo, member: str
) -> _Part:
    kinds: dict[_Kind, list[int]] = defaultdict(list)
    cells: dict[int, CellInfluences] = {}
    for index, model in enumerate(models):
        try:
            cells[index] = cell = influences(scores, model, member)
        except DataError:
            continue
        score = scores.get(model, dataset.name)
        seeds = frozenset((score.by_seed or {}) if score is not None else {})
        kinds[_Kind(cell.ids_sha256, seeds, frozenset(cell.by_seed))].append(index)
    found = np.full((2, len(models), len(models)), np.nan)
    num_examples = 0
    for one, other in combinations_with_replacement(kinds, 2):
        common = one.seeds & other.seeds
        if not common or one.ids_sha256 != other.ids_sha256 or not common <= one.read & other.read:
            continue
        tables = [_table([cells[index] for index in kinds[kind]], common) for kind in (one, other)]
        num_examples = tables[0].shape[2]
        errors = np.stack(squared_errors(*tables))
        found[:, np.array(kinds[one])[:, None], kinds[other]] = errors
        found[:, np.array(kinds[other])[:, None], kinds[one]] = errors.swapaxes(1, 2)
    examples, shared = found[:, *np.triu_indices(len(models), 1)]
    return examples, shared, num_examples


def _table(cells: Sequence[CellInfluences], seeds: Collection[int]) -> NDArray[np.float64]:
    """Return influences as [num_models, num_seeds, num_examples]."""
    return np.stack([np.stack([cell.by_seed[seed] for seed in sorted(seeds)]) for cell in cells])


def influences(scores: Scores, model: str, dataset: str) -> CellInfluences:
    """Return how much each test example of a dataset adds to a model's score, for each seed.

    Files are read once for a table of scores, since averages and comparisons ask again; what is
    kept is eight bytes for each example of each run.

    Raises:
        DataError: There are no examples, or they are damaged; also where that was found before.
    """
    key = model, dataset
    if key not in scores.influences:
        try:
            scores.influences[key] = _read(scores, model, dataset)
        except DataError as error:
            scores.influences[key] = error
    found = scores.influences[key]
    if isinstance(found, DataError):
        raise DataError(str(found))
    return found


def _read(scores: Scores, model: str, dataset: str) -> CellInfluences:
    if scores.examples is None:
        raise DataError("there are no scores of single examples")
    examples = scores.examples(model, dataset)
    if len(examples.ids) < 2:
        raise DataError(f"{dataset}: a spread needs two examples or more")
    by_seed = {seed: PERCENT * run.influences for seed, run in examples.by_seed.items()}
    return CellInfluences(digest([*examples.ids]), by_seed)
