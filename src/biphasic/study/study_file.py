"""Study files: read, with what they include and what is set on the command line.

A file that says `include: base.yaml` (or a list) is laid on the files that it names: groups of
settings are merged, lists and values replaced. Paths within any of them begin at the file that is
read first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from biphasic.config import Config, load_config, parse_config, parse_overrides
from biphasic.errors import ConfigError, DataError, StudyError
from biphasic.files import read_json, write_json
from biphasic.study.arms import merge_settings
from biphasic.study.config import StudyConfig
from biphasic.study.find import RESOLVED

INCLUDE = "include"
_FORMAT = "biphasic.config/1"


class _Raw(Config):
    """Any mapping."""

    model_config = ConfigDict(extra="allow")


def load_study(path: Path | str, overrides: Iterable[str] = ()) -> StudyConfig:
    """Read a study file; its relative paths begin where it lies.

    Args:
        path: YAML file.
        overrides: Settings on top of the file's, as `a.b=value`.

    Raises:
        ConfigError: It is wrong; the message names the setting.
    """
    path, overrides = Path(path), tuple(overrides)
    raw = _read(path, chain=())
    if INCLUDE not in _own(path):
        return load_config(StudyConfig, path, overrides).anchored(path.resolve().parent)
    for override in overrides:
        for key, value in parse_overrides([override]).items():
            raw[key] = _lay(raw.get(key), value, override)
    return parse_config(StudyConfig, raw, where=str(path)).anchored(path.resolve().parent)


def save_resolved(config: StudyConfig, folder: Path) -> None:
    """Write a study as it is run, includes and overrides applied, into its folder."""
    # What was not set stays unset: a task's own needs go before defaults, and after settings.
    study = config.model_dump(mode="json", exclude_unset=True)
    record = {"format": _FORMAT, "study": study}
    path = folder / RESOLVED
    if not path.is_file() or _is_other(path, record):
        write_json(path, record)


def _is_other(path: Path, record: dict[str, Any]) -> bool:
    try:
        return read_json(path) != record
    except DataError:
        return True


def load_resolved(folder: Path) -> StudyConfig:
    """Read a study as it was run.

    Raises:
        StudyError: There is none in the folder, or another version of the program wrote it.
    """
    path = folder / RESOLVED
    if not path.is_file():
        raise StudyError(f"{folder}: no study was run here (no {RESOLVED})")
    raw = read_json(path, remedy="'biphasic study run' with its study file writes it anew")
    if not isinstance(raw, dict) or raw.get("format") != _FORMAT or "study" not in raw:
        raise StudyError(f"{path}: not a study of this version; run its study file again")
    try:
        return parse_config(StudyConfig, raw["study"], where=str(path))
    except ConfigError as error:
        raise StudyError(f"{error}: written by another version? Run its study file again") from None


def _own(path: Path) -> dict[str, Any]:
    return dict(load_config(_Raw, path).model_extra or {})


def _read(path: Path, *, chain: tuple[Path, ...]) -> dict[str, Any]:
    """Return a file's settings on top of those it includes."""
    if path.resolve() in chain:
        told = " -> ".join(str(each) for each in (*chain, path.resolve()))
        raise ConfigError(f"{path}: includes itself: {told}")
    own = _own(path)
    named = own.pop(INCLUDE, [])
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{path}: include: expected the name of a file, or a list of names")
    merged: dict[str, Any] = {}
    for name in names:
        if not (path.parent / name).is_file():
            raise ConfigError(f"{path}: include: {path.parent / name}: no such file")
        included = _read(path.parent / name, chain=(*chain, path.resolve()))
        merged = merge_settings(merged, included)
    return merge_settings(merged, own)


def _lay(old: Any, new: Any, override: str) -> Any:
    """Lay one override on what a key has; numbers choose from lists."""
    if isinstance(old, list) and isinstance(new, Mapping):
        items: list[Any] = list(old)
        for key, value in new.items():
            if not key.isdigit() or int(key) >= len(items):
                raise ConfigError(f"--set {override}: '{key}' is not one of 0..{len(items) - 1}")
            items[int(key)] = _lay(items[int(key)], value, override)
        return items
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {**old, **{key: _lay(old.get(key), value, override) for key, value in new.items()}}
    return new
