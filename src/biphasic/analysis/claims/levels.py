"""Levels of factors, by which claims select rows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from biphasic.analysis.claims.rows import CLOSE, FACTORS, NUMBER_FACTORS
from biphasic.config import nearest as _likely

Selection = Mapping[str, Any]
POSITIONS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "smallest": lambda ordered: ordered[:1],
    "middle": lambda ordered: ordered[(len(ordered) - 1) // 2 :][:1],
    "largest": lambda ordered: ordered[-1:],
}
_BOUNDS = {
    "at_least": operator.ge, "at_most": operator.le, "above": operator.gt, "below": operator.lt,
}  # fmt: skip


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
