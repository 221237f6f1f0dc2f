"""Scores as rows: one number each, with the factors that it belongs to."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from biphasic.analysis.claims.selection import AVERAGE
from biphasic.analysis.score_table import DatasetInfo, ModelInfo, Scores
from biphasic.errors import DataError

if TYPE_CHECKING:
    from biphasic.analysis.claims.differences import Differences

Level = str | float | bool
_SHARE_GRID = 20  # shares of CLM are told apart in steps of 5 %
REPLICATE = "replicate"


class Term(NamedTuple):
    """A score in a weighted sum of scores."""

    weight: float
    model: str
    dataset: str

    def times(self, factor: float) -> Term:
        """Return the same score with another weight."""
        return self._replace(weight=factor * self.weight)


@dataclass(frozen=True)
class Row:
    """A score, or what was computed of scores."""

    factors: Mapping[str, Level | None]
    """None: the model has no such factor, as CLM has no masking rate. Absent: the row stands for
    several levels of it."""
    mean: float | None
    """In percent points, or a level of a factor; None where the table lacks what it takes."""
    half_width: float | None = None
    name: str = ""
    """Of the models behind it."""
    missing: str = ""
    """Why there is no mean, or why it may still change."""
    kind: Literal["score", "difference", "level"] = "score"
    terms: tuple[Term, ...] = ()
    """The scores whose sum it is; empty of levels."""

    @property
    def number(self) -> float:
        """The mean.

        Raises:
            DataError: There is none.
        """
        if self.mean is None:
            raise DataError(self.missing)
        return self.mean

    def text(self) -> str:
        """Write the number: `87.85 (0.13)`; a difference with its sign."""
        if self.mean is None:
            return "?"
        if self.kind == "difference":
            return f"{self.mean:+.2f}"
        if self.kind == "level":
            return f"{self.mean:g}"
        interval = "" if self.half_width is None else f" ({self.half_width:.2f})"
        return f"{self.mean:.2f}{interval}"


@dataclass(frozen=True)
class Table:
    """All rows of a table of scores, and the order of its sizes."""

    rows: tuple[Row, ...]
    sizes: tuple[str, ...]
    """Smallest first."""
    has_size_order: bool
    """False where numbers of parameters are unknown: then sizes have no order."""
    differences: Differences | None = None
    """Tests of the scores; None of a published table, of which only means and half-widths are
    known."""

    def rank(self, factor: str, level: Level | None) -> float:
        """Return a number that orders the levels of a factor."""
        if factor == "size":
            return float(self.sizes.index(str(level)))
        return float(level) if isinstance(level, int | float) else math.nan


def table_of(
    scores: Scores,
    *,
    groups: Sequence[str] | None = None,
    differences: Differences | None = None,
) -> Table:
    """Return every model on every dataset as a row, also where there is no score.

    A model under several names counts once. Models alike in all factors, such as runs that differ
    in their seed, are numbered in the order of the table; only those of one number are compared.

    Args:
        scores: The table.
        groups: Headings that models must stand under; None for all.
        differences: Tests of the scores, if they can be tested.
    """
    longest = max(
        (_own_steps(m) for m in scores.models if m.is_final and not m.continued_steps), default=0
    )
    objectives = {model.name: model.objective for model in scores.models}
    models = [model for model in scores.models if groups is None or model.group in groups]
    sizes, has_order = _ordered_sizes(models)
    single = _only_datasets(scores.datasets)
    rows: list[Row] = []
    for model, factors in _numbered(models, longest=longest, objectives=objectives):
        for dataset in scores.datasets:
            rows += [
                _row(scores, model, dataset, {**factors, "task": dataset.task, "dataset": name})
                for name in _dataset_names(dataset, single)
            ]
    return Table(tuple(rows), sizes, has_order, differences)


def _numbered(
    models: Sequence[ModelInfo], *, longest: int, objectives: Mapping[str, str]
) -> Iterator[tuple[ModelInfo, dict[str, Level | None]]]:
    seen: set[tuple[str, bool]] = set()
    alike: Counter[tuple[Level | None, ...]] = Counter()
    for model in models:
        identity = (model.identity or model.name, model.is_final)
        if identity in seen:
            continue
        seen.add(identity)
        factors = _model_factors(model, longest=longest, objectives=objectives)
        key = tuple(factors[name] for name in sorted(factors))
        alike[key] += 1
        yield model, {**factors, REPLICATE: float(alike[key]), "model": model.name}


def _own_steps(model: ModelInfo) -> int:
    return model.total_steps - model.continued_steps


def _model_factors(
    model: ModelInfo, *, longest: int, objectives: Mapping[str, str]
) -> dict[str, Level | None]:
    steps = _own_steps(model)
    begun = objectives.get(model.start or "", model.start) if model.continued_steps else None
    return {
        "size": model.size,
        "objective": model.objective,
        "mask_rate": model.mask_rate,
        "steps": float(steps),
        "progress": steps / longest if longest else None,
        "clm_share": _clm_share(model),
        "continued_steps": float(model.continued_steps),
        "extension": model.continued_steps / steps if steps else None,
        "start": begun or model.objective,
        "finished": model.is_final,
    }


def _clm_share(model: ModelInfo) -> float | None:
    both = model.clm_steps + model.mlm_steps
    if not both:
        return None
    if not (model.clm_steps and model.mlm_steps):
        return float(bool(model.clm_steps))
    nearest = round(_SHARE_GRID * model.clm_steps / both)
    return min(max(nearest, 1), _SHARE_GRID - 1) / _SHARE_GRID


def _ordered_sizes(models: Sequence[ModelInfo]) -> tuple[tuple[str, ...], bool]:
    parameters: dict[str, list[int | None]] = defaultdict(list)
    for model in models:
        parameters[model.size].append(model.parameters)
    known = {
        size: min(number for number in numbers if number is not None)
        for size, numbers in parameters.items()
        if any(number is not None for number in numbers)
    }
    if len(known) < len(parameters):
        return tuple(parameters), len(parameters) < 2
    return tuple(sorted(known, key=lambda size: known[size])), True


def _only_datasets(datasets: Sequence[DatasetInfo]) -> set[str]:
    """Return the datasets that are alone in their task and so stand for its average too."""
    members = Counter(dataset.task for dataset in datasets if not dataset.is_average)
    averaged = {dataset.task for dataset in datasets if dataset.is_average}
    return {
        dataset.name
        for dataset in datasets
        if members[dataset.task] == 1 and dataset.task not in averaged
    }


def _dataset_names(dataset: DatasetInfo, single: set[str]) -> tuple[str, ...]:
    if dataset.is_average:
        return (AVERAGE,)
    return (dataset.name, AVERAGE) if dataset.name in single else (dataset.name,)


def _row(
    scores: Scores, model: ModelInfo, dataset: DatasetInfo, factors: dict[str, Level | None]
) -> Row:
    score = scores.get(model.name, dataset.name)
    found = score.estimate if score is not None else None
    if found is None or not math.isfinite(found.mean):
        reason = f"{model.name} has no score on {dataset.name}"
        return Row(factors, None, None, model.name, reason)
    unfinished = "" if score is None or score.is_complete else "some runs are missing"
    note = unfinished and f"{model.name} on {dataset.name}: {unfinished}"
    terms = (Term(1.0, model.name, dataset.name),)
    return Row(factors, found.mean, found.half_width, model.name, note, terms=terms)
