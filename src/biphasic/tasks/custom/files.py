"""Finds the user's files by their conventional names."""

from __future__ import annotations

from pathlib import Path

from biphasic.errors import DataError
from biphasic.tasks.custom.task_file import TaskFile
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.records import SPLITS

_FRACTIONS = ("validation_fraction", "test_fraction")


def own_files(file: TaskFile, *, where: str) -> dict[str, Path]:
    """Return the files of a task by content: splits, `labels`, `corpus`, `queries`.

    Paths that the task file names take precedence over files found in its folder.
    """
    kind, files = KINDS[file.kind], {}
    if file.folder:
        if not file.folder.is_dir():
            raise DataError(f"{file.folder}: no such folder")
        files = kind.find_files(file.folder)
    if not file.has_training:
        files.pop("train", None)
    for name in _FRACTIONS:
        split = name.partition("_")[0]
        if getattr(file, name) and split in files:
            raise DataError(f"{where}: {name} is set, but {files[split]} exists")
    if file.labels is not None:
        files.pop("labels", None)
    for key in (*SPLITS, "corpus", "queries"):
        if (path := getattr(file, key)) is not None:
            files[key] = path
    for key in _needed(file):
        if key not in files:
            raise DataError(f"{where}: no {key} {_missing(file, key)}")
    for key, path in files.items():
        if not path.is_file():
            raise DataError(f"{path}: no such file; {where} names it as {key}")
        kind.check_file(path, key)
    return files


def _needed(file: TaskFile) -> list[str]:
    kind = KINDS[file.kind]
    made = {name.partition("_")[0] for name in _FRACTIONS if getattr(file, name)}
    splits = kind.splits(trained_on=file.trained_on)
    return [*kind.needed_files(), *(split for split in splits if split not in made)]


def _missing(file: TaskFile, key: str) -> str:
    """Describe the expected name of a missing file, and alternatives."""
    kind = KINDS[file.kind]
    if key not in SPLITS:
        return f"({kind.usual_names(key)})"
    remedy = f"name it in a task file ({key})"
    if key != "train":
        remedy += f", or take it from the training split there ({key}_fraction)"
    else:
        for other in KINDS.values():
            if other.derived_from == kind.name:
                remedy += f", or use kind {other.name}, without training"
    return f"split ({kind.usual_names(key)}); {remedy}"
