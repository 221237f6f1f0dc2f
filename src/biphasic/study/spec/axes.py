"""Expansion of arms with axes and budgets into single arms.

An axis is the path of a setting in the arm (`recipe.model`, `phases.1.mlm_probability`) with its
values; several axes give every combination. `steps` of an arm is a budget: phases have their
steps or a share of it, one may take the rest, and a phase without steps is dropped.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from pydantic import Field, PositiveInt

from biphasic.config import Config, nearest, parse_config, put, repeated
from biphasic.errors import ConfigError
from biphasic.study.spec.arms import ArmConfig, RecipeConfig
from biphasic.study.spec.naming import arm_name, encoder_name

_UNNAMED = "arm"
_KEYS = ("axes", "steps")
_SETTINGS = {*ArmConfig.model_fields, "steps"} - {"name", "label"}
# Ten times as many arms as can be planned in a minute; more is probably a mistake.
MOST_ARMS = 10_000


class _Budget(Config):
    """Settings that only an arm with axes or a budget has."""

    steps: PositiveInt | None = None
    axes: dict[str, list[Any]] = Field(default_factory=dict)


def expand_arms(arms: list[Any], recipe: Any) -> list[Any]:
    """Expand the arms of a study file into single arms with names."""
    _refuse_many(len(arms), "arms")
    if not any(_is_template(arm) for arm in arms):
        return arms
    shared = None
    with suppress(ConfigError):  # which is reported elsewhere
        shared = parse_config(RecipeConfig, recipe, where="recipe")
    expanded: list[Any] = []
    for index, arm in enumerate(arms):
        if not _is_template(arm):
            expanded.append(_checked(arm, f"arms.{index}"))
            continue
        singles: set[str] = set()
        for point, raw in _multiply(arm, f"arms.{index}"):
            where = f"arms.{index}{_described(point)}"
            single = _spend(raw, where)
            if repr(single) in singles:
                continue  # a setting of a phase without steps makes no other arm
            singles.add(repr(single))
            name = single.get("name") or _name(single, shared, where)
            expanded.append(_checked({**single, "name": name}, where))
        _refuse_many(len(expanded), f"arms.0 to arms.{index}")
    names = (arm.get("name") for arm in expanded if isinstance(arm, Mapping))
    if several := repeated(name for name in names if name != _UNNAMED):
        raise ConfigError(
            f"arms: several arms are named {', '.join(several)}; give one of them another 'name', "
            "without axes"
        )
    return expanded


def _refuse_many(count: int, where: str) -> None:
    if count > MOST_ARMS:
        raise ConfigError(
            f"{where}: {count:,} arms, but a study has at most {MOST_ARMS:,}; split the study"
        )


def _is_template(arm: Any) -> bool:
    if not isinstance(arm, Mapping):
        return False
    return "name" not in arm or any(key in arm for key in _KEYS) or _has_shares(arm)


def _has_shares(arm: Mapping[str, Any]) -> bool:
    phases = arm.get("phases")
    return isinstance(phases, list) and any(
        isinstance(phase, Mapping) and "share" in phase for phase in phases
    )


def _checked(arm: Any, where: str) -> Any:
    """Check an arm; error messages begin with `where`, its number in the file."""
    if isinstance(arm, Mapping):
        parse_config(ArmConfig, arm, where=where)
    return arm


def _multiply(
    arm: Mapping[str, Any], where: str
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each combination of the axes' values, and the arm with these values."""
    budget = {key: arm[key] for key in _KEYS if key in arm}
    axes = parse_config(_Budget, budget, where=where).axes
    if axes and ("name" in arm or "label" in arm):
        raise ConfigError(
            f"{where}: arms with axes get their names automatically; remove 'name' and 'label'"
        )
    for path, values in axes.items():
        if not values:
            raise ConfigError(f"{where}: axes: '{path}' has no values")
    _refuse_many(math.prod(map(len, axes.values())), f"{where}: axes")
    for path, values in axes.items():
        plain = [value for value in values if isinstance(value, Hashable)]
        groups = [value for value in values if not isinstance(value, Hashable)]
        if len(set(plain)) < len(plain) or any(groups.count(group) > 1 for group in groups):
            raise ConfigError(f"{where}: axes: '{path}' lists a value twice")
    for values in itertools.product(*axes.values()):
        raw: dict[str, Any] = {k: copy.deepcopy(v) for k, v in arm.items() if k != "axes"}
        point = dict(zip(axes, values, strict=True))
        for path, value in point.items():
            if (first := path.partition(".")[0]) not in _SETTINGS:
                hint = nearest(first, _SETTINGS)
                raise ConfigError(f"{where}: axes: an arm has no setting '{path}'{hint}")
            put(raw, path, value, where=f"{where}: axes: '{path}'")
        yield point, raw


def _described(point: Mapping[str, Any]) -> str:
    settings = ", ".join(f"{path} = {value}" for path, value in point.items())
    return f" ({settings})" if settings else ""


def _spend(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """Return an arm with a number of steps in each phase."""
    budget = raw.pop("steps", None)
    phases = raw.get("phases", [])
    if budget is None:
        if _has_shares(raw):
            raise ConfigError(f"{where}: 'share' requires 'steps' next to 'phases'")
        return raw
    budget = parse_config(_Budget, {"steps": budget}, where=where).steps or 0
    if not isinstance(phases, list) or not all(isinstance(phase, Mapping) for phase in phases):
        raise ConfigError(f"{where}: phases: expected a list of phases")
    steps = [_own_steps(phase, budget, f"{where}: phases.{n}") for n, phase in enumerate(phases)]
    left = budget - sum(number or 0 for number in steps)
    if left < 0 or (left and None not in steps) or steps.count(None) > 1:
        raise ConfigError(
            f"{where}: the phases take {budget - left:,} of {budget:,} steps; give steps or shares "
            "that add up, or omit both in one phase, which then takes the rest"
        )
    spent = [
        {**{k: v for k, v in phase.items() if k != "share"}, "steps": number}
        for phase, number in zip(phases, (left if s is None else s for s in steps), strict=True)
    ]
    return {**raw, "phases": [phase for phase in spent if phase["steps"]]}


def _own_steps(phase: Mapping[str, Any], budget: int, where: str) -> int | None:
    if "share" in phase and "steps" in phase:
        raise ConfigError(f"{where}: give 'steps' or a 'share', not both")
    value = phase.get("share", phase.get("steps"))
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf or ("steps" in phase and value != int(value)):
        raise ConfigError(f"{where}: expected a number of steps or a share (got {value})")
    if "steps" in phase:
        return int(value)
    if value > 1:
        raise ConfigError(f"{where}.share: expected at most 1 (got {value})")
    return round(value * budget)


def _name(raw: Mapping[str, Any], shared: RecipeConfig | None, where: str) -> str:
    single = parse_config(ArmConfig, {**raw, "name": _UNNAMED}, where=where)
    if shared is None:
        return _UNNAMED
    if single.encoder is not None:
        name = encoder_name(single.encoder)
    else:
        name = arm_name(single.recipe_from(shared, where=where), shared)
    return f"{name}-{single.attention}" if single.attention else name
