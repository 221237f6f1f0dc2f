"""Settings as data: frozen records, loaded from YAML, checked with readable errors."""

from __future__ import annotations

import copy
import difflib
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticCustomError

from biphasic.amounts import MOST_BITS
from biphasic.docstrings import field_docstrings
from biphasic.errors import ConfigError, one_line, reading, repeated

if TYPE_CHECKING:
    from pydantic_core import InitErrorDetails
    from pydantic_core.core_schema import ModelSchema

ConfigT = TypeVar("ConfigT", bound="Config")

# Pattern of names that become folders or parts of file names.
NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,79}$"
# Maximum size of a file of settings; PyYAML without libyaml takes about 15 seconds for it.
MOST_BYTES = 1 << 19
_MOST_VALUES = 1_000_000  # Maximum number of values in a file of settings, with aliases expanded.
_MOST_DEPTH = 100  # Maximum depth of the values in a file of settings.
# libyaml's is ten times as fast; PyYAML may be installed without it.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DURATION = r"^[0-9]{1,4}:[0-5][0-9]:[0-5][0-9]$"  # Pattern of times `HH:MM:SS`.
_MOST_SHOWN = 80
_EXAMPLES = {"--set": "seed=1", "--lora": "rank=16", "--compute": "processes=2"}
_MOST_ISSUES = 100
_LONGEST_NAME = 200
_MOST_NAMES = 10_000
_LONGEST_POSITION = 10
_UNKNOWN = "unknown_key"
# Limits the work for values that are large or deeply nested.
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 4
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = _MOST_SHOWN
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 4 * _MOST_SHOWN
# Keys that only one kind of file has, with the message for a file of that kind.
_FILES = (
    (
        {"arms", "tasks", "include"},
        "a study; 'biphasic study plan {0}' shows its cost, 'biphasic study run {0}' runs it",
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

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, raw: Any) -> Any:
        names = cls.__pydantic_fields__.keys()  # `model_fields` takes as long as all fields
        if isinstance(raw, dict) and not raw.keys() <= names:
            raise ValidationError.from_exception_data(cls.__name__, [*_mistakes(cls, raw)])
        return raw

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
            raw = _parse_yaml(content.decode("utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such file") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: cannot be read ({error}); save it as UTF-8") from None
        except yaml.YAMLError as error:
            mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
            line = f"line {mark.line + 1}: " if mark else ""
            raise ConfigError(f"{path}: not valid YAML: {line}{_yaml_reason(error)}") from None
    if raw is None:
        raise ConfigError(f"{path}: is empty; expected a mapping of settings")
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
            # Unknown keys first: a misspelt key explains other mistakes.
            issues = sorted(
                error.errors(include_url=False), key=lambda issue: issue["type"] != _UNKNOWN
            )[:_MOST_ISSUES]
            texts = (_describe(raw, issue) for issue in issues if not _is_noise(issue, issues))
            raise ConfigError(f"{where}: {'; '.join(dict.fromkeys(texts))}") from None


def _mistakes(kind: type[Config], raw: dict[Any, Any]) -> Iterator[InitErrorDetails]:
    """Yield the unknown keys of a mapping, and its other mistakes that do not follow from them."""
    names = kind.__pydantic_fields__.keys()
    unknown = [key for key in raw if key not in names]
    hints = {str(key): nearest(str(key), names) for key in unknown[:_MOST_ISSUES]}
    yield {"type": PydanticCustomError(_UNKNOWN, "unknown keys", hints), "input": raw}
    misspelt = {(name,) for name in names if f"did you mean '{name}'" in str(hints)}
    try:
        kind.model_validate({key: value for key, value in raw.items() if key in names})
    except ValidationError as error:
        issues: list[Any] = error.errors(include_url=False)
        for issue in issues:
            sort, place = issue["type"], issue["loc"]
            # Whether values fit together depends on the unknown ones, too.
            if place and not (sort == "missing" and place in misspelt):
                known = PydanticCustomError(sort, issue["msg"], issue.get("ctx"))
                yield {"type": known, "loc": place, "input": issue["input"]}


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
        example = f"{key}=1" if key[:1].isalpha() else _EXAMPLES[option]
        raise ConfigError(f"{where}: expected KEY=VALUE, e.g. {example}")
    with reading(where, ConfigError):
        try:
            value = _parse_yaml(text)
        except yaml.YAMLError as error:
            raise ConfigError(
                f"{where}: the value is not valid YAML: {_yaml_reason(error)}"
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


# A branch of a union that is no record: a constant, a number or a list.
_PLAIN_BRANCH = re.compile(r"literal\[|constrained-|tuple\[")


def _describe(raw: Any, issue: Any) -> str:
    parts, sort, value = _place(raw, issue), issue["type"], issue.get("input")
    path = ".".join(parts) or "settings"
    if sort == _UNKNOWN:
        named = ((".".join([*parts, key]), hint) for key, hint in issue["ctx"].items())
        return "; ".join(f"unknown key '{name}'{hint}" for name, hint in named)
    if sort in {"missing", "union_tag_not_found"}:
        return f"'{path}' is required"
    if sort == "union_tag_invalid":
        return _unknown_value(path, issue["ctx"]["tag"], issue["ctx"]["expected_tags"])
    if sort == "literal_error" and isinstance(value, str):
        return _unknown_value(path, value, issue["ctx"]["expected"])
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
    got = _SHORT.repr(value)
    got = got if len(got) <= _MOST_SHOWN else f"{got[:_MOST_SHOWN]}..."
    return f"{path}: {message[:1].lower()}{message[1:]} (got {got})"


def _place(raw: Any, issue: Any) -> list[str]:
    """Return pydantic's location of an issue without branches of unions, which no file has."""
    location, parts = list(issue["loc"]), list[str]()
    missing = [str(location.pop())] if issue["type"] == "missing" else []
    for part in location:
        value = vars(raw) if isinstance(raw, Config) else raw
        with suppress(LookupError, TypeError):
            raw = value[part]
            parts.append(str(part))
    if issue["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        # `'key'`, or `key()` of a function.
        missing = [issue["ctx"]["discriminator"].strip("'()")]
    return parts + missing


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
    if issue["type"] == "path_type":  # of a path or settings
        return any(other["loc"][: len(prefix)] == prefix for other in others)
    if issue["type"] in _NO_MAPPING:
        names = [other for other in others if other["type"] == "literal_error"]
        return is_text and any(other["loc"][:-1] == prefix for other in names)
    if issue["type"] in {"int_type", *_NO_LIST} and _PLAIN_BRANCH.match(str(issue["loc"][-1])):
        is_list = isinstance(issue.get("input"), list | tuple)
        return is_list == (issue["type"] not in _NO_LIST)
    if issue["type"] != "literal_error" or not str(issue["loc"][-1]).startswith("literal["):
        return False
    return not is_text and any(other["loc"][: len(prefix)] == prefix for other in others)


class _Loader(_SafeLoader):
    """YAML in which `no`, `1:30` and dates are text, as in YAML 1.2, and keys are not repeated."""

    # PyYAML reads them by YAML 1.1: as false, 90 and dates; it also reads 010 as 8.
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = (key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if names := repeated(keys):
            raise _yaml_error(node, f"duplicate keys: {', '.join(names)}")
        return super().construct_mapping(node, deep=deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep=deep)
        # Errors of PyYAML's constructors for `!!bool x`, `!!int ""`, `!!timestamp x`.
        except (ValueError, LookupError, AttributeError) as error:
            kind = node.tag.rpartition(":")[2]
            raise _yaml_error(node, f"not a valid {kind} ({error}); write text in quotes") from None
        if isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise _yaml_error(node, "a number with too many digits; write text in quotes")
        return value


class _Dumper(yaml.SafeDumper):
    """Put text in quotes that `_Loader` or YAML 1.1 would read as something else."""


for _kind, _first, _pattern in (
    ("null", ["~", "n", "N", ""], r"~|null|Null|NULL|"),
    ("bool", list("tTfF"), r"true|True|TRUE|false|False|FALSE"),
    ("int", list("+-0123456789"), r"[+-]?[0-9]+(_[0-9]+)*"),  # 1_000 as in YAML 1.1
    ("float", list("+-.0123456789"), r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-][0-9]+)?"),
    ("float", list("+-."), r"[+-]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
    ("merge", ["<"], r"<<"),
):
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_pattern})$"), _first
        )
_Loader.add_constructor(
    "tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node))
)


def dump_settings(settings: Any) -> str:
    """Return settings as the text of a YAML file."""
    return yaml.dump(settings, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _parse_yaml(text: str) -> Any:
    """Return the values in a text; `yaml.YAMLError` says what is wrong with it."""
    # The loader recurses in C, where a value that is nested too deeply would end the process.
    depth = 0
    for event in yaml.parse(text, Loader=_SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_DEPTH:
            raise yaml.YAMLError("nested too deeply")
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _num_values(node, {}) > _MOST_VALUES:
            raise _yaml_error(node, f"aliases expand it to more than {_MOST_VALUES:,} values")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _num_values(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """Count the values of a document with expanded aliases, without expanding them."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if node not in known:
        known[node] = 0  # while it is being counted
        parts = (
            part for item in node.value for part in (item if isinstance(item, tuple) else (item,))
        )
        known[node] = 1 + sum(_num_values(part, known) for part in parts)
    elif not known[node]:
        raise _yaml_error(node, "an alias contains itself")
    return known[node]


def _yaml_reason(error: yaml.YAMLError) -> str:
    """Return what is wrong, without where."""
    if isinstance(error, yaml.MarkedYAMLError):
        return " ".join(filter(None, (error.context, error.problem)))
    return one_line(error)


def _yaml_error(node: yaml.Node, problem: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
