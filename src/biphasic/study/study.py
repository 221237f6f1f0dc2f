"""A study in its root: settings, folders and recipes. Plans, runs and reports use it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from biphasic.config import parse_config
from biphasic.errors import ConfigError, DataError
from biphasic.files import read_json_object, write_json
from biphasic.locks import LOCK, hold
from biphasic.plugin_code import look_in
from biphasic.store import STORE
from biphasic.study import RESOLVED
from biphasic.study.settings.study import StudyConfig
from biphasic.training.recipe import Recipe

_FORMAT = "biphasic.config/1"


class Study:
    """The settings of a study, and the folders in which it runs."""

    def __init__(self, config: StudyConfig, root: Path, *, file: Path | None = None) -> None:
        """Name the study's folder and the store of its root; `file` has the settings, if known."""
        self.config, self.root, self.file = config, root.resolve(), file
        self.folder, self.store = self.root / config.name, self.root / STORE

    @classmethod
    def saved(cls, folder: Path) -> Study:
        """Return the study that was run in a folder, by its saved settings."""
        path = folder / RESOLVED
        if not path.is_file():
            raise DataError(f"{folder}: no study was run here (no {RESOLVED})")
        look_in(folder.resolve().parent / STORE)
        raw = read_json_object(path, remedy="'biphasic study run' with its study file rewrites it")
        if raw.get("format") != _FORMAT or "study" not in raw:
            raise DataError(f"{path}: not a study of this version; run its study file again")
        try:
            config = parse_config(StudyConfig, raw["study"], where=str(path))
            if isinstance(raw.get("file"), str):
                config = config.anchored(_place(folder, raw))
            return cls(config, folder.parent)
        except ConfigError as error:
            message = f"{error}: written by another version? Run its study file again"
            raise DataError(message) from None

    @cached_property
    def recipes(self) -> dict[str, Recipe]:
        """The recipes by name of the arm, with tuned rates."""
        return {arm.name: self.config.recipe_of(arm) for arm in self.config.arms}

    def locked(self) -> AbstractContextManager[object]:
        """Lock the study's folder."""
        return hold(self.folder / LOCK, remedy="use another --root")

    def save(self) -> None:
        """Save the settings, with includes and overrides applied, in the study's folder."""
        path, before = self.folder / RESOLVED, {}
        with suppress(DataError):
            before = read_json_object(path) if path.is_file() else {}
        if self.file is None:
            source = {key: before[key] for key in ("file", "folder") if key in before}
        else:
            file = self.file.resolve()
            source = {"file": os.path.relpath(file, self.folder), "folder": str(file.parent)}
        base = _place(self.folder, source) if "file" in source else None
        settings = self._settings(base)
        if isinstance(before.get("file"), str):
            place = _place(self.folder, before)
            as_before = settings if place == base else self._settings(place)
            if before.get("study") in (self._settings(None), as_before):
                return  # the same study, from whichever file
            self._refuse_other_file(before["file"])
        record = {"format": _FORMAT, **source, "study": settings}
        if record != before:
            write_json(path, record)

    def _settings(self, base: Path | None) -> dict[str, Any]:
        """Return the settings, with paths relative to the folder of the study file."""
        # Unset values stay unset: the needs of a task override defaults, but not settings.
        settings = self.config.model_dump(mode="json", exclude_unset=True)
        if base is None:
            return settings
        # Relative, so that a project can be moved or copied as a whole.
        moved = _relative(settings, f"{base}/")
        is_same = parse_config(StudyConfig, moved, where=RESOLVED).anchored(base) == self.config
        return moved if is_same else settings

    def _refuse_other_file(self, known: str) -> None:
        """Refuse a folder whose study is from another file, which was not moved away."""
        earlier = os.path.normpath(self.folder / known)
        if self.file is None or not os.path.isfile(earlier):  # noqa: PTH113 - of any text
            return
        if not self.file.samefile(earlier):
            raise ConfigError(
                f"{self.file}: {self.folder} has another study of this name, from {earlier}; "
                "choose another 'name' or --root, or delete that folder (its states and results "
                "stay in the store)"
            )


def _place(folder: Path, record: Mapping[str, Any]) -> Path:
    """Return the folder of the study file that a study's folder names."""
    file = Path(os.path.normpath(folder.resolve() / record["file"]))
    # Where it was, if only the study's folder was copied, without its file.
    return file.parent if file.exists() or "folder" not in record else Path(record["folder"])


def _relative(value: Any, base: str) -> Any:
    """Return settings with paths below `base` relative to it, also those behind a kind."""
    if isinstance(value, Mapping):
        return {key: _relative(each, base) for key, each in value.items()}
    if isinstance(value, list):
        return [_relative(each, base) for each in value]
    if isinstance(value, str):
        kind, place, path = value.partition(base)
        return f"{kind}./{path}" if place and (not kind or kind.endswith(":")) else value
    return value
