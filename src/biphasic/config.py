"""Settings as data: frozen records, loaded from YAML, checked with readable errors."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from biphasic.errors import ConfigError

ConfigT = TypeVar("ConfigT", bound="Config")


class Config(BaseModel):
    """A frozen record that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def load_config(
    kind: type[ConfigT], path: Path | str, overrides: Iterable[str] = ()
) -> ConfigT:
    """Read one YAML file into `kind`, with `a.b=value` overrides on top.

    Raises:
        ConfigError: The file is missing, is no YAML mapping, or a value is wrong; the message
            names the file, the path of the value and the nearest valid name.
    """
    path = Path(path)
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected a mapping of settings at the top level")
    for override in overrides:
        _apply_override(raw, override)
    return parse_config(kind, raw, where=str(path))


def parse_config(kind: type[ConfigT], raw: Mapping[str, Any], *, where: str) -> ConfigT:
    """Check a mapping against `kind`; `where` begins every message.

    Raises:
        ConfigError: A key is unknown or a value is wrong.
    """
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        problems = "; ".join(_describe(kind, issue) for issue in error.errors())
        raise ConfigError(f"{where}: {problems}") from None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `" (did you mean 'x'?)"` for the closest known name, or all names when none is."""
    options = sorted(known)
    close = difflib.get_close_matches(name, options, n=1)
    if close:
        return f" (did you mean '{close[0]}'?)"
    return f" (known: {', '.join(options)})" if options else ""


def _apply_override(raw: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"--set {override}: write it as key.subkey=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"--set {override}: the value is not valid YAML") from None
    *parents, last = key.split(".")
    node: Any = raw
    for parent in parents:
        node = _child(node, parent, override)
    if isinstance(node, list):
        node[_index(node, last, override)] = value
    else:
        node[last] = value


def _child(node: Any, name: str, override: str) -> Any:
    if isinstance(node, list):
        return node[_index(node, name, override)]
    child = node.setdefault(name, {})
    if not isinstance(child, dict | list):
        raise ConfigError(f"--set {override}: '{name}' is a value, not a group of settings")
    return child


def _index(node: list[Any], name: str, override: str) -> int:
    if not name.isdigit() or int(name) >= len(node):
        raise ConfigError(f"--set {override}: '{name}' is not one of 0..{len(node) - 1}")
    return int(name)


def _describe(kind: type[BaseModel], issue: Any) -> str:
    path = ".".join(str(part) for part in issue["loc"]) or "settings"
    if issue["type"] == "extra_forbidden":
        *parents, last = issue["loc"]
        return f"unknown key '{path}'{nearest(str(last), _fields_at(kind, parents))}"
    if issue["type"] == "missing":
        return f"'{path}' is required"
    if issue["type"] in {"literal_error", "enum"} and isinstance(issue.get("input"), str):
        known = [part.strip(" '") for part in issue["ctx"]["expected"].replace(" or ", ",").split(",")]
        return f"{path}: unknown value '{issue['input']}'{nearest(issue['input'], known)}"
    message = issue["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if issue["type"] == "value_error":
        return f"{path}: {message}" if issue["loc"] else message
    return f"{path}: {message[:1].lower()}{message[1:]} (got {issue.get('input')!r})"


def _fields_at(kind: Any, path: list[Any]) -> set[str]:
    """Names of the fields of the record that stands at `path` below `kind`."""
    models = {kind}
    for part in path:
        found: set[Any] = set()
        for model in models:
            field = model.model_fields.get(part) if isinstance(part, str) else None
            found |= _models_in(field.annotation) if field else {model}
        models = found
    return {name for model in models for name in model.model_fields}


def _models_in(annotation: Any) -> set[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    if typing.get_origin(annotation) is None and not isinstance(annotation, types.UnionType):
        return set()
    return {model for part in typing.get_args(annotation) for model in _models_in(part)}
