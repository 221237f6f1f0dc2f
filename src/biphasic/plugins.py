"""Plugins: classes of installed packages, or of a file that settings name.

An installed package lists its classes as entry points (`biphasic.objectives`, ...). A file is named
with its class, as `./spans.py:Spans`. Nothing else is imported. A plugin's code is part of the
identity of what it makes, so settings that were read name its hash: `spans.py:Spans@HASH`. A store
has a copy of each file that its settings name, for workers and later readers.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, get_args

from pydantic import SerializeAsAny, WrapValidator, create_model

from biphasic.config import Config, ConfigT, nearest, parse_config, raw_config
from biphasic.errors import ConfigError, reading
from biphasic.files import digest, expanded
from biphasic.plugin_code import hashed_name, keep_code, module_of

Group = Literal["objectives", "optimizers", "task_kinds", "sources", "executors"]
_NAMED = re.compile(
    r"((?P<file>(?:.*/)?[\w.-]+\.py):(?P<type>[A-Za-z_]\w*)|(?P<name>[a-z][\w.-]*))"
    r"(?:@(?P<code>[0-9a-f]{64}))?"
)
_HASHED = r"[\w.:\\-]+@[0-9a-f]{64}"  # JSON may spell letters as \u00fc
_KEYS = re.compile(r"(.*\.)?(objective|optimizer\.name|kind|sources?|executor)")
"""Settings that may name a plugin, also in a study's axes."""


@dataclass(frozen=True)
class Plugin:
    """A class from outside of biphasic.

    Attributes:
        name: Short name, in tables and in names of arms.
        reference: What settings and records call it, with the hash of its code.
        code: Hash of its code, without comments, docstrings and formatting.
        origin: Distribution and version, or name of the file.
    """

    name: str
    reference: str
    type: type
    code: str
    origin: str

    def determinants(self) -> dict[str, str]:
        """Return what is hashed."""
        return {"class": self.type.__name__, "code": self.code}


def short_name(reference: str) -> str:
    """Return a name without file and hash: `spans` for `spans.py:Spans@HASH`."""
    named = _NAMED.fullmatch(reference)
    if named is None:
        return reference
    return named["name"] or named["type"].lower()


def named_plugins(*settings: object) -> dict[str, tuple[str, ...]]:
    """Return file or distribution and version, with the hash of the code, by short name."""
    texts: dict[str, set[str]] = {}
    for _, plugin in _settings_of_plugins(settings):
        is_file = plugin.reference.startswith(f"{plugin.origin}:")
        text = plugin.reference if is_file else f"{plugin.origin}, {plugin.reference}"
        texts.setdefault(plugin.name, set()).add(text)
    return {name: tuple(sorted(references)) for name, references in sorted(texts.items())}


def _settings_of_plugins(value: object) -> Iterator[tuple[Config, Plugin]]:
    """Yield the settings of plugins in some settings, at any depth, with their plugin."""
    if isinstance(value, Config):
        if (plugin := getattr(value, "plugin", None)) is not None:
            yield value, plugin
        value = tuple(getattr(value, name) for name in type(value).model_fields)
    if isinstance(value, tuple):
        for item in value:
            yield from _settings_of_plugins(item)


def references_in(record: object) -> list[str]:
    """Return what names plugins in a record, with their hashes."""
    return sorted(set(re.findall(rf'"({_HASHED})"', json.dumps(record, ensure_ascii=False))))


def without_code(text: str) -> str:
    """Return the text of a record without the hashes of plugins."""
    return re.sub(rf'"({_HASHED})"', lambda match: match[0].partition("@")[0], text)


def shown(reference: str) -> str:
    """Return a reference for people, with the first digits of the hash."""
    name, _, code = reference.partition("@")
    return f"{name} ({code[:12]})"


def code_of(settings: object) -> dict[str, Any]:
    """Return what identities need to say about the code of some settings; nothing if it is ours."""
    plugin: Plugin | None = getattr(settings, "plugin", None)
    return {} if plugin is None else {"plugin": plugin.determinants()}


def find_plugin(group: Group, reference: str, base: type, *, ours: Collection[str] = ()) -> Plugin:
    """Import a plugin; check that it is of the kind that the group needs, and named unlike ours."""
    named = _NAMED.fullmatch(reference)
    if named is None or (named["name"] == reference and reference.endswith(".py")):
        raise ConfigError(
            f"'{reference}' is not a plugin; name a file and class, as ./my.py:Mine (the file's "
            "name may have letters, digits, '.', '_' and '-')"
        )
    if named["name"]:
        plugin = _installed(group, named["name"])
    else:
        plugin = _from_file(named["file"], named["type"], named["code"])
    if named["code"] not in (None, plugin.code):
        raise ConfigError(
            f"{plugin.origin}: the code of '{plugin.name}' differs from the one that settings "
            f"name ({named['code'][:12]}); install that version"
        )
    kind = plugin.type
    problem = next(_unlike(kind, base), None) if inspect.isclass(kind) else "it is not a class"
    if problem is not None:
        raise ConfigError(f"{plugin.origin}: {kind.__name__} cannot be used: {problem}")
    if plugin.name in ours:
        raise ConfigError(
            f"{plugin.origin}: {kind.__name__} has the name of our own '{plugin.name}', and tables "
            "would not tell them apart; rename the class"
        )
    return plugin


def _unlike(kind: type, base: type) -> Iterator[str]:
    """Yield the reasons why a class does not implement its base."""
    if not issubclass(kind, base):
        yield f"it does not inherit from {base.__name__}"
        return
    annotations = inspect.get_annotations(base).items()
    constants = [name for name, type_ in annotations if str(type_).startswith("ClassVar")]
    lacking = [name for name in constants if not hasattr(kind, name)]
    if lacking := sorted({*lacking, *getattr(kind, "__abstractmethods__", ())}):
        yield f"it lacks {', '.join(lacking)}"
    for name, theirs in vars(base).items():
        own = inspect.getattr_static(kind, name)
        if isinstance(theirs, property) and inspect.isfunction(own):
            yield f"{name} must be a property; write @property above it"
        elif inspect.isfunction(theirs) and inspect.isfunction(own):
            parameters = [
                parameter.replace(annotation=parameter.empty)
                for parameter in inspect.signature(theirs).parameters.values()
            ]
            places = [
                parameter.name
                for parameter in parameters
                if parameter.kind is not parameter.KEYWORD_ONLY
            ]
            keywords = {
                parameter.name: None
                for parameter in parameters
                if parameter.kind is parameter.KEYWORD_ONLY
            }
            # Whether it can be called as the base is: own parameters beside these need defaults.
            try:
                inspect.signature(own).bind(*places, **keywords)
            except TypeError as error:
                yield f"{name} must take {inspect.Signature(parameters)} ({error})"


def is_plugin(group: Group, name: str) -> bool:
    """Return whether a name means a plugin: a class of a file, or an installed one."""
    if ".py:" in name or name.endswith(".py"):
        return True  # also if it is misspelt: `find_plugin` says how to write it
    is_name = _NAMED.fullmatch(name) is not None
    return is_name and ("@" in name or name in installed_names(group))


def installed_names(group: Group) -> list[str]:
    """Return the names of installed plugins, without importing them."""
    return sorted({point.name for point in _points(group)})


def installed_lines() -> Iterator[str]:
    """Describe the installed plugins, without importing them."""
    for group in get_args(Group):
        for point in sorted(_points(group), key=lambda point: point.name):
            yield f"{group:<11} {point.name:<16} {_origin(point)}  {point.value}"


def classes_of(file: str, base: type) -> list[str]:
    """Return the names of the classes of a base that a file defines."""
    path = expanded(file)
    code = hashed_name(path, "", None).rpartition("@")[2]
    return _classes_in(module_of(code, path.name), base)


def accepting(
    settings: Any, names: tuple[str, ...], *, group: Group, key: str, base: type[Config],
    mixin: type[Config] | None = None,
) -> Any:  # fmt: skip
    """Return the type of some settings or of a plugin's, which `key` names.

    `names` are those of ours. A plugin's settings have the fields of `mixin` as well.
    """
    check = partial(_validated, names=names, group=group, key=key, base=base, mixin=mixin)
    schema = _PluginSchema(group, key)
    return SerializeAsAny[Annotated[settings, WrapValidator(check), schema]]


def names_of(kinds: tuple[type[Config], ...], key: str) -> tuple[str, ...]:
    """Return the name that each class of settings has as the only value of a field."""
    return tuple(get_args(kind.model_fields[key].annotation)[0] for kind in kinds)


def hashed_names(raw: Any, folder: Path, *, at: str = "") -> Any:
    """Return raw settings that name files of plugins, relative to a folder, with their hashes."""
    if isinstance(raw, list):
        return [hashed_names(item, folder, at=at) for item in raw]
    if not isinstance(raw, Mapping):
        return raw
    return {
        key: _hashed_value(value, folder)
        if _KEYS.fullmatch(f"{at}{key}")
        else hashed_names(value, folder, at=f"{key}.")
        for key, value in raw.items()
    }


def anchored(value: Any, folder: Path) -> Any:
    """Return settings, or parts of them, with relative paths at any depth resolved."""
    if isinstance(value, Path):
        return folder / expanded(value)
    if isinstance(value, tuple):
        return tuple(anchored(item, folder) for item in value)
    if not isinstance(value, Config):
        return value
    own = getattr(value, "anchored", None)  # of settings with other paths than those of type Path
    return own(folder) if own else anchored_fields(value, folder)


def anchored_fields(settings: ConfigT, folder: Path, **changes: Any) -> ConfigT:
    """Return settings with relative paths in their fields resolved, and with other changes."""
    own = {name: getattr(settings, name) for name in type(settings).model_fields}
    moved = {name: anchored(value, folder) for name, value in own.items()} | changes
    return settings.model_copy(update={n: value for n, value in moved.items() if value != own[n]})


def load_with_plugins(kind: type[ConfigT], path: Path, overrides: Iterable[str] = ()) -> ConfigT:
    """Load one YAML file as `kind`; files of plugins are relative to its folder."""
    raw = hashed_names(raw_config(kind, path, overrides), path.resolve().parent)
    return parse_config(kind, raw, where=str(path))


def keep_files(store: Path, *settings: Config) -> None:
    """Copy the files of plugins that some settings name into a store."""
    records = (record.model_dump(mode="json") for record in settings)
    keep_code(store, *(name for record in records for name in references_in(record)))


def _validated(
    raw: Any, ours: Callable[[Any], Any], *, names: tuple[str, ...], group: Group, key: str,
    base: type[Config], mixin: type[Config] | None,
) -> Any:  # fmt: skip
    if isinstance(raw, mixin or base) and code_of(raw):
        return raw
    settings: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
    name = settings.get(key)
    if not isinstance(name, str) or name in names or not is_plugin(group, name):
        return ours(raw)
    try:
        plugin = find_plugin(group, name, base, ours=names)
        settings_type = _settings_type(plugin, key, mixin)
    except ConfigError as error:
        # No ValueError, which pydantic would collect, and a job's reader would take for damage.
        raise ConfigError(str(error), about=group.removesuffix("s")) from None
    return settings_type.model_validate({**settings, key: plugin.reference})


@dataclass(frozen=True)
class _PluginSchema:
    """Adds plugins to the JSON schema of some settings, for editors."""

    group: Group
    key: str

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        name: dict[str, Any] = {"type": "string", "pattern": r"\.py:|@"}
        if installed := installed_names(self.group):
            name = {"anyOf": [name, {"enum": installed}]}
        plugin = {"type": "object", "properties": {self.key: name}, "required": [self.key]}
        return {"anyOf": [handler(core), plugin]}


@cache  # settings of one plugin are equal only if they are of one type
def _settings_type(plugin: Plugin, key: str, mixin: type[Config] | None) -> type[Config]:
    """Return a plugin's class with a field for its reference, and with the fields of `mixin`."""
    bases = (plugin.type,) if mixin is None else (mixin, plugin.type)
    own: Mapping[str, Any] = getattr(plugin.type, "model_fields", {})
    if mixin and (both := next((name for name in own if name in mixin.model_fields), None)):
        raise ConfigError(
            f"{plugin.origin}: {plugin.type.__name__} has a setting '{both}', which every phase "
            "has; rename it"
        )
    name: Any = (Literal[plugin.reference], ...)  # type: ignore[valid-type]
    kind = create_model(
        plugin.type.__name__, __base__=bases, __doc__=plugin.type.__doc__, **{key: name}
    )
    kind.plugin = plugin  # type: ignore[attr-defined]
    return kind


def _hashed_value(value: Any, folder: Path) -> Any:
    if isinstance(value, list):  # of an axis, or of sources
        return [_hashed_value(item, folder) for item in value]
    if isinstance(value, Mapping):
        return hashed_names(value, folder)
    named = _NAMED.fullmatch(value) if isinstance(value, str) else None
    if named is None or not named["file"]:
        return value
    return hashed_name(folder / expanded(named["file"]), named["type"], named["code"])


def _from_file(file: str, name: str, code: str | None) -> Plugin:
    path = expanded(file)
    reference = hashed_name(path, name, code)
    code = reference.rpartition("@")[2]
    module = module_of(code, path.name)
    if not hasattr(module, name):
        raise ConfigError(
            f"{path}: has no class {name}{nearest(name, _classes_in(module, object))}"
        )
    return Plugin(name.lower(), reference, getattr(module, name), code, path.name)


def _classes_in(module: ModuleType, base: type) -> list[str]:
    """Return the names of the classes of a base that a module defines itself."""
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and issubclass(value, base)
    ]


def _points(group: Group) -> tuple[EntryPoint, ...]:
    return _points_on(tuple(sys.path), group)


@cache  # reading those of all packages takes milliseconds, and settings ask for every name
def _points_on(_path: tuple[str, ...], group: Group) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=f"biphasic.{group}"))


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.module


def _installed(group: Group, name: str) -> Plugin:
    points = [point for point in _points(group) if point.name == name]
    if not points:
        raise ConfigError(f"no installed package has the plugin '{name}'; install it")
    origins = [_origin(point) for point in points]
    if len(points) > 1:
        raise ConfigError(f"'{name}' is in {' and '.join(origins)}; uninstall all but one")
    with reading(origins[0], ConfigError, remedy="reinstall it", failure="cannot be imported"):
        kind = points[0].load()
    # Versions name the code of a release; that of an editable installation changes under them.
    dist = points[0].dist
    url = json.loads((dist and dist.read_text("direct_url.json")) or "{}")
    if dist is None or url.get("dir_info", {}).get("editable"):
        raise ConfigError(
            f"{origins[0]}: an editable installation, whose code its version does not name; "
            "install the package without -e, or name a file"
        )
    code = digest([dist.name, dist.version])
    return Plugin(name, f"{name}@{code}", kind, code, origins[0])
