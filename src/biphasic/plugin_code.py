"""Code of plugins: hashed, copied into stores, and imported from the bytes that were hashed."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.abc import SourceLoader
from importlib.util import find_spec, module_from_spec, resolve_name, spec_from_loader
from pathlib import Path
from traceback import walk_tb
from types import ModuleType

from biphasic.errors import ConfigError, reading
from biphasic.files import digest
from biphasic.numerics import code_sha256
from biphasic.store import complete_folder

FOLDER = "plugins"
"""Folder of a store with the files of plugins, by the hash of their code."""
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
            with complete_folder(store / FOLDER / code, identity=code) as partial_folder:
                (partial_folder / name.partition(":")[0]).write_bytes(_sources[code])


def stored_lines(store: Path) -> Iterator[str]:
    """Describe the files of plugins that a store has."""
    for path in sorted((store / FOLDER).glob("*/*.py")):
        yield f"{'file':<11} {path.name:<16} {path.parent.name[:12]}"


def pinned(path: Path, name: str, code: str | None) -> str:
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


@cache
def module_of(code: str, file: str) -> ModuleType:
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
    own = [each for each in lines if each[0].f_globals.get("__name__", "").startswith(_MODULES)]
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
def package_code(module: str) -> str:
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
