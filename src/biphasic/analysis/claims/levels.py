"""Selects rows of the table by levels of factors, as Python values or predicates."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from biphasic.analysis.claims.table import NUMBER_FACTORS, TEXT_FACTORS
from biphasic.config import nearest as _likely

FACTORS = (*TEXT_FACTORS, *NUMBER_FACTORS)
ORDERED_FACTORS = ("size", *NUMBER_FACTORS)
Selection = Mapping[str, Any]
CLOSE = 1e-9  # published numbers have two decimals; intervals that touch overlap
POSITIONS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "smallest": lambda ordered: ordered[:1],
    "middle": lambda ordered: ordered[(len(ordered) - 1) // 2 :][:1],
    "largest": lambda ordered: ordered[-1:],
}
_BOUNDS = {"at_least": operator.ge, "at_most": operator.le, "above": operator.gt}
_BOUNDS["below"] = operator.lt
_SPEAKING = {"objective", "size", "task", "model"}
"""Factors whose levels are self-explanatory."""
_NAMES = {"mask_rate": "masking rate", "clm_share": "share of CLM"}
_NAMES["continued_steps"] = "continued steps"


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
    """Return the levels for a value, a list of values or a position.

    Raises:
        ValueError: The factor does not have them.
    """
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

    def is_same(level: Any, value: Any) -> bool:
        return level == value if kind is str else abs(level - value) <= CLOSE

    text = " or ".join(v if isinstance(v, str) else f"{v:g}" for v in values)
    return Levels(
        text, lambda available: [x for x in available if any(is_same(x, v) for v in values)], values
    )


def selected(selection: Selection) -> dict[str, Levels]:
    """Return the levels of a selection, except `finished`."""
    for factor in selection:
        known(factor, (*FACTORS, "finished"))
    if not isinstance(selection.get("finished", True), bool):
        raise ValueError(f"finished: {selection['finished']!r} is neither True nor False")
    return {name: levels(name, selection[name]) for name in FACTORS if name in selection}


def known(name: str, names: Collection[str], what: str = "factor") -> str:
    """Return a name if it is known.

    Raises:
        ValueError: It is not.
    """
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
