"""Study files: read, with what they include and what is set on the command line.

A file that says `include: base.yaml` (or a list) is laid on the files that it names: groups of
settings are merged, lists and values replaced. Paths within any of them begin at the file that is
read first.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from biphasic.config import apply_override, load_settings, parse_config, refuse_other_kind
from biphasic.errors import ConfigError, DataError, StudyError, reading
from biphasic.files import read_json, read_json_object, write_json
from biphasic.study.paths import RESOLVED
from biphasic.study.spec.arms import merge_settings
from biphasic.study.spec.study import StudyConfig

INCLUDE = "include"
_FORMAT = "biphasic.config/1"


def load_study(
    path: Path | str, overrides: Iterable[str] = (), *, text: str | None = None
) -> StudyConfig:
    """Read a study file; its relative paths begin where it lies.

    Args:
        path: YAML file.
        overrides: Settings on top of the file's, as `a.b=value`.
        text: Read instead of the file, where it is not written yet.

    Raises:
        ConfigError: It is wrong; the message names the setting.
    """
    path = Path(path)
    with reading(path, ConfigError):  # a chain of files can be too long for Python's stack
        raw = _read(path, chain=(), known={}, text=text)
    refuse_other_kind(StudyConfig, raw, path)
    for override in overrides:
        apply_override(raw, override)
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
    raw = read_json_object(path, remedy="'biphasic study run' with its study file writes it anew")
    if raw.get("format") != _FORMAT or "study" not in raw:
        raise StudyError(f"{path}: not a study of this version; run its study file again")
    try:
        return parse_config(StudyConfig, raw["study"], where=str(path))
    except ConfigError as error:
        raise StudyError(f"{error}: written by another version? Run its study file again") from None


def _read(
    path: Path,
    *,
    chain: tuple[Path, ...],
    known: dict[Path, dict[str, Any]],
    text: str | None = None,
) -> dict[str, Any]:
    """Return a file's settings on top of those it includes; each file is read once.

    Args:
        path: The file.
        chain: The files that include it, resolved.
        known: What was read before, by resolved path.
        text: Read instead of the file.
    """
    place = path.resolve()
    if place in chain:
        told = " -> ".join(str(each) for each in (*chain, place))
        raise ConfigError(f"{path}: includes itself: {told}")
    if place in known:
        return known[place]
    own = load_settings(path, text=text)
    named = own.pop(INCLUDE, [])
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{path}: include: expected the name of a file, or a list of names")
    merged: dict[str, Any] = {}
    for name in names:
        if not (path.parent / name).is_file():
            raise ConfigError(f"{path}: include: {path.parent / name}: no such file")
        included = _read(path.parent / name, chain=(*chain, place), known=known)
        merged = merge_settings(merged, included)
    known[place] = merge_settings(merged, own)
    return known[place]
