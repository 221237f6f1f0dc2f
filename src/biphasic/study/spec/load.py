"""Loading of study files, with includes and overrides.

A file with `include: base.yaml` (or a list) is merged into the files that it names: mappings are
merged, lists and values replaced. Paths in all of them are relative to the first file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from biphasic.config import apply_override, load_settings, parse_config, refuse_other_kind
from biphasic.errors import ConfigError, reading
from biphasic.plugins import pinned_names
from biphasic.study.spec.arms import merge_settings
from biphasic.study.spec.study import StudyConfig

INCLUDE = "include"


def load_study(path: Path | str, overrides: Iterable[str] = ()) -> StudyConfig:
    """Load a study file; relative paths are resolved against its folder."""
    path = Path(path)
    with reading(path, ConfigError):  # a chain of files can be too long for Python's stack
        raw = _read(path, chain=(), known={})
    refuse_other_kind(StudyConfig, raw, path)
    for override in overrides:
        apply_override(raw, override)
    folder = path.resolve().parent
    return parse_config(StudyConfig, pinned_names(raw, folder), where=str(path)).anchored(folder)


def _read(
    path: Path,
    *,
    chain: tuple[Path, ...],
    known: dict[Path, dict[str, Any]],
) -> dict[str, Any]:
    """Return a file's settings merged into those it includes; each file is read once."""
    place = path.resolve()
    if place in chain:
        cycle = " -> ".join(map(str, (*chain, place)))
        raise ConfigError(f"{path}: includes itself: {cycle}")
    if place in known:
        return known[place]
    settings = load_settings(path)
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
