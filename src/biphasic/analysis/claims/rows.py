"""The tidy table of scores, levels by which claims select its rows, and tables derived from it.

The table has a row for each model and dataset, and a column for each factor. Derived tables are
tables of scores too, so the same questions and tests apply: sensitivity to a setting, and scores at
equal FLOPs. They need scores by seed, which a published table lacks.
"""

from __future__ import annotations

import math
import operator
from collections import Counter, defaultdict, namedtuple
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from operator import attrgetter
from statistics import stdev
from typing import Any

from biphasic.analysis.estimate import estimate
from biphasic.analysis.scores.table import ModelInfo, Score, Scores, low_rates, with_averages
from biphasic.analysis.scores.table import grouped as models_by
from biphasic.config import nearest as likely_name

_TEXT_FACTORS = ("size", "objective", "start", "group", "model", "task", "dataset", "optimizer")
NUMBER_FACTORS = ("mask_rate", "steps", "progress", "clm_share", "continued_steps", "extension")
FACTORS = (*_TEXT_FACTORS, *NUMBER_FACTORS)
ORDERED_FACTORS = ("size", *NUMBER_FACTORS)
AVERAGE = "average"
_NOTHING = dict.fromkeys((*FACTORS, "finished", "replicate")) | {
    "mean": math.nan, "half_width": math.nan, "name": "", "terms": {}, "is_scored": False,
    "is_at_end": False,
}  # fmt: skip
Row = namedtuple("Row", _NOTHING, defaults=_NOTHING.values())
Rows = Sequence[Any]  # rows of the table
CLOSE = 1e-9  # published numbers have two decimals; intervals that touch overlap
_SHARE_GRID = 20  # shares of CLM are rounded to 5 %
_MIX = {"objective", "clm_share", "start"}
_CONTINUATION = {"continued_steps", "extension"}


Selection = Mapping[str, Any]
POSITIONS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "smallest": lambda ordered: ordered[:1],
    "middle": lambda ordered: ordered[(len(ordered) - 1) // 2 :][:1],
    "largest": lambda ordered: ordered[-1:],
}
_BOUNDS = {
    "at_least": operator.ge, "at_most": operator.le, "above": operator.gt, "below": operator.lt,
}  # fmt: skip


def rows_of(scores: Scores, groups: Collection[str] = ()) -> Rows:
    """Return every model on every dataset as a row, including those without a score."""
    # A model under several names counts once. Models with equal factors, such as runs that differ
    # in their seed, are numbered in the order of the table; only those with equal numbers are
    # compared. `groups` are headings of the models to include; all if empty. A row has the factors
    # of docs/claims.md, `replicate`, `mean` (NaN without a score) and `half_width` in percentage
    # points, `name` of the model and `terms`: weights by model and dataset of scores in its sum.
    finished = (m for m in scores.models if m.is_final and not m.continued_steps)
    longest = max((m.total_steps for m in finished), default=0)
    of_task = Counter(dataset.task for dataset in scores.datasets)
    once: dict[tuple[str, bool], ModelInfo] = {}
    for model in scores.models:
        if not groups or model.group in groups:
            once.setdefault((model.identity or model.name, model.is_final), model)
    alike: Counter[tuple[Any, ...]] = Counter()
    rows = []
    for model in once.values():
        factors = _factors(model, scores, longest)
        key = tuple(factors.values())
        alike[key] += 1
        factors |= {"replicate": alike[key], "model": model.name, "group": model.group}
        for dataset in scores.datasets:
            score, value = scores.get(model.name, dataset.name), dict[str, Any]()
            if (one := score.estimate) is not None and math.isfinite(one.mean):
                value = {
                    "mean": one.mean,
                    "half_width": math.nan if one.half_width is None else one.half_width,
                    "terms": {(model.name, dataset.name): 1.0},
                    "is_scored": True,
                    "is_at_end": score.is_at_end,
                }
            # A dataset that is alone in its task also counts as its average.
            is_average = dataset.is_average or of_task[dataset.task] == 1
            for name in [dataset.name] * (not dataset.is_average) + [AVERAGE] * is_average:
                shown = scores.written_names[model.name]
                rows.append(Row(**factors, **value, name=shown, task=dataset.task, dataset=name))
    return rows


def weighted(*sides: tuple[float, Any]) -> dict[tuple[str, str], float]:
    """Return the weights of a sum of rows, each a sum of scores by model and dataset."""
    weights: dict[tuple[str, str], float] = defaultdict(float)
    for weight, row in sides:
        for key, of_row in row.terms.items():
            weights[key] += weight * of_row
    return weights


def _factors(model: ModelInfo, scores: Scores, longest: int) -> dict[str, Any]:
    steps, continued = model.total_steps - model.continued_steps, model.continued_steps
    objectives = {other.name: other.objective for other in scores.models} if continued else {}
    begun = objectives.get(model.start or "", model.start) if continued else None
    both = model.clm_steps + model.mlm_steps
    share = model.clm_steps / both if both else None
    if model.clm_steps and model.mlm_steps:  # a mixture is never 0 or 1
        on_grid = round(_SHARE_GRID * model.clm_steps / both)
        share = min(max(on_grid, 1), _SHARE_GRID - 1) / _SHARE_GRID
    return {
        "size": model.size,
        "objective": model.objective,
        "mask_rate": model.mask_rate,
        "steps": float(steps),
        "progress": steps / longest if longest else None,
        "clm_share": share,
        "continued_steps": float(continued),
        "extension": continued / steps if steps else None,
        "start": begun or model.objective,
        "optimizer": model.optimizer,
        "finished": model.is_final,
    }


def size_order(models: Iterable[ModelInfo]) -> dict[str, float] | None:
    """Return numbers that order the sizes; None if parameter counts are unknown."""
    order: dict[str, float] = {}
    for model in models:
        number = math.inf if model.parameters is None else model.parameters
        order[model.size] = min(number, order.get(model.size, math.inf))
    return order if math.inf not in order.values() or len(order) < 2 else None


def held_factors(named: Collection[str]) -> list[str]:
    """Return the factors that must be equal between rows, given the ones that differ."""
    # Some factors follow from others. The objective determines the share of CLM and, for a finished
    # model, the start of continued training; continuing changes the objective and the share.
    names = set(named)
    held = {"task", "dataset"}
    if "model" not in names:
        held |= {"size", "mask_rate", "steps", "finished", "continued_steps", "optimizer"}
        held.add("replicate")
        if not names & _MIX:
            held |= {"start"} if names & _CONTINUATION else _MIX
        if "progress" in names:
            held.discard("steps")
        if names & _CONTINUATION:
            held.discard("continued_steps")
    if "task" in names:
        held.discard("dataset")
    return sorted(held - names)


def grouped(rows: Rows, held: Sequence[str]) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Divide rows into groups that agree; a row without a masking rate is in those of all rates."""
    firm = [factor for factor in held if factor != "mask_rate"]
    buckets: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for row in rows:
        buckets[tuple(getattr(row, factor) for factor in firm)].append(row)
    for key, bucket in buckets.items():
        shared = dict(zip(firm, key, strict=True))
        if "mask_rate" not in held:
            yield shared, bucket
            continue
        for rate in sorted({row.mask_rate for row in bucket} - {None}) or [None]:
            there = [row for row in bucket if row.mask_rate in {rate, None}]
            yield {**shared, "mask_rate": rate}, there


def merged(row: Any, partner: Any, held: Sequence[str]) -> dict[str, Any]:
    """Return the held factors of two rows, from the second where the first has none."""
    mine = {factor: getattr(row, factor) for factor in held}
    return {f: getattr(partner, f) if mine[f] is None else mine[f] for f in held}


def factor_text(factor: str) -> str:
    """Return the display name of a factor."""
    return {"mask_rate": "masking rate", "clm_share": "CLM share"}.get(
        factor, factor.replace("_", " ")
    )


def level_text(factor: str, level: Any) -> str:
    """Return the display text of a level."""
    if isinstance(level, bool) or not isinstance(level, int | float):
        return str(level) if level != "" else f"unnamed {factor}"
    return f"{level:,.0f}" if factor in {"steps", "continued_steps"} else f"{level:.3g}"


@dataclass(frozen=True)
class Levels:
    """Levels of a factor: a text, and a function from all available levels to the selected ones."""

    text: str
    pick: Callable[[list[Any]], list[Any]]
    values: tuple[Any, ...] = ()  # explicit levels; those that the table lacks are reported
    is_relative: bool = False  # one level, resolved among rows that match the rest of the selection


def bounds(**limits: float) -> Levels:
    """Select all levels within `at_least`, `at_most`, `above` and `below`."""
    if not limits:
        raise ValueError("bounds: give at least one")
    tests = [(_BOUNDS[known(name, _BOUNDS, "bound")], limit) for name, limit in limits.items()]
    text = ", ".join(f"{name.replace('_', ' ')} {limit:g}" for name, limit in limits.items())
    return Levels(
        text, lambda available: [x for x in available if all(t(x, limit) for t, limit in tests)]
    )


def nearest(value: float, *, within: float = float("inf")) -> Levels:
    """Select the level closest to a value, at a distance of at most `within`."""

    def pick(available: list[float]) -> list[float]:
        closest = sorted(available, key=lambda level: (round(abs(level - value), 9), level))[:1]
        return [level for level in closest if abs(level - value) <= within + CLOSE]

    near = f" within {within:g}" if within < float("inf") else ""
    return Levels(f"nearest {value:g}{near}", pick, is_relative=True)


def levels(factor: str, given: Any) -> Levels:
    """Return the levels for a value, a list of values or a position."""
    known(factor, (*FACTORS, "finished"))
    if factor == "finished":
        if not isinstance(given, bool):
            raise ValueError(f"finished: {given!r} is neither True nor False")
        return Levels("", lambda available: [given] if given in available else [], (given,))
    if isinstance(given, str) and given in POSITIONS:
        given = Levels(given, POSITIONS[given], is_relative=True)
    if isinstance(given, Levels):
        if factor not in NUMBER_FACTORS and (factor != "size" or given.text not in POSITIONS):
            raise ValueError(f"{factor}: has no order; give a name or a list of names")
        return given
    values = tuple(given) if isinstance(given, list | tuple | set) else (given,)
    kind, name = (int | float, "number") if factor in NUMBER_FACTORS else (str, "name")
    if not values or not all(isinstance(v, kind) and not isinstance(v, bool) for v in values):
        raise ValueError(f"{factor}: {given!r} is neither a {name} nor a list of {name}s")

    def pick(available: list[Any]) -> list[Any]:
        if kind is str:
            return [level for level in available if level in values]
        return [x for x in available if any(abs(x - value) <= CLOSE for value in values)]

    return Levels(" or ".join(v if kind is str else f"{v:g}" for v in values), pick, values)


def selected(selection: Selection) -> dict[str, Levels]:
    """Return the levels of a selection: those of one value relative to the others come last."""
    found = {factor: levels(factor, given) for factor, given in selection.items()}
    order = [name for name in ("finished", *FACTORS) if name in found]
    return {name: found[name] for name in sorted(order, key=lambda name: found[name].is_relative)}


def known(name: str, names: Collection[str], what: str = "factor") -> str:
    """Return a name if it is known, else raise ValueError."""
    if name not in names:
        raise ValueError(f"no {what} '{name}'{likely_name(name, names)}")
    return name


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
    for alike in models_by(masked, attrgetter("size", "total_steps", "optimizer")).values():
        recipes = models_by(alike, attrgetter("clm_steps", "pretraining_seeds")).values()
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
        for path in models_by(states, lambda model: (model.mask_rate, run_of(model))).values()
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
