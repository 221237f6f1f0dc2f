"""Settings as data: frozen records, loaded from YAML, checked with readable errors."""

from __future__ import annotations

import copy
import difflib
import re
import reprlib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from biphasic.docstrings import field_docstrings
from biphasic.errors import ConfigError, reading, repeated
from biphasic.yaml_text import parse_yaml, yaml_reason

if TYPE_CHECKING:
    from pydantic_core.core_schema import ModelSchema

ConfigT = TypeVar("ConfigT", bound="Config")

# Pattern of names that become folders or parts of file names.
NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,79}$"
# Maximum size of a file of settings; PyYAML without libyaml takes about 15 seconds for it.
MOST_BYTES = 1 << 19
DURATION = r"^[0-9]{1,4}:[0-5][0-9]:[0-5][0-9]$"  # Pattern of times `HH:MM:SS`.
_MOST_SHOWN = 80
_MOST_ISSUES = 100
_LONGEST_NAME = 200
_MOST_NAMES = 10_000
_LONGEST_POSITION = 10
_UNKNOWN = "extra_forbidden"
# Limits the work for values that are large or deeply nested.
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 4
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = _MOST_SHOWN
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 4 * _MOST_SHOWN
# Keys that only one kind of file has, with the message for a file of that kind.
_FILES = (
    (
        {"arms", "tasks", "include"},
        "a study; 'biphasic study plan {0}' says its cost, 'biphasic study run {0}' runs it",
    ),
    ({"phases", "learning_rate"}, "a recipe; train it with 'biphasic pretrain {}'"),
    ({"sources"}, "a corpus; build it with 'biphasic corpus build --spec {}'"),
    ({"kind"}, "a task; name it with --task of 'biphasic evaluate' or 'finetune'"),
)
_NO_MAPPING = {"model_type", "model_attributes_type", "dict_type"}  # pydantic's error types
_NO_LIST = {"tuple_type", "list_type"}


class Config(BaseModel):
    """A frozen record that rejects unknown keys."""

    # Infinities are rejected: canonical JSON, and so an identity, cannot contain them. Validators
    # are built on first use: a command uses few of the classes that it imports.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @classmethod
    def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
        """Return the JSON schema; the docstring below a field describes it."""
        return super().model_json_schema(*args, **{"schema_generator": _Described, **options})


def duration_seconds(text: str) -> int:
    """Return the seconds of a time that matches `DURATION`."""
    hours, minutes, seconds = map(int, text.split(":"))
    return 3600 * hours + 60 * minutes + seconds


class _Described(GenerateJsonSchema):
    # pydantic's `use_attribute_docstrings` doubles the import time of settings.
    """Add the docstrings of fields when a schema is generated."""

    def model_schema(self, schema: ModelSchema) -> dict[str, Any]:
        described = super().model_schema(schema)
        properties = described["properties"]
        for name, text in field_docstrings(schema["cls"], Config).items():
            if name in properties:  # class variables may have docstrings, too
                properties[name].setdefault("description", text)
        return described


def load_config(kind: type[ConfigT], path: Path | str) -> ConfigT:
    """Load one YAML file as `kind`."""
    return parse_config(kind, raw_config(kind, path), where=str(path))


def raw_config(
    kind: type[Config], path: Path | str, overrides: Iterable[str] = ()
) -> dict[str, Any]:
    """Load the settings in one YAML file of `kind`, with `a.b=value` overrides applied."""
    raw = load_settings(path)
    refuse_other_kind(kind, raw, path)
    for override in overrides:
        apply_override(raw, override)
    return raw


def load_settings(path: Path | str) -> dict[str, Any]:
    """Load one YAML file as a mapping."""
    with reading(path, ConfigError):
        try:
            with Path(path).open("rb") as stream:
                content = stream.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise ConfigError(
                    f"{path}: larger than {MOST_BYTES >> 10} KiB, the maximum for a file of "
                    "settings; is this the right file?"
                )
            raw = parse_yaml(content.decode("utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such file") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: cannot be read ({error}); save it as UTF-8") from None
        except yaml.YAMLError as error:
            mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
            line = f"line {mark.line + 1}: " if mark else ""
            raise ConfigError(f"{path}: not valid YAML: {line}{yaml_reason(error)}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected a mapping of settings at the top level")
    return raw


def refuse_other_kind(kind: type[Config], raw: Mapping[str, Any], path: Path | str) -> None:
    """Check that a file is not of another kind, by its keys."""
    needed = {name for name, field in kind.model_fields.items() if field.is_required()}
    if needed and needed <= raw.keys():
        return
    for keys, what in _FILES:
        if keys & raw.keys() and not keys & kind.model_fields.keys():
            raise ConfigError(f"{path}: this is {what.format(path)}")


def parse_overrides(overrides: Iterable[str], *, option: str = "--set") -> dict[str, Any]:
    """Return `a.b=value` overrides, given by an option, as a mapping."""
    raw: dict[str, Any] = {}
    for override in overrides:
        apply_override(raw, override, option=option)
    return raw


def parse_config(kind: type[ConfigT], raw: ConfigT | Mapping[str, Any], *, where: str) -> ConfigT:
    """Validate a mapping as `kind`; error messages begin with `where`."""
    with reading(where, ConfigError):
        try:
            return kind.model_validate(raw)
        except ValidationError as error:
            # Unknown keys first: a misspelt key explains why another is missing.
            issues = sorted(
                error.errors(include_url=False), key=lambda issue: issue["type"] != _UNKNOWN
            )[:_MOST_ISSUES]
            texts = (_describe(kind, issue) for issue in issues if not _is_noise(issue, issues))
            raise ConfigError(f"{where}: {'; '.join(dict.fromkeys(texts))}") from None


def refuse_repeats(where: str, values: Iterable[Any]) -> None:
    """Check that values have no duplicates."""
    if names := repeated(values):
        raise ValueError(f"{where}: {', '.join(names)} given more than once")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `" (did you mean 'x'?)"` for the closest known name, or all names if none is close."""
    options = sorted(known)
    return closest(name, options) or (f" (known: {', '.join(options)})" if options else "")


def closest(name: str, known: Iterable[str]) -> str:
    """Return `" (did you mean 'x'?)"` for the closest known name; empty if none is close."""
    options = sorted(known)
    # Comparing two names takes time proportional to the product of their lengths.
    if len(name) <= _LONGEST_NAME and len(options) <= _MOST_NAMES:
        names = [option for option in options if len(option) <= _LONGEST_NAME]
        swapped = [option for option in names if sorted(option) == sorted(name)]
        if close := swapped or difflib.get_close_matches(name, names, n=1):
            return f" (did you mean '{close[0]}'?)"
    return ""


def apply_override(raw: dict[str, Any], override: str, *, option: str = "--set") -> None:
    """Apply an `a.b=value` override to settings, in place."""
    key, separator, text = override.partition("=")
    where = f"{option} {override}"
    if not separator or not key:
        raise ConfigError(f"{where}: expected KEY=VALUE, e.g. {key or 'seed'}=1")
    with reading(where, ConfigError):
        try:
            value = parse_yaml(text)
        except yaml.YAMLError as error:
            raise ConfigError(
                f"{where}: the value is not valid YAML: {yaml_reason(error)}"
            ) from None
    put(raw, key, value, where=where)


def put(settings: dict[str, Any], path: str, value: Any, *, where: str) -> None:
    """Set the value at a path such as `a.0.b`, in place; messages begin with `where`."""
    *parents, last = path.split(".")
    node: Any = settings
    for name in parents:
        key: Any = _index(node, name, where) if isinstance(node, list) else name
        child = {} if isinstance(node, dict) and node.get(key) is None else node[key]
        if not isinstance(child, dict | list):
            raise ConfigError(f"{where}: '{name}' is a value, not a group of settings")
        # A copy: an alias in YAML, or a value of an axis, is in several places.
        node[key] = child = copy.copy(child)
        node = child
    node[_index(node, last, where) if isinstance(node, list) else last] = value


def _index(values: list[Any], name: str, where: str) -> int:
    # `int` also accepts non-ASCII digits, and rejects very long numbers.
    is_number = name.isascii() and name.isdecimal() and len(name) < _LONGEST_POSITION
    if is_number and int(name) < len(values):
        return int(name)
    known = f"one of 0..{len(values) - 1}" if values else "there: the list is empty"
    raise ConfigError(f"{where}: '{name}' is not {known}")


# A record with a validator of its own, as a branch of a union.
_VALIDATED = re.compile(r"^function-\w+\[.*, (\w+)\]$")
# A branch of a union that is no record: a constant, a number or a list.
_PLAIN_BRANCH = re.compile(r"literal\[|constrained-|tuple\[")


def _describe(kind: type[BaseModel], issue: Any) -> str:
    parts, models = _walk(kind, issue)
    path, sort, given = ".".join(parts) or "settings", issue["type"], issue.get("input")
    if sort == _UNKNOWN:
        known = {name for model in models for name in model.model_fields}
        return f"unknown key '{path}'{nearest(parts[-1], known)}"
    if sort in {"missing", "union_tag_not_found"}:
        return f"'{path}' is required"
    if sort == "union_tag_invalid":
        return _unknown_value(path, issue["ctx"]["tag"], issue["ctx"]["expected_tags"])
    if sort == "literal_error" and isinstance(given, str):
        return _unknown_value(path, given, issue["ctx"]["expected"])
    message = issue["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if sort == "value_error":
        return f"{path}: {message}" if parts else message
    message = message.partition(", unable to parse string")[0]
    if sort in _NO_MAPPING:
        message = "expected a mapping of settings"
    if sort in _NO_LIST:
        message = "expected a list"
    if sort == "too_short":
        message = f"give at least {issue['ctx']['min_length']}"
    if sort == "string_pattern_mismatch" and issue["ctx"]["pattern"] == NAME_PATTERN:
        message = "a name has at most 80 characters: lower-case letters, digits and . _ -, "
        message += "beginning with a letter or digit"
    got = _SHORT.repr(given)
    got = got if len(got) <= _MOST_SHOWN else f"{got[:_MOST_SHOWN]}..."
    return f"{path}: {message[:1].lower()}{message[1:]} (got {got})"


def _unknown_value(path: str, value: str, expected: str) -> str:
    """Describe a value that is not in pydantic's list, such as `'a', 'b' or 'c'`."""
    known = [part.strip(" '") for part in expected.replace(" or ", ",").split(",")]
    return f"{path}: unknown value '{value}'{nearest(value, known)}"


def _is_noise(issue: Any, issues: list[Any]) -> bool:
    """Return whether an issue follows from another one, or is of an unintended union branch."""
    # Pydantic reports every branch of `name | record`: a string is intended as a name, anything
    # else as a record. Of `number | list`, a list is intended as a list, anything else as a number.
    prefix, is_text = issue["loc"][:-1], isinstance(issue.get("input"), str)
    others = [other for other in issues if other is not issue]
    if issue["type"] == "too_short":  # a list without its invalid items
        return any(other["loc"][: len(issue["loc"])] == issue["loc"] for other in others)
    if issue["type"] in _NO_MAPPING:
        names = [other for other in others if other["type"] == "literal_error"]
        return is_text and any(other["loc"][:-1] == prefix for other in names)
    if issue["type"] in {"int_type", *_NO_LIST} and _PLAIN_BRANCH.match(str(issue["loc"][-1])):
        is_list = isinstance(issue.get("input"), list | tuple)
        return is_list == (issue["type"] not in _NO_LIST)
    if issue["type"] != "literal_error" or not str(issue["loc"][-1]).startswith("literal["):
        return False
    return not is_text and any(other["loc"][: len(prefix)] == prefix for other in others)


def _walk(kind: type[BaseModel], issue: Any) -> tuple[list[str], set[Any]]:
    """Follow an issue's location; return its path in the file and the record classes at its end."""
    # Pydantic's locations include branches of unions (a record's class, a discriminator's value,
    # `literal['a']`). They narrow the classes and are omitted from the path.
    models: set[Any] = {kind}
    path: list[str] = []
    location = list(issue["loc"])
    unknown_key = [str(location.pop())] if issue["type"] == _UNKNOWN else []
    for part in location:
        name = _VALIDATED.sub(r"\1", part) if isinstance(part, str) else part
        branches = {model for model in models if _is_branch(model, name)}
        if branches or _PLAIN_BRANCH.match(str(part)):
            models = branches or models
            continue
        path.append(str(part))
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        if fields:
            models = {model for field in fields for model in _models_in(field.annotation)}
    if issue["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        # `'key'`, or `key()` of a function.
        path.append(issue["ctx"]["discriminator"].strip("'()"))
    return path + unknown_key, models


def _is_branch(model: Any, part: Any) -> bool:
    """Return whether a part of a location names this record as a branch of a union."""
    if not isinstance(part, str) or part in model.model_fields:  # a number is a place in a list
        return False
    tags = {
        value
        for field in model.model_fields.values()
        if typing.get_origin(field.annotation) is typing.Literal
        for value in typing.get_args(field.annotation)
    }
    return part == model.__name__ or part in tags


def _models_in(annotation: Any) -> set[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    if typing.get_origin(annotation) is None and not isinstance(annotation, types.UnionType):
        return set()
    return {model for part in typing.get_args(annotation) for model in _models_in(part)}
