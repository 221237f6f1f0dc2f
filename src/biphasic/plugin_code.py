"""Code of plugins: hashed, copied into stores, and imported from the bytes that were hashed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib.abc import SourceLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from traceback import walk_tb
from types import ModuleType

from biphasic.errors import ConfigError, reading
from biphasic.numerics import code_sha256
from biphasic.store import PLUGIN, Store

_INSTALLED = {"site-packages", "dist-packages"}
_MODULES = "biphasic_plugin_"  # begins the names of their modules
_sources: dict[str, bytes] = {}
_stores: list[Path] = []


def look_in(store: Path) -> None:
    """Find files of plugins in a store, too."""
    if store not in _stores:
        _stores.append(store)


def keep_code(store: Path, *references: str) -> None:
    """Copy the files of plugins with these names into a store; other names are ignored."""
    look_in(store)
    for reference in references:
        name, _, code = reference.partition("@")
        if code in _sources:
            # By its hash: a study must run on, and report, with the code that it began with, even
            # if the file is edited or deleted.
            with Store(store).put(PLUGIN, code) as partial_folder:
                (partial_folder / name.partition(":")[0]).write_bytes(_sources[code])


def stored_lines(store: Path) -> Iterator[str]:
    """Describe the files of plugins that a store has."""
    for path in sorted((store / PLUGIN.place).glob("*/*.py")):
        yield f"{'file':<11} {path.name:<16} {path.parent.name[:12]}"


def hashed_name(path: Path, name: str, code: str | None) -> str:
    """Return the reference to a class of a file, and keep the file's code for its import."""
    if path.is_file():
        source = path.read_bytes()
        here = _hash_of(path, source)
        if code in (None, here):
            _refuse_elsewhere(path, source)
            code = here
            _sources.setdefault(code, source)
    if code is None:
        raise ConfigError(f"{path}: no such file")
    return f"{path.name}:{name}@{code}"


@cache  # a kind of task is asked for by its reference hundreds of times
def _hash_of(path: Path, source: bytes) -> str:
    with reading(path, ConfigError, failure="not valid Python"):
        return code_sha256(source)


@cache
def module_of(code: str, file: str) -> ModuleType:
    """Import the file with a hash of code, from where settings named it or from a store."""
    if code not in _sources:
        # By whatever name it was copied first: a copy of the file has the same hash.
        folders = (Store(store).folder(PLUGIN, code) for store in _stores)
        path = next((copy for folder in folders for copy in folder.glob("*.py")), None)
        if path is None:
            raise ConfigError(
                f"{file}: not found with the code {code[:12]}, neither in its folder nor in the "
                "store; restore the file as it was, or name the new one"
            )
        source = path.read_bytes()
        with reading(path, ConfigError, failure="not valid Python"):
            if code_sha256(source) != code:
                raise ConfigError(f"{path}: changed since it was copied; restore it")
        _sources[code] = source
    # By the hash, so that two versions of a file are two modules in one process.
    name = f"{_MODULES}{code[:16]}"
    spec = spec_from_loader(name, _OneFile(file, _sources[code]))
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file}: cannot be imported")
    module = module_from_spec(spec)
    sys.modules[name] = module  # pydantic looks types up there
    with reading(file, ConfigError, remedy="correct the file", failure="cannot be imported"):
        try:
            spec.loader.exec_module(module)
        except SystemExit:  # a command would end, with the code that the file says
            raise ConfigError(
                f"{file}: cannot be imported (it exits); what a script does belongs below "
                "\"if __name__ == '__main__':\""
            ) from None
    return module


def error_of_plugin(error: BaseException) -> ConfigError | None:
    """Return the error of a file's code with its line; None if no such code was running."""
    lines = walk_tb(error.__traceback__)
    own = [line for line in lines if line[0].f_globals.get("__name__", "").startswith(_MODULES)]
    if not own:
        return None
    frame, line = own[-1]
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    about = f"{frame.f_code.co_filename}:{line}"
    return ConfigError(f"{reason}; correct it ('biphasic plugin check')", about=about)


class _OneFile(SourceLoader):
    """Loads a module from the bytes that were hashed, not from what the file has by now."""

    def __init__(self, file: str, source: bytes) -> None:
        self._file, self._source = file, source

    def get_filename(self, fullname: str) -> str:  # noqa: ARG002
        return self._file

    def get_data(self, path: Path | str) -> bytes:  # noqa: ARG002
        return self._source


@cache
def _refuse_elsewhere(path: Path, source: bytes) -> None:
    """Refuse a file that imports modules which are neither installed nor in its hash."""
    remedy = "write one file, or install a package"
    # Code of other files is in no hash, and could change numbers under the same identity.
    tops: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            tops.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            tops.add("" if node.level else (node.module or "").partition(".")[0])
    for top in sorted(tops - {*sys.stdlib_module_names, "biphasic"}):
        with reading(path, ConfigError, failure="cannot be imported", remedy=remedy):
            spec = find_spec(top) if top else None
        beside = path.parent / (top or ".")
        is_beside = beside.with_suffix(".py").is_file() or beside.is_dir()
        places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
        places = [set(Path(place).parts) for place in places if place]
        if (is_beside and not spec) or not all(parts & _INSTALLED for parts in places):
            where = "its own folder" if is_beside else "outside of installed packages"
            raise ConfigError(f"{path}: imports '{top or '.'}' from {where}; {remedy}")
