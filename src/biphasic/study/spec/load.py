"""Loading of study files, with includes and overrides.

A file with `include: base.yaml` (or a list) is merged into the files that it names: mappings are
merged, lists and values replaced. Paths in all of them are relative to the first file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from biphasic.config import apply_override, load_settings, parse_config, refuse_other_kind
from biphasic.errors import ConfigError, DataError, StudyError, reading
from biphasic.files import read_json_object, write_json
from biphasic.plugins import look_in, pinned_names
from biphasic.study.paths import RESOLVED, STORE
from biphasic.study.spec.arms import merge_settings
from biphasic.study.spec.study import StudyConfig

INCLUDE = "include"
_FORMAT = "biphasic.config/1"


def load_study(
    path: Path | str, overrides: Iterable[str] = (), *, text: str | None = None
) -> StudyConfig:
    """Load a study file; relative paths are resolved against its folder.

    `text` is parsed instead of the file's content.
    """
    path = Path(path)
    with reading(path, ConfigError):  # a chain of files can be too long for Python's stack
        raw = _read(path, chain=(), known={}, text=text)
    refuse_other_kind(StudyConfig, raw, path)
    for override in overrides:
        apply_override(raw, override)
    folder = path.resolve().parent
    return parse_config(StudyConfig, pinned_names(raw, folder), where=str(path)).anchored(folder)


def save_resolved(config: StudyConfig, folder: Path, *, file: Path | None = None) -> None:
    """Save the settings of a study, with includes and overrides applied, in its folder."""
    path, before = folder / RESOLVED, {}
    with suppress(DataError):
        before = read_json_object(path) if path.is_file() else {}
    # Unset values stay unset: the needs of a task override defaults, but not settings.
    record = {"format": _FORMAT, "study": config.model_dump(mode="json", exclude_unset=True)}
    known = before.get("file")
    if isinstance(known, str):
        if before == {**record, "file": known}:
            return  # the same study, from whichever file
        if file is not None:
            _refuse_other_file(file, folder, known)
        record["file"] = known
    if file is not None:
        # Relative, so that a project can be moved or copied as a whole.
        record["file"] = os.path.relpath(file.resolve(), folder.resolve())
    if record != before:
        write_json(path, record)


def _refuse_other_file(file: Path, folder: Path, known: str) -> None:
    """Raise a StudyError if a folder's study is from another file, which was not moved away."""
    earlier = os.path.normpath(folder / known)
    if os.path.isfile(earlier) and not file.samefile(earlier):  # noqa: PTH113 - of any text
        raise StudyError(
            f"{file}: {folder} has another study of this name, from {earlier}; choose another "
            "'name' or --root, or delete that folder (its states and results stay in the store)"
        )


def load_resolved(folder: Path) -> StudyConfig:
    """Load the saved settings of a study."""
    path = folder / RESOLVED
    if not path.is_file():
        raise StudyError(f"{folder}: no study was run here (no {RESOLVED})")
    look_in(folder.resolve().parent / STORE)
    raw = read_json_object(path, remedy="'biphasic study run' with its study file rewrites it")
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
    """Return a file's settings merged into those it includes; each file is read once.

    `chain` are the files that include it, resolved; `text` is parsed instead of its content.
    """
    place = path.resolve()
    if place in chain:
        cycle = " -> ".join(map(str, (*chain, place)))
        raise ConfigError(f"{path}: includes itself: {cycle}")
    if place in known:
        return known[place]
    settings = load_settings(path, text=text)
    included_names = settings.pop(INCLUDE, [])
    names = [included_names] if isinstance(included_names, str) else included_names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{path}: include: expected a file name or a list of file names")
    merged: dict[str, Any] = {}
    for name in names:
        if not (path.parent / name).is_file():
            raise ConfigError(f"{path}: include: {path.parent / name}: no such file")
        included = _read(path.parent / name, chain=(*chain, place), known=known)
        merged = merge_settings(merged, included)
    known[place] = merge_settings(merged, settings)
    return known[place]
