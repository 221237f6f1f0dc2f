"""Variance of a mean difference over other seeds and other test examples.

Seeds and examples are crossed: every seed, and every arm, is scored on the same examples. The
squared standard error is that over seeds plus that over examples, minus their interaction, which
both of them contain (two-way analysis of variance). It is never below either.

The test is Student's t with Satterthwaite's degrees of freedom: few if a few seeds cause most of
the error, many if examples do. It is never more certain than the paired t test over seeds. Its p
values are continuous, so they can stay small after correction for many comparisons; p values from a
few thousand resamples cannot.

References: Satterthwaite 1946, "An approximate distribution of estimates of variance components";
Owen 2007, "The pigeonhole bootstrap", for crossed factors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from biphasic.analysis.scores.examples import CellInfluences, ExampleScores
from biphasic.analysis.scores.table import PERCENT, DatasetInfo, Scores
from biphasic.errors import DataError
from biphasic.files import digest

Array = NDArray[np.float64]


@dataclass(frozen=True)
class CrossedErrors:
    """Squared standard errors of mean differences over test examples, one per pair."""

    examples: Array  # NaN where examples are unknown
    shared: Array  # the part that is the interaction of seeds and examples
    num_examples: int  # of all datasets together for an average
    num_clusters: int  # those drawn independently: clusters of examples, or the examples
    freedom: Array | float  # degrees of freedom of `examples`


# Of pairs whose test examples are unknown: seeds alone decide.
NO_EXAMPLES = CrossedErrors(np.zeros(1), np.zeros(1), 0, 0, 1)


def squared_errors(first: Array, second: Array) -> CrossedErrors:
    """Return the errors of each pair of first and second models, [num_first, num_second]."""
    # `first` and `second` are what each test example, or each cluster of them, adds to each model's
    # score with each seed, zero on average: [num_models, num_seeds, num_examples].
    _, num_seeds, num_examples = first.shape
    of_means = _squared_distances(first.mean(axis=1), second.mean(axis=1))
    examples = of_means / (num_examples * (num_examples - 1))
    known = CrossedErrors(
        examples, np.zeros_like(examples), num_examples, num_examples, num_examples - 1
    )
    if num_seeds == 1:
        return known
    of_all = _squared_distances(*(part.reshape(len(part), -1) for part in (first, second)))
    # The squared distance over all seeds is that of the means, once a seed, and the interaction.
    freedom = (num_seeds - 1) * (num_examples - 1)
    rest = np.maximum(of_all - num_seeds * of_means, 0.0)
    return replace(known, shared=rest / (freedom * num_seeds * num_examples))


def _squared_distances(first: Array, second: Array) -> Array:
    """Return the squared distance of each row from each row of another table."""
    squares = [np.einsum("ij,ij->i", part, part) for part in (first, second)]
    # By one product for all pairs; rounding may give a little less than zero.
    return np.maximum(squares[0][:, None] + squares[1] - 2 * first @ second.T, 0.0)


def joint_errors(seeds: Array, of_seeds: Array, errors: CrossedErrors) -> tuple[Array, Array]:
    """Return squared standard errors over seeds and examples, with Satterthwaite's freedom."""
    examples, shared = errors.examples, errors.shared
    # Estimates of few seeds vary: the interaction can seem larger than what contains it.
    variance = np.maximum(seeds + examples - shared, np.maximum(seeds, examples))
    of_examples = np.maximum(errors.freedom, 1)
    doubt = seeds**2 / of_seeds + examples**2 / of_examples
    doubt = doubt + shared**2 / (of_seeds * of_examples)
    freedom = np.divide(
        variance**2, doubt, out=np.full_like(variance, of_examples), where=doubt > 0
    )
    return variance, freedom


def are_alike(mean: ArrayLike, example_error: ArrayLike) -> NDArray[np.bool_]:
    """Return where all test examples differ by the same amount, so their spread is unknown."""
    # Up to rounding. Without a difference, there is nothing to find.
    return (np.asarray(mean) != 0) & (np.asarray(example_error) <= 1e-6 * np.abs(mean))


def p_values(mean: ArrayLike, variance: ArrayLike, freedom: ArrayLike) -> Array:
    """Return p values; without any spread 0, or 1 if there is no difference either."""
    distance = np.abs(mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        t_values = np.where(distance == 0, 0.0, distance / np.sqrt(variance))
    return 2 * scipy.special.stdtr(freedom, -t_values)


def contrast_errors(
    scores: Scores, weights: Mapping[tuple[str, str], float], seeds: Collection[int]
) -> CrossedErrors:
    """Return the errors over test examples of a weighted sum of scores."""
    # Weights are by names of model and dataset, or average; the sum is averaged over the seeds.
    by_dataset: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (model, dataset), weight in weights.items():
        for member, share in scores.shares(scores.dataset(dataset)).items():
            by_dataset[member][model] += share * weight
    # Datasets may share their examples, such as a task read with several `train_examples`.
    tables: dict[tuple[str, str], Array] = {}
    nums: dict[tuple[str, str], int] = {}
    for name, by_model in by_dataset.items():
        ids, num, table = _summed(scores, name, by_model, seeds)
        key = scores.dataset(name).data or name, ids
        nums[key] = num
        tables[key] = tables.get(key, 0.0) + table
    parts = [squared_errors(table, np.zeros_like(table)) for table in tables.values()]
    return _of_sum(
        [replace(part, num_examples=nums[key]) for key, part in zip(tables, parts, strict=True)]
    )


def _summed(
    scores: Scores, dataset: str, weights: Mapping[str, float], seeds: Collection[int]
) -> tuple[str, int, Array]:
    """Return a hash of examples' names, their number, and a weighted sum of their influences."""
    # The sum is [1, num_seeds, num_examples].
    cells = {model: influences(scores, model, dataset) for model in weights}
    if len({cell.ids_sha256 for cell in cells.values()}) > 1:
        raise DataError(
            f"{dataset}: the models were scored on different examples, or only some of their "
            "results name the clusters"
        )
    if lost := {seed for seed in seeds for cell in cells.values() if seed not in cell.by_seed}:
        raise DataError(f"{dataset}: no examples of seed {min(lost)}")
    parts = [weight * _table([cells[model]], seeds) for model, weight in weights.items()]
    one = next(iter(cells.values()))
    return one.ids_sha256, one.num_examples, np.sum(parts, axis=0)


def pair_errors(scores: Scores, models: Sequence[str], dataset: DatasetInfo) -> CrossedErrors:
    """Return the errors over test examples of all pairs of models, NaN where they are unknown."""
    groups: dict[str, list[str]] = defaultdict(list)
    for member in scores.members(dataset):
        groups[member.data or member.name].append(member.name)
    shares, parts = scores.shares(dataset), []
    for members in groups.values():
        part, square = _group_errors(scores, models, dataset, members), shares[members[0]] ** 2
        parts.append(replace(part, examples=square * part.examples, shared=square * part.shared))
    return _of_sum(parts)


def _of_sum(parts: Sequence[CrossedErrors]) -> CrossedErrors:
    """Return the errors of a sum over sets of examples that are drawn independently."""
    examples = np.sum([part.examples for part in parts], axis=0).ravel()
    shared = np.sum([part.shared for part in parts], axis=0).ravel()
    num_examples, num_clusters = (
        sum(getattr(part, name) for part in parts) for name in ("num_examples", "num_clusters")
    )
    freedom = np.full(len(examples), num_clusters - 1.0)
    if len(parts) > 1:  # one set may cause most of the error: Satterthwaite's freedom
        doubt = np.sum([(part.examples**2 / part.freedom).ravel() for part in parts], axis=0)
        freedom = np.divide(examples**2, doubt, out=freedom, where=doubt > 0)
    return CrossedErrors(examples, shared, num_examples, num_clusters, freedom)


class _Kind(NamedTuple):
    """What models must share: examples, and the seeds with a score and with single examples."""

    ids_sha256: str
    seeds: frozenset[int]
    read: frozenset[int]


def _group_errors(
    scores: Scores, models: Sequence[str], dataset: DatasetInfo, members: Sequence[str]
) -> CrossedErrors:
    """Return the errors of pairs on datasets that share their examples, summed over them."""
    kinds: dict[_Kind, list[int]] = defaultdict(list)
    cells: dict[int, CellInfluences] = {}
    for index, model in enumerate(models):
        try:
            cell = _added([influences(scores, model, member) for member in members])
        except DataError:
            continue
        cells[index] = cell
        seeds = frozenset(scores.get(model, dataset.name).by_seed or {})
        kinds[_Kind(cell.ids_sha256, seeds, frozenset(cell.by_seed))].append(index)
    num_examples = num_clusters = 0
    errors = np.full((2, len(models), len(models)), np.nan)
    for one, other in product(kinds, repeat=2):
        common = one.seeds & other.seeds
        if common and one.ids_sha256 == other.ids_sha256 and common <= one.read & other.read:
            tables = [_table([cells[at] for at in kinds[kind]], common) for kind in (one, other)]
            found, places = squared_errors(*tables), np.ix_(kinds[one], kinds[other])
            errors[0][places], errors[1][places] = found.examples, found.shared
            num_examples, num_clusters = cells[kinds[one][0]].num_examples, tables[0].shape[2]
    examples, shared = errors[:, *np.triu_indices(len(models), k=1)]
    return CrossedErrors(examples, shared, num_examples, num_clusters, max(num_clusters - 1, 1))


def _added(cells: Sequence[CellInfluences]) -> CellInfluences:
    """Return the influences of the same examples on several scores together."""
    if len(cells) == 1:
        return cells[0]
    if len({cell.ids_sha256 for cell in cells}) > 1:
        raise DataError("a model was scored on different examples")
    seeds = set.intersection(*(set(cell.by_seed) for cell in cells))
    by_seed = {seed: np.sum([cell.by_seed[seed] for cell in cells], axis=0) for seed in seeds}
    return replace(cells[0], by_seed=by_seed)


def _table(cells: Sequence[CellInfluences], seeds: Collection[int]) -> NDArray[np.float64]:
    """Return influences as [num_models, num_seeds, num_examples]."""
    return np.stack([np.stack([cell.by_seed[seed] for seed in sorted(seeds)]) for cell in cells])


def influences(scores: Scores, model: str, dataset: str) -> CellInfluences:
    """Return how much each test example of a dataset adds to a model's score, by seed."""
    # Files are read once per table of scores, since averages and comparisons need them repeatedly.
    # Eight bytes are kept for each example of each run.
    key = model, dataset
    if key not in scores.influences:
        if scores.examples is None:
            raise DataError("there are no scores of single examples")
        try:
            examples = scores.examples(model, dataset)
            scores.influences[key] = cell_influences(examples, dataset)
        except DataError as error:
            scores.influences[key] = error
    known = scores.influences[key]
    if isinstance(known, DataError):
        raise DataError(str(known))
    return known


def cell_influences(examples: ExampleScores, dataset: str) -> CellInfluences:
    """Return how much each test example, or cluster of them, adds to a score, by seed."""
    # The jackknife leaves out whole clusters. Its errors hold with clusters of unequal sizes too
    # (Cameron and Miller 2015, "A practitioner's guide to cluster-robust inference", VI.B).
    num, names = len(examples.ids), [*examples.ids]
    groups, num_drawn = None, num
    if 0 < (num_clusters := len({*examples.clusters})) < num:
        groups = np.unique(examples.clusters, return_inverse=True)[1]
        names, num_drawn = [*names, *examples.clusters], num_clusters
    if num_drawn < 2:
        what = "examples" if groups is None else "clusters of examples"
        raise DataError(f"{dataset}: a spread needs two {what} or more")
    by_seed = {
        seed: PERCENT * (run if groups is None else run.grouped(groups)).influences
        for seed, run in examples.by_seed.items()
    }
    return CellInfluences(digest(names), by_seed, num)
