"""Tables derived from scores by seed: sensitivity to a setting, and scores at equal FLOPs.

They are tables of scores, so the same questions and tests apply. A published table has no scores by
seed, so its derived tables are empty.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, product
from statistics import stdev

from biphasic.analysis.estimate import estimate
from biphasic.analysis.scores.table import ModelInfo, Score, Scores, with_averages


def rate_spreads(scores: Scores) -> Scores:
    """Return the standard deviation over learning rates of fine-tuning, as scores."""
    spreads = {key: score.rate_spread for key, score in scores.cells.items()}
    return _derived(scores, scores.models, spreads)


def mask_rate_spreads(scores: Scores) -> Scores:
    """Return the standard deviation over masking rates, as scores of MLM, and of CLM then MLM.

    Models of one size and length are compared, at the rates that all of these recipes have.
    """
    masked = [model for model in scores.distinct if _is_varied(model)]
    models, spreads = [], {}
    for alike in _grouped(masked, "size", "total_steps"):
        recipes = [
            group for group in _grouped(alike, "clm_steps", "pretraining_seeds") if group[1:]
        ]
        rates = [{model.mask_rate for model in recipe} for recipe in recipes]
        common = set.intersection(*rates) if rates else set()
        if len(recipes) < 2 or len(common) < 2:
            continue
        for recipe in recipes:
            members = [model for model in recipe if model.mask_rate in common]
            models.append(dataclasses.replace(members[0], mask_rate=None))
            for dataset in scores.datasets:
                cells = [scores.get(model.name, dataset.name).by_seed for model in members]
                spreads[members[0].name, dataset.name] = {
                    seed: stdev(values) for seed, values in _by_seed(cells)
                }
    return _derived(scores, models, spreads)


def at_equal_flops(scores: Scores) -> Scores:
    """Return intermediate states of CLM, and MLM interpolated at the FLOPs of each.

    Interpolated scores are linear in the logarithm of FLOPs between neighbouring states of MLM, and
    have the steps of the state of CLM. Beyond the states of MLM there are none.
    """
    way = [model for model in scores.distinct if not model.is_final and model.flops]
    targets = [model for model in way if model.objective == "CLM"]
    values = {
        (model.name, dataset.name): scores.get(model.name, dataset.name).by_seed
        for model in targets
        for dataset in scores.datasets
    }
    states = [model for model in way if model.objective == "MLM"]
    steps = [
        pair
        for path in _grouped(states, "size", "mask_rate", "pretraining_seeds")
        for pair in pairwise(sorted(path, key=lambda model: model.flops or 0.0))
    ]
    # Finished models have no scores here; shares of the training are relative to their lengths.
    models = [*targets, *(model for model in scores.distinct if model.is_final)]
    for target, (before, after) in product(targets, steps):
        if not _is_between(before, target, after):
            continue
        name = f"{before.name} at the FLOPs of {target.name}"
        names = {"name": name, "label": f"MLM at the FLOPs of {target.label}", "identity": name}
        models.append(dataclasses.replace(before, **names, total_steps=target.total_steps))
        share = _log_ratio(target, before) / _log_ratio(after, before)
        for dataset in scores.datasets:
            ends = [scores.get(end.name, dataset.name).by_seed for end in (before, after)]
            values[name, dataset.name] = {
                seed: (1 - share) * first + share * second
                for seed, (first, second) in _by_seed(ends)
            }
    return _derived(scores, models, values)


def _is_varied(model: ModelInfo) -> bool:
    is_masked = model.objective in {"MLM", "CLM+MLM"} and model.mask_rate is not None
    return is_masked and model.is_final and not model.continued_steps


def _is_between(before: ModelInfo, target: ModelInfo, after: ModelInfo) -> bool:
    of_one_run = (before.size, before.pretraining_seeds) == (target.size, target.pretraining_seeds)
    return of_one_run and (before.flops or 0.0) <= (target.flops or 0.0) < (after.flops or 0.0)


def _log_ratio(model: ModelInfo, base: ModelInfo) -> float:
    return math.log((model.flops or 1.0) / (base.flops or 1.0))


def _grouped(models: Iterable[ModelInfo], *factors: str) -> list[list[ModelInfo]]:
    groups: dict[tuple[object, ...], list[ModelInfo]] = {}
    for model in models:
        groups.setdefault(tuple(getattr(model, factor) for factor in factors), []).append(model)
    return [*groups.values()]


def _by_seed(cells: Sequence[Mapping[int, float] | None]) -> list[tuple[int, list[float]]]:
    """Return the values of each seed that all cells have."""
    known = [cell or {} for cell in cells]
    seeds = set.intersection(*map(set, known))
    return [(seed, [cell[seed] for cell in known]) for seed in sorted(seeds)]


def _derived(
    scores: Scores,
    models: Sequence[ModelInfo],
    values: Mapping[tuple[str, str], Mapping[int, float] | None],
) -> Scores:
    cells = {
        key: Score(estimate([*by_seed.values()], convention=scores.convention), by_seed)
        for key, by_seed in values.items()
        if by_seed
    }
    datasets = tuple(dataset for dataset in scores.datasets if not dataset.is_average)
    table = dataclasses.replace(
        scores, models=tuple(models), datasets=datasets, cells=cells, examples=None, runs=None
    )
    return with_averages(table)
