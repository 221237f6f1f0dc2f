"""Running rules one after another, and settings that differ in one value."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from biphasic.config import Config
from biphasic.errors import ConfigError, reading

CaseT = TypeVar("CaseT")
Rule = Callable[[CaseT], Iterable[str]]
"""Yields what breaks the rule; its docstring says the rule."""


def check_rules(case: CaseT, rules: Mapping[str, Rule[CaseT]], *, where: str) -> None:
    """Raise a ConfigError that names the first rule that a class breaks."""
    for name, rule in rules.items():
        # The class is anybody's code, which may fail in any way.
        about = f"{where}: rule '{name}'"
        with reading(about, ConfigError, failure="an error", remedy="correct the class"):
            problem = next(iter(rule(case)), None)
        if problem is not None:
            raise ConfigError(f"breaks the rule '{name}': {problem}", about=where)


def variants(settings: Config, names: Iterable[str]) -> Iterator[tuple[str, Config]]:
    """Yield valid settings that differ in one of these fields, with a description."""
    given, kind = settings.model_dump(mode="json"), type(settings)
    for name in names:
        for value in _others(getattr(settings, name), kind.model_fields[name].annotation):
            try:
                changed = kind.model_validate({**given, name: value})
            except (ValidationError, ConfigError):
                continue
            if changed != settings:
                yield f"{name} {value}", changed


def _others(value: object, annotation: Any) -> Iterator[object]:
    """Yield other values for a field; those that are not valid are left out later."""
    yield from _choices(annotation)
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1, 2 * value)
    elif isinstance(value, float):
        yield from (value / 2, 1.5 * value, 1 - value)
    elif value is None:
        yield from (1, 2, 0.5)


def _choices(annotation: Any) -> Iterator[object]:
    if typing.get_origin(annotation) is typing.Literal:
        yield from typing.get_args(annotation)
        return
    for part in typing.get_args(annotation):
        yield from _choices(part)
