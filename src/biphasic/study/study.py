"""A study in its root: settings, folders and recipes. Plans, runs and reports use it."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from pathlib import Path

from biphasic.config import parse_config
from biphasic.errors import ConfigError, DataError, StudyError
from biphasic.files import read_json_object, write_json
from biphasic.locks import locked_folder
from biphasic.plugins import look_in
from biphasic.study import RESOLVED, STORE
from biphasic.study.spec.study import StudyConfig
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
            raise StudyError(f"{folder}: no study was run here (no {RESOLVED})")
        look_in(folder.resolve().parent / STORE)
        raw = read_json_object(path, remedy="'biphasic study run' with its study file rewrites it")
        if raw.get("format") != _FORMAT or "study" not in raw:
            raise StudyError(f"{path}: not a study of this version; run its study file again")
        try:
            return cls(parse_config(StudyConfig, raw["study"], where=str(path)), folder.parent)
        except ConfigError as error:
            message = f"{error}: written by another version? Run its study file again"
            raise StudyError(message) from None

    @cached_property
    def recipes(self) -> dict[str, Recipe]:
        """The recipes by name of the arm, with tuned rates."""
        return {arm.name: self.config.recipe_of(arm) for arm in self.config.arms}

    def locked(self) -> AbstractContextManager[object]:
        """Lock the study's folder."""
        return locked_folder(self.folder, remedy="use another --root")

    def save(self) -> None:
        """Save the settings, with includes and overrides applied, in the study's folder."""
        path, before = self.folder / RESOLVED, {}
        with suppress(DataError):
            before = read_json_object(path) if path.is_file() else {}
        # Unset values stay unset: the needs of a task override defaults, but not settings.
        settings = self.config.model_dump(mode="json", exclude_unset=True)
        record = {"format": _FORMAT, "study": settings}
        known = before.get("file")
        if isinstance(known, str):
            if before == {**record, "file": known}:
                return  # the same study, from whichever file
            self._refuse_other_file(known)
            record["file"] = known
        if self.file is not None:
            # Relative, so that a project can be moved or copied as a whole.
            record["file"] = os.path.relpath(self.file.resolve(), self.folder)
        if record != before:
            write_json(path, record)

    def _refuse_other_file(self, known: str) -> None:
        """Refuse a folder whose study is from another file, which was not moved away."""
        earlier = os.path.normpath(self.folder / known)
        if self.file is None or not os.path.isfile(earlier):  # noqa: PTH113 - of any text
            return
        if not self.file.samefile(earlier):
            raise StudyError(
                f"{self.file}: {self.folder} has another study of this name, from {earlier}; "
                "choose another 'name' or --root, or delete that folder (its states and results "
                "stay in the store)"
            )
