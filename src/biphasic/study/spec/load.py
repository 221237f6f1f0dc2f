"""Loading of study files, with includes and overrides.

A file with `include: base.yaml` (or a list) is merged into the files that it names: mappings are
merged, lists and values replaced. Paths in all of them are relative to the first file.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
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
    """Load a study file; relative paths are resolved against its folder.

    `text` is parsed instead of the file's content.

    Raises:
        ConfigError: The file is invalid; the message names the setting.
    """
    path = Path(path)
    with reading(path, ConfigError):  # a chain of files can be too long for Python's stack
        raw = _read(path, chain=(), known={}, text=text)
    refuse_other_kind(StudyConfig, raw, path)
    for override in overrides:
        apply_override(raw, override)
    return parse_config(StudyConfig, raw, where=str(path)).anchored(path.resolve().parent)


def save_resolved(config: StudyConfig, folder: Path) -> None:
    """Save the settings of a study, with includes and overrides applied, in its folder."""
    # Unset values stay unset: the needs of a task override defaults, but not settings.
    study = config.model_dump(mode="json", exclude_unset=True)
    record = {"format": _FORMAT, "study": study}
    path = folder / RESOLVED
    with suppress(DataError):
        if path.is_file() and read_json(path) == record:
            return
    write_json(path, record)


def load_resolved(folder: Path) -> StudyConfig:
    """Load the saved settings of a study.

    Raises:
        StudyError: The folder has none, or another version of biphasic wrote them.
    """
    path = folder / RESOLVED
    if not path.is_file():
        raise StudyError(f"{folder}: no study was run here (no {RESOLVED})")
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
