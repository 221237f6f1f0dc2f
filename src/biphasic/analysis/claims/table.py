"""The tidy table for claims: a row per model and dataset, a column per factor."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, namedtuple
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Scores

if TYPE_CHECKING:
    from pandas import DataFrame

TEXT_FACTORS = ("size", "objective", "start", "group", "model", "task", "dataset")
NUMBER_FACTORS = ("mask_rate", "steps", "progress", "clm_share", "continued_steps", "extension")
AVERAGE = "average"
_FACTORS = (*TEXT_FACTORS, *NUMBER_FACTORS, "finished", "replicate")
_NOTHING = dict.fromkeys(_FACTORS) | {
    "mean": math.nan, "half_width": math.nan, "name": "", "missing": "", "terms": ()
}  # fmt: skip
Row = namedtuple("Row", _NOTHING, defaults=_NOTHING.values())
Rows = Sequence[Any]
"""Rows of the table."""
_SHARE_GRID = 20  # shares of CLM are rounded to 5 %
_MIX = {"objective", "clm_share", "start"}
_CONTINUATION = {"continued_steps", "extension"}


class Term(NamedTuple):
    """A score in a weighted sum of scores."""

    weight: float
    model: str
    dataset: str


def row_of(row: Any, **values: Any) -> Any:
    """Return a row with some values, and None for all others."""
    return row._replace(**(_NOTHING | values))


def tidy(rows: Rows) -> DataFrame:
    """Return rows as a table, with the columns of `rows_of`."""
    import pandas as pd  # noqa: PLC0415 - slow to load, and rarely needed

    # Texts stay objects: Arrow cannot encode all names from disk.
    frame = pd.DataFrame(rows, columns=[*_NOTHING], dtype=object)
    return frame.astype({"mean": float, "half_width": float})


def rows_of(scores: Scores, groups: Collection[str] = ()) -> Rows:
    """Return every model on every dataset as a row, including those without a score.

    A model under several names counts once. Models with equal factors, such as runs that differ in
    their seed, are numbered in the order of the table; only those with equal numbers are compared.
    `groups` are headings of the models to include; all if empty.

    Returns:
        The factors of docs/claims.md, `replicate`, `mean` and `half_width` in percentage points,
        `name` of the model, `missing` (why there is no mean, or why it may change) and `terms`, the
        weighted scores whose sum it is.
    """
    finished = (m for m in scores.models if m.is_final and not m.continued_steps)
    longest = max((m.total_steps for m in finished), default=0)
    members = Counter(dataset.task for dataset in scores.datasets if not dataset.is_average)
    averaged = {dataset.task for dataset in scores.averages}
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
        factors |= {"replicate": alike[key], "model": model.name, "group": model.group}
        for dataset in scores.datasets:
            cell = {**factors, "task": dataset.task, **_numbers(scores, model, dataset)}
            if not dataset.is_average:
                rows.append(Row(**cell, dataset=dataset.name))
            # A dataset that is alone in its task also counts as its average.
            if dataset.is_average or (members[dataset.task] == 1 and dataset.task not in averaged):
                rows.append(Row(**cell, dataset=AVERAGE))
    return rows


def _factors(model: ModelInfo, scores: Scores, longest: int) -> dict[str, Any]:
    steps, continued = model.total_steps - model.continued_steps, model.continued_steps
    objectives = {other.name: other.objective for other in scores.models} if continued else {}
    begun = objectives.get(model.start or "", model.start) if continued else None
    both = model.clm_steps + model.mlm_steps
    share = model.clm_steps / both if both else None
    if model.clm_steps and model.mlm_steps:  # a mixture is never 0 or 1
        nearest = round(_SHARE_GRID * model.clm_steps / both)
        share = min(max(nearest, 1), _SHARE_GRID - 1) / _SHARE_GRID
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


def _numbers(scores: Scores, model: ModelInfo, dataset: DatasetInfo) -> dict[str, Any]:
    score = scores.get(model.name, dataset.name)
    estimate = score.estimate if score is not None else None
    if score is None or estimate is None or not math.isfinite(estimate.mean):
        reason = f"{model.name} has no score on {dataset.name}"
        return {"name": model.name, "missing": reason, "terms": ()}
    missing = "" if score.is_complete else f"{model.name} on {dataset.name}: some runs are missing"
    terms = (Term(1.0, model.name, dataset.name),)
    half_width = math.nan if estimate.half_width is None else estimate.half_width
    numbers = {"mean": estimate.mean, "half_width": half_width}
    return {**numbers, "name": model.name, "missing": missing, "terms": terms}


def size_order(models: Iterable[ModelInfo]) -> dict[str, float] | None:
    """Return numbers that order the sizes; None if parameter counts are unknown."""
    order: dict[str, float] = {}
    for model in models:
        known = math.inf if model.parameters is None else model.parameters
        order[model.size] = min(known, order.get(model.size, math.inf))
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
