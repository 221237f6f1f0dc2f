"""The tidy table for claims: a row per model and dataset, a column per factor.

Rows are selected by levels of factors, which are Python values or predicates.
"""

from __future__ import annotations

import math
import operator
from collections import Counter, defaultdict, namedtuple
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from biphasic.analysis.scores.table import ModelInfo, Score, Scores
from biphasic.config import nearest as _likely

TEXT_FACTORS = ("size", "objective", "start", "group", "model", "task", "dataset")
NUMBER_FACTORS = ("mask_rate", "steps", "progress", "clm_share", "continued_steps", "extension")
AVERAGE = "average"
FACTORS = (*TEXT_FACTORS, *NUMBER_FACTORS)
ORDERED_FACTORS = ("size", *NUMBER_FACTORS)
_NOTHING = dict.fromkeys((*FACTORS, "finished", "replicate")) | {
    "mean": math.nan, "half_width": math.nan, "name": "", "missing": "", "terms": (),
    "is_scored": False,
}  # fmt: skip
Row = namedtuple("Row", _NOTHING, defaults=_NOTHING.values())
Rows = Sequence[Any]
"""Rows of the table."""
Selection = Mapping[str, Any]
CLOSE = 1e-9  # published numbers have two decimals; intervals that touch overlap
POSITIONS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "smallest": lambda ordered: ordered[:1],
    "middle": lambda ordered: ordered[(len(ordered) - 1) // 2 :][:1],
    "largest": lambda ordered: ordered[-1:],
}
_BOUNDS = {
    "at_least": operator.ge, "at_most": operator.le, "above": operator.gt, "below": operator.lt,
}  # fmt: skip
_SPEAKING = {"objective", "size", "task", "model"}
"""Factors whose levels are self-explanatory."""
_NAMES = {
    "mask_rate": "masking rate", "clm_share": "share of CLM", "continued_steps": "continued steps",
}  # fmt: skip
_SHARE_GRID = 20  # shares of CLM are rounded to 5 %
_MIX = {"objective", "clm_share", "start"}
_CONTINUATION = {"continued_steps", "extension"}


class Term(NamedTuple):
    """A score in a weighted sum of scores."""

    weight: float
    model: str
    dataset: str


def rows_of(scores: Scores, groups: Collection[str] = ()) -> Rows:
    """Return every model on every dataset as a row, including those without a score.

    A model under several names counts once. Models with equal factors, such as runs that differ in
    their seed, are numbered in the order of the table; only those with equal numbers are compared.
    `groups` are headings of the models to include; all if empty. A row has the factors of
    docs/claims.md, `replicate`, `mean` and `half_width` in percentage points, `name` of the model,
    `missing` (why there is no mean, or why it may change) and `terms`, the weighted scores whose
    sum it is.
    """
    finished = (m for m in scores.models if m.is_final and not m.continued_steps)
    longest = max((m.total_steps for m in finished), default=0)
    members = Counter(dataset.task for dataset in scores.datasets if not dataset.is_average)
    averaged = {dataset.task for dataset in scores.averages}
    labels = Counter(model.label for model in scores.models)
    seen: set[tuple[str, bool]] = set()
    alike: Counter[tuple[Any, ...]] = Counter()
    rows = []
    for model in scores.models:
        identity = (model.identity or model.name, model.is_final)
        if identity in seen or (groups and model.group not in groups):
            continue
        seen.add(identity)
        factors = _factors(model, scores, longest)
        key = tuple(factors.values())
        alike[key] += 1
        # The name of a recipe is that of its first run, so its label is shown if it is unique.
        is_recipe = scores.num_pretraining_runs > 1 and labels[model.label] == 1
        factors |= {"replicate": alike[key], "model": model.name, "group": model.group}
        factors |= {"name": model.label if is_recipe else model.name}
        for dataset in scores.datasets:
            row = Row(**factors, task=dataset.task)
            row = _with_score(row, scores.get(model.name, dataset.name), dataset.name)
            if not dataset.is_average:
                rows.append(row._replace(dataset=dataset.name))
            # A dataset that is alone in its task also counts as its average.
            if dataset.is_average or (members[dataset.task] == 1 and dataset.task not in averaged):
                rows.append(row._replace(dataset=AVERAGE))
    return rows


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
        "finished": model.is_final,
    }


def _with_score(row: Any, score: Score, dataset: str) -> Any:
    estimate = score.estimate
    if estimate is None or not math.isfinite(estimate.mean):
        return row._replace(missing=f"{row.name} has no score on {dataset}")
    return row._replace(
        mean=estimate.mean,
        half_width=math.nan if estimate.half_width is None else estimate.half_width,
        missing="" if score.is_complete else f"{row.name} on {dataset}: some runs are missing",
        terms=(Term(1.0, row.model, dataset),),
        is_scored=True,
    )


def size_order(models: Iterable[ModelInfo]) -> dict[str, float] | None:
    """Return numbers that order the sizes; None if parameter counts are unknown."""
    order: dict[str, float] = {}
    for model in models:
        number = math.inf if model.parameters is None else model.parameters
        order[model.size] = min(number, order.get(model.size, math.inf))
    return order if math.inf not in order.values() or len(order) < 2 else None


def held_factors(named: Collection[str]) -> list[str]:
    """Return the factors that must be equal between rows, given the ones that differ.

    Some factors follow from others. The objective determines the share of CLM and, for a finished
    model, the start of continued training; continuing changes the objective and the share.
    """
    names = set(named)
    held = {"task", "dataset"}
    if "model" not in names:
        held |= {"size", "mask_rate", "steps", "finished", "continued_steps", "replicate"}
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
    """Divide rows into groups that agree in the held factors.

    A row without a masking rate belongs to the group of every rate of the others.
    """
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


@dataclass(frozen=True)
class Levels:
    """Levels of a factor: a text, and a function from all available levels to the selected ones."""

    text: str
    pick: Callable[[list[Any]], list[Any]]
    values: tuple[Any, ...] = ()
    """Explicit levels; those that the table lacks are reported."""
    is_relative: bool = False
    """Whether it is one level, resolved among the rows that match the rest of the selection."""
    within: str = ""


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
    return Levels(f"nearest {value:g}", pick, is_relative=True, within=near)


def levels(factor: str, given: Any) -> Levels:
    """Return the levels for a value, a list of values or a position."""
    known(factor, FACTORS)
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
    """Return the levels of a selection, except `finished`."""
    for factor in selection:
        known(factor, (*FACTORS, "finished"))
    if not isinstance(selection.get("finished", True), bool):
        raise ValueError(f"finished: {selection['finished']!r} is neither True nor False")
    return {name: levels(name, selection[name]) for name in FACTORS if name in selection}


def known(name: str, names: Collection[str], what: str = "factor") -> str:
    """Return a name if it is known, else raise ValueError."""
    if name not in names:
        raise ValueError(f"no {what} '{name}'{_likely(name, names)}")
    return name


def factor_name(factor: str) -> str:
    """Return the display name of a factor."""
    return _NAMES.get(factor, factor)


def level_text(factor: str, level: Any) -> str:
    """Return the display text of a level."""
    if isinstance(level, bool) or not isinstance(level, int | float):
        return str(level) if level != "" else f"unnamed {factor}"
    return f"{level:,.0f}" if factor in {"steps", "continued_steps"} else f"{level:.3g}"


def describe(selection: Selection) -> str:
    """Format a selection for display: `MLM, masking rate nearest 0.4`."""
    parts = [phrase(factor, chosen) for factor, chosen in selected(selection).items()]
    if "finished" in selection:
        parts.append("finished" if selection["finished"] else "intermediate")
    return ", ".join(parts)


def phrase(factor: str, chosen: Levels) -> str:
    """Format the levels of a factor."""
    if chosen.text in {*POSITIONS, "each"}:
        return f"{chosen.text} {factor_name(factor)}"
    return chosen.text if factor in _SPEAKING else f"{factor_name(factor)} {chosen.text}"
