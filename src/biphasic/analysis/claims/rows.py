"""The tidy table of scores: a row for each model and dataset, a column for each factor."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, namedtuple
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from biphasic.analysis.scores.table import ModelInfo, Scores

TEXT_FACTORS = ("size", "objective", "start", "group", "model", "task", "dataset", "optimizer")
NUMBER_FACTORS = ("mask_rate", "steps", "progress", "clm_share", "continued_steps", "extension")
FACTORS = (*TEXT_FACTORS, *NUMBER_FACTORS)
ORDERED_FACTORS = ("size", *NUMBER_FACTORS)
AVERAGE = "average"
_NOTHING = dict.fromkeys((*FACTORS, "finished", "replicate")) | {
    "mean": math.nan, "half_width": math.nan, "name": "", "terms": (), "is_scored": False,
}  # fmt: skip
Row = namedtuple("Row", _NOTHING, defaults=_NOTHING.values())
Rows = Sequence[Any]  # rows of the table
CLOSE = 1e-9  # published numbers have two decimals; intervals that touch overlap
_SHARE_GRID = 20  # shares of CLM are rounded to 5 %
_MIX = {"objective", "clm_share", "start"}
_CONTINUATION = {"continued_steps", "extension"}


class Term(NamedTuple):
    """A score in a weighted sum of scores."""

    weight: float
    model: str
    dataset: str


def rows_of(scores: Scores, groups: Collection[str] = ()) -> Rows:
    """Return every model on every dataset as a row, including those without a score."""
    # A model under several names counts once. Models with equal factors, such as runs that differ
    # in their seed, are numbered in the order of the table; only those with equal numbers are
    # compared. `groups` are headings of the models to include; all if empty. A row has the factors
    # of docs/claims.md, `replicate`, `mean` (NaN without a score) and `half_width` in percentage
    # points, `name` of the model and `terms`, the weighted scores whose sum it is.
    finished = (m for m in scores.models if m.is_final and not m.continued_steps)
    longest = max((m.total_steps for m in finished), default=0)
    of_task = Counter(dataset.task for dataset in scores.datasets)
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
        factors |= {"name": scores.written_names[model.name]}
        for dataset in scores.datasets:
            row = Row(**factors, task=dataset.task)
            one = scores.get(model.name, dataset.name).estimate
            if one is not None and math.isfinite(one.mean):
                half_width = math.nan if one.half_width is None else one.half_width
                terms = (Term(1.0, model.name, dataset.name),)
                row = row._replace(
                    mean=one.mean, half_width=half_width, terms=terms, is_scored=True
                )
            if not dataset.is_average:
                rows.append(row._replace(dataset=dataset.name))
            # A dataset that is alone in its task also counts as its average.
            if dataset.is_average or of_task[dataset.task] == 1:
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
