"""YAML of settings, read as version 1.2 within limits, and written so that it reads back."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml

from biphasic.amounts import MOST_BITS
from biphasic.errors import one_line, repeated

MOST_VALUES = 1_000_000  # Maximum number of values in a file of settings, with aliases expanded.
MOST_DEPTH = 100  # Maximum depth of the values in a file of settings.
# libyaml's is ten times as fast; PyYAML may be installed without it.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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


def parse_yaml(text: str) -> Any:
    """Return the values in a text; `yaml.YAMLError` says what is wrong with it."""
    # The loader recurses in C, where a value that is nested too deeply would end the process.
    depth = 0
    for event in yaml.parse(text, Loader=_SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_DEPTH:
            raise yaml.YAMLError("nested too deeply")
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _num_values(node, {}) > MOST_VALUES:
            raise _yaml_error(node, f"aliases expand it to more than {MOST_VALUES:,} values")
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


def yaml_reason(error: yaml.YAMLError) -> str:
    """Return what is wrong, without where."""
    if isinstance(error, yaml.MarkedYAMLError):
        return " ".join(filter(None, (error.context, error.problem)))
    return one_line(error)


def _yaml_error(node: yaml.Node, problem: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
