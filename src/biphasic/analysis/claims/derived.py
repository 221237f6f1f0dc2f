"""Tables derived from scores by seed: sensitivity to a setting, and scores at equal FLOPs.

They are tables of scores, so the same questions and tests apply. A published table has no scores by
seed, so its derived tables are empty.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from operator import attrgetter
from statistics import stdev

from biphasic.analysis.estimate import estimate
from biphasic.analysis.scores.table import (
    ModelInfo,
    Score,
    Scores,
    grouped,
    low_rates,
    with_averages,
)


def rate_spreads(scores: Scores) -> Scores:
    """Return the standard deviation over learning rates of fine-tuning, as scores."""
    # None of a model without scores at a rate of others: one that diverged there is not stable.
    rates: dict[str, set[float]] = defaultdict(set)
    for (_, dataset), score in scores.cells.items():
        rates[dataset].update(score.by_rate)
    needed = {name: low_rates(tried) for name, tried in rates.items()}
    spreads = {
        key: score.rate_spread
        for key, score in scores.cells.items()
        if needed[key[1]] <= score.by_rate.keys()
    }
    return _derived(scores, scores.models, spreads)


def mask_rate_spreads(scores: Scores) -> Scores:
    """Return the standard deviation over masking rates, as scores of MLM, and of CLM then MLM."""
    # Models of one size and length are compared, at the rates that all of these recipes have.
    masked = [
        model for model in scores.distinct
        if model.objective in {"MLM", "CLM+MLM"} and model.mask_rate is not None
        and model.is_final and not model.continued_steps
    ]  # fmt: skip
    models, spreads = [], {}
    for alike in grouped(masked, attrgetter("size", "total_steps", "optimizer")).values():
        recipes = grouped(alike, attrgetter("clm_steps", "pretraining_seeds")).values()
        recipes = [recipe for recipe in recipes if len(recipe) > 1]
        rates = [{model.mask_rate for model in recipe} for recipe in recipes]
        common = set.intersection(*rates) if rates else set()
        if len(recipes) < 2 or len(common) < 2:
            continue
        for recipe in recipes:
            names = [model.name for model in recipe if model.mask_rate in common]
            models += [replace(model, mask_rate=None) for model in recipe if model.name == names[0]]
            for dataset, values in _by_seed(scores, names):
                spreads[names[0], dataset] = {seed: stdev(every) for seed, every in values.items()}
    return _derived(scores, models, spreads)


def at_equal_flops(scores: Scores) -> Scores:
    """Return intermediate states of CLM, and MLM interpolated at the FLOPs of each."""
    # Interpolated scores are linear in the logarithm of FLOPs between neighbouring states of MLM,
    # and have the steps of the state of CLM. Beyond the states of MLM there are none.
    way = [(model, model.flops) for model in scores.distinct if not model.is_final and model.flops]
    flops = {model.name: math.log(number) for model, number in way}
    targets, states = ([m for m, _ in way if m.objective == name] for name in ("CLM", "MLM"))
    values = {key: score.by_seed for key, score in scores.cells.items() if key[0] in flops}
    run_of = attrgetter("size", "optimizer", "pretraining_seeds")
    steps = [
        pair
        for path in grouped(states, lambda model: (model.mask_rate, run_of(model))).values()
        for pair in pairwise(sorted(path, key=lambda model: flops[model.name]))
    ]
    # Finished models have no scores here; shares of the training are relative to their lengths.
    finished = [model for model in scores.distinct if model.is_final] if targets else []
    models = [*targets, *finished]
    for target, (before, after) in product(targets, steps):
        first, at, last = (flops[model.name] for model in (before, target, after))
        if run_of(before) != run_of(target) or not first <= at < last:
            continue
        name, share = f"{before.name} at the FLOPs of {target.name}", (at - first) / (last - first)
        label = f"MLM at the FLOPs of {target.label}"
        steps_ = target.total_steps
        models.append(replace(before, name=name, label=label, identity=name, total_steps=steps_))
        for dataset, ends in _by_seed(scores, [before.name, after.name]):
            values[name, dataset] = {
                seed: (1 - share) * low + share * high for seed, (low, high) in ends.items()
            }
    return _derived(scores, models, values)


def _by_seed(scores: Scores, names: Sequence[str]) -> Iterable[tuple[str, dict[int, list[float]]]]:
    """Return for each dataset the scores of each seed that all models have."""
    for dataset in scores.datasets:
        cells = [scores.get(name, dataset.name).by_seed or {} for name in names]
        seeds = sorted(set.intersection(*map(set, cells)))
        yield dataset.name, {seed: [cell[seed] for cell in cells] for seed in seeds}


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
    alone = replace(scores, models=tuple(models), cells=cells, examples=None, runs=None)
    return with_averages(alone)
