"""Plugins: classes of installed packages, or of a file that settings name.

An installed package lists its classes as entry points (`biphasic.objectives`, ...). A file is named
with its class, as `./spans.py:Spans`. Nothing else is imported. A plugin's code is part of the
identity of what it makes, so settings that were read name its hash: `spans.py:Spans@HASH`. A store
has a copy of each file that its settings name, for workers and later readers.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.abc import SourceLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, module_from_spec, resolve_name, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, get_args

from pydantic import SerializeAsAny, WrapValidator, create_model

from biphasic.config import Config, ConfigT, nearest, parse_config, raw_config
from biphasic.errors import ConfigError, reading
from biphasic.files import complete_folder, digest, expanded
from biphasic.numerics import code_sha256

Group = Literal["objectives", "optimizers", "task_kinds", "sources", "executors"]
FOLDER = "plugins"
"""Folder of a store with the files of plugins, by the hash of their code."""
_NAMED = re.compile(
    r"((?P<file>(?:.*/)?[\w.-]+\.py):(?P<type>[A-Za-z_]\w*)|(?P<name>[a-z][\w.-]*))"
    r"(?:@(?P<code>[0-9a-f]{64}))?"
)
_PINNED = r"[\w.:-]+@[0-9a-f]{64}"
_KEYS = re.compile(r"(.*\.)?(objective|optimizer\.name|kind|sources?|executor)")
"""Settings that may name a plugin, also in a study's axes."""
_sources: dict[str, bytes] = {}
_stores: list[Path] = []


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

    @property
    def version(self) -> str:
        """The version that its class declares, with a golden output; empty if it declares none."""
        return getattr(self.type, "version", "") if getattr(self.type, "golden", "") else ""

    def determinants(self) -> dict[str, str]:
        """Return what is hashed: the code, or version and golden output, which stand for it."""
        if not self.version:
            return {"class": self.type.__name__, "code": self.code}
        golden: str = self.type.golden  # type: ignore[attr-defined]
        return {"class": self.type.__name__, "version": self.version, "golden": golden}


def short_name(reference: str) -> str:
    """Return a name without file and hash: `spans` for `spans.py:Spans@HASH`."""
    named = _NAMED.fullmatch(reference)
    if named is None:
        return reference
    return named["name"] or named["type"].lower()


def named_plugins(*settings: object) -> dict[str, tuple[str, ...]]:
    """Return file or distribution and version, with the hash of the code, by short name."""
    texts: dict[str, set[str]] = {}
    for _, plugin in settings_of_plugins(settings):
        is_file = plugin.reference.startswith(f"{plugin.origin}:")
        text = plugin.reference if is_file else f"{plugin.origin}, {plugin.reference}"
        texts.setdefault(plugin.name, set()).add(text)
    return {name: tuple(sorted(found)) for name, found in sorted(texts.items())}


def settings_of_plugins(value: object) -> Iterator[tuple[Config, Plugin]]:
    """Yield the settings of plugins in some settings, at any depth, with their plugin."""
    if isinstance(value, Config):
        if (plugin := getattr(value, "plugin", None)) is not None:
            yield value, plugin
        value = tuple(getattr(value, name) for name in type(value).model_fields)
    if isinstance(value, tuple):
        for item in value:
            yield from settings_of_plugins(item)


def references_in(record: object) -> list[str]:
    """Return what names plugins in a record, with their hashes."""
    return sorted(set(re.findall(rf'"({_PINNED})"', json.dumps(record))))


def without_code(text: str) -> str:
    """Return the text of a record without the hashes of plugins."""
    return re.sub(rf'"({_PINNED})"', lambda match: match[0].partition("@")[0], text)


def shown(reference: str) -> str:
    """Return a reference for people, with the first digits of the hash."""
    name, _, code = reference.partition("@")
    return f"{name} ({code[:12]})"


def code_of(settings: object) -> dict[str, Any]:
    """Return what identities need to say about the code of some settings; nothing if it is ours."""
    plugin: Plugin | None = getattr(settings, "plugin", None)
    return {} if plugin is None else {"plugin": plugin.determinants()}


def find_plugin(group: Group, reference: str, base: type) -> Plugin:
    """Import a plugin, and check that it is of the kind that the group needs."""
    named = _NAMED.fullmatch(reference)
    if named is None:
        raise ConfigError(f"'{reference}' is not a plugin; name a file and class, as ./my.py:Mine")
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
    if not (inspect.isclass(kind) and issubclass(kind, base)) or inspect.isabstract(kind):
        lacks = (
            ", ".join(sorted(getattr(kind, "__abstractmethods__", ()))) or f"base {base.__name__}"
        )
        raise ConfigError(f"{plugin.origin}: {kind.__name__} cannot be used: it lacks {lacks}")
    return plugin


def is_plugin(group: Group, name: str) -> bool:
    """Return whether a name means a plugin: a file's class, a pinned or an installed one."""
    if _NAMED.fullmatch(name) is None:
        return False
    return ".py:" in name or "@" in name or name in installed_names(group)


def installed_names(group: Group) -> list[str]:
    """Return the names of installed plugins, without importing them."""
    return sorted({point.name for point in _points(group)})


def installed_lines() -> Iterator[str]:
    """Describe the installed plugins, without importing them."""
    for group in get_args(Group):
        for point in sorted(_points(group), key=lambda point: point.name):
            yield f"{group:<11} {point.name:<16} {_origin(point)}  {point.value}"


def stored_lines(store: Path) -> Iterator[str]:
    """Describe the files of plugins that a store has."""
    for path in sorted((store / FOLDER).glob("*/*.py")):
        yield f"{'file':<11} {path.name:<16} {path.parent.name[:12]}"


def classes_of(file: str, base: type) -> list[str]:
    """Return the names of the classes of a base that a file defines."""
    path = expanded(file)
    code = _pinned(path, "", None).rpartition("@")[2]
    module = _module(code, path.name)
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and issubclass(value, base)
    ]


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


def pinned_names(raw: Any, folder: Path) -> Any:
    """Return raw settings that name files of plugins, relative to a folder, with their hashes."""
    if isinstance(raw, list):
        return [pinned_names(item, folder) for item in raw]
    if not isinstance(raw, Mapping):
        return raw
    return {
        key: _pinned_value(value, folder)
        if isinstance(key, str) and _KEYS.fullmatch(key)
        else _pinned_optimizer(value, folder)
        if key == "optimizer"
        else pinned_names(value, folder)
        for key, value in raw.items()
    }


def load_pinned(kind: type[ConfigT], path: Path, overrides: Iterable[str] = ()) -> ConfigT:
    """Load one YAML file as `kind`; files of plugins are relative to its folder."""
    raw = pinned_names(raw_config(kind, path, overrides), path.resolve().parent)
    return parse_config(kind, raw, where=str(path))


def look_in(store: Path) -> None:
    """Find files of plugins in a store, too."""
    if store not in _stores:
        _stores.append(store)


def keep_files(store: Path, *settings: Config) -> None:
    """Copy the files of plugins that some settings name into a store."""
    records = (each.model_dump(mode="json") for each in settings)
    keep_named(store, *(name for record in records for name in references_in(record)))


def keep_named(store: Path, *references: str) -> None:
    """Copy the files of plugins with these names into a store; other names are ignored."""
    look_in(store)
    for reference in references:
        name, _, code = reference.partition("@")
        if code in _sources:
            with complete_folder(store / FOLDER / code, identity=code) as partial_folder:
                (partial_folder / name.partition(":")[0]).write_bytes(_sources[code])


def _validated(
    raw: Any, ours: Callable[[Any], Any], *, names: tuple[str, ...], group: Group, key: str,
    base: type[Config], mixin: type[Config] | None,
) -> Any:  # fmt: skip
    if isinstance(raw, mixin or base) and code_of(raw):
        return raw
    if not isinstance(raw, Mapping):
        return ours(raw)
    name = raw.get(key)
    if not isinstance(name, str) or name in names:
        return ours(raw)
    if not is_plugin(group, name):
        return ours(raw)
    try:
        plugin = find_plugin(group, name, base)
    except ConfigError as error:
        # No ValueError, which pydantic would collect, and a job's reader would take for damage.
        raise ConfigError(str(error), about=key) from None
    given: dict[str, Any] = {**raw, key: plugin.reference}
    settings_type = _settings_type(plugin, key, mixin)
    if unknown := next((name for name in given if name not in settings_type.model_fields), None):
        raise ValueError(f"unknown key '{unknown}'{nearest(unknown, settings_type.model_fields)}")
    return settings_type.model_validate(given)


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


@cache
def _settings_type(plugin: Plugin, key: str, mixin: type[Config] | None) -> type[Config]:
    """Return a plugin's class with a field for its reference, and with the fields of `mixin`."""
    bases = (plugin.type,) if mixin is None else (mixin, plugin.type)
    name: Any = (Literal[plugin.reference], ...)  # type: ignore[valid-type]
    kind = create_model(
        plugin.type.__name__, __base__=bases, __doc__=plugin.type.__doc__, **{key: name}
    )
    kind.plugin = plugin  # type: ignore[attr-defined]
    return kind


def _pinned_value(value: Any, folder: Path) -> Any:
    if isinstance(value, list):  # of an axis, or of sources
        return [_pinned_value(item, folder) for item in value]
    if isinstance(value, Mapping):
        return pinned_names(value, folder)
    named = _NAMED.fullmatch(value) if isinstance(value, str) else None
    if named is None or not named["file"]:
        return value
    return _pinned(folder / expanded(named["file"]), named["type"], named["code"])


def _pinned_optimizer(value: Any, folder: Path) -> Any:
    if not isinstance(value, Mapping) or "name" not in value:
        return value
    return {**dict(value), "name": _pinned_value(value["name"], folder)}


def _pinned(path: Path, name: str, code: str | None) -> str:
    """Return the reference to a class of a file, and keep the file's code for its import."""
    if path.is_file():
        source = path.read_bytes()
        with reading(path, ConfigError, failure="not valid Python"):
            here = code_sha256(source)
        if code in (None, here):
            _refuse_neighbours(path, source)
            code = here
            _sources.setdefault(code, source)
    if code is None:
        raise ConfigError(f"{path}: no such file")
    return f"{path.name}:{name}@{code}"


def _from_file(file: str, name: str, code: str | None) -> Plugin:
    path = expanded(file)
    reference = _pinned(path, name, code)
    code = reference.rpartition("@")[2]
    module = _module(code, path.name)
    if not hasattr(module, name):
        raise ConfigError(f"{path}: has no class {name}")
    return Plugin(name.lower(), reference, getattr(module, name), code, path.name)


def _refuse_neighbours(path: Path, source: bytes) -> None:
    """Refuse a file that imports others beside it, which a worker would not find."""
    remedy = "write one file, or install a package"
    with reading(path, ConfigError, failure="cannot be imported", remedy=remedy):
        for top in {name.partition(".")[0] for name in _imports(source, "")}:
            beside = path.parent / top
            spec = find_spec(top)
            is_beside = beside.with_suffix(".py").is_file() or beside.is_dir()
            if is_beside and (spec is None or path.parent in Path(spec.origin or "/").parents):
                raise ConfigError(f"{path}: imports '{top}' from its own folder; {remedy}")


@cache
def _module(code: str, file: str) -> ModuleType:
    """Import the file with a hash of code, from where settings named it or from a store."""
    if code not in _sources:
        copies = (store / FOLDER / code / file for store in _stores)
        found = next((copy for copy in copies if copy.is_file()), None)
        if found is None:
            raise ConfigError(
                f"{file}: not found with the code {code[:12]}, neither in its folder nor in the "
                "store; restore the file as it was, or name the new one"
            )
        source = found.read_bytes()
        with reading(found, ConfigError, failure="not valid Python"):
            if code_sha256(source) != code:
                raise ConfigError(f"{found}: changed since it was copied; restore it")
        _sources[code] = source
    name = f"biphasic_plugin_{code[:16]}"
    spec = spec_from_loader(name, _OneFile(file, _sources[code]))
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file}: cannot be imported")
    module = module_from_spec(spec)
    sys.modules[name] = module  # pydantic looks types up there
    with reading(file, ConfigError, remedy="correct the file", failure="cannot be imported"):
        spec.loader.exec_module(module)
    return module


class _OneFile(SourceLoader):
    """Loads a module from the bytes that were hashed, not from what the file has by now."""

    def __init__(self, file: str, source: bytes) -> None:
        self._file, self._source = file, source

    def get_filename(self, fullname: str) -> str:  # noqa: ARG002
        return self._file

    def get_data(self, path: Path | str) -> bytes:  # noqa: ARG002
        return self._source


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
        code = _package_code(kind.__module__)
    return Plugin(name, f"{name}@{code}", kind, code, origins[0])


@cache
def _package_code(module: str) -> str:
    """Hash a module, with all modules of its package that it imports."""
    hashes: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in hashes or name.partition(".")[0] != module.partition(".")[0]:
            continue
        spec = None
        with suppress(ModuleNotFoundError):  # `from package.module import function`
            spec = find_spec(name)
        if spec is None or spec.origin is None:
            continue
        content = Path(spec.origin).read_bytes()
        is_python = spec.origin.endswith(".py")
        hashes[name] = code_sha256(content) if is_python else hashlib.sha256(content).hexdigest()
        waiting.append(name.rpartition(".")[0])  # importing a module runs its packages
        if is_python:
            waiting += _imports(content, spec.parent or "")
    return digest(hashes)


def _imports(source: bytes, package: str) -> Iterator[str]:
    """Yield the modules that code may import, and the names it takes from them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = resolve_name("." * node.level + base, package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
