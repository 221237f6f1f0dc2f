"""Finds the user's files by their conventional names."""

from __future__ import annotations

import re
from pathlib import Path

from biphasic.errors import DataError
from biphasic.tasks.custom.task_file import TaskFile
from biphasic.tasks.formats.folder import RETRIEVAL_KINDS
from biphasic.tasks.records import LABEL_KINDS, SPLITS, Kind

SUFFIXES: dict[str, tuple[str, ...]] = {
    "sc": (".jsonl", ".csv", ".tsv"),
    "ml": (".jsonl", ".csv", ".tsv"),
    "sr": (".jsonl", ".csv", ".tsv"),
    "tc": (".jsonl", ".conll", ".iob2", ".bio", ".txt", ".tsv"),
    "qa": (".json", ".jsonl"),
}
_SPLIT_NAMES = {"train": "train", "validation": "validation|valid|val|dev", "test": "test"}
_FRACTIONS = ("validation_fraction", "test_fraction")


def own_files(file: TaskFile, *, where: str) -> dict[str, Path]:
    """Return the files of a task by content: splits, `labels`, `corpus`, `queries`.

    Paths that the task file names take precedence over files found in its folder.

    Raises:
        DataError: A file is missing, or several match.
    """
    files = _found(file.kind, file.folder) if file.folder else {}
    for split in _unused(file):
        files.pop(split, None)
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
        if key in SPLITS and file.kind not in RETRIEVAL_KINDS:
            suffixes = SUFFIXES[file.kind]
            if plain_suffix(path) not in suffixes:
                known = ", ".join(suffixes)
                raise DataError(
                    f"{path}: a file of kind {file.kind} ends in {known} (.gz may follow)"
                )
    return files


def plain_suffix(path: Path) -> str:
    """Return a file's suffix without that of compression."""
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


def _unused(file: TaskFile) -> tuple[str, ...]:
    return ("train",) if file.kind == "zs" or file.trained_on else ()


def _needed(file: TaskFile) -> list[str]:
    splits = ["test"] if file.kind == "zs" else list(SPLITS)
    texts = ["corpus", "queries"] if file.kind in RETRIEVAL_KINDS else []
    made = {name.partition("_")[0] for name in _FRACTIONS if getattr(file, name)}
    return [*texts, *(split for split in splits if split not in {*made, *_unused(file)})]


def _missing(file: TaskFile, key: str) -> str:
    """Describe the expected name of a missing file, and alternatives."""
    if key in {"corpus", "queries"}:
        return f"({key}.jsonl)"
    if file.kind in RETRIEVAL_KINDS:
        names = " or ".join(f"qrels/{name}.tsv" for name in _SPLIT_NAMES[key].split("|"))
    else:
        names = f"{_SPLIT_NAMES[key].replace('|', ', ')} with {', '.join(SUFFIXES[file.kind])}"
    remedy = f"name it in a task file ({key})"
    if key != "train":
        remedy += f", or take it from the training split there ({key}_fraction)"
    elif file.kind == "ir":
        remedy += ", or use kind zs, without training"
    return f"split ({names}); {remedy}"


def _found(kind: Kind, folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    if kind in RETRIEVAL_KINDS:
        return _found_retrieval(folder)
    files = {}
    suffixes = "|".join(re.escape(suffix) for suffix in SUFFIXES[kind])
    for split, names in _SPLIT_NAMES.items():
        # SQuAD's file names include the version, those of Universal Dependencies the treebank.
        pattern = rf"(.+-ud-)?({names})(-v\d+\.\d+)?({suffixes})(\.gz)?"
        paths = [path for path in sorted(folder.iterdir()) if re.fullmatch(pattern, path.name)]
        if path := _only(paths):
            files[split] = path
    if kind in LABEL_KINDS and (folder / "labels.json").is_file():
        files["labels"] = folder / "labels.json"
    return files


def _found_retrieval(folder: Path) -> dict[str, Path]:
    stems = {"corpus": "corpus.jsonl", "queries": "queries.jsonl"}
    options = {key: [folder / stem] for key, stem in stems.items()}
    for split, names in _SPLIT_NAMES.items():
        options[split] = [folder / "qrels" / f"{name}.tsv" for name in names.split("|")]
    files = {}
    for key, plain in options.items():
        paths = [*plain, *(path.with_name(f"{path.name}.gz") for path in plain)]
        if path := _only([path for path in paths if path.is_file()]):
            files[key] = path
    return files


def _only(paths: list[Path]) -> Path | None:
    if len(paths) > 1:
        names = " or ".join(path.name for path in paths)
        raise DataError(f"{paths[0].parent}: several files match ({names}); set one in a task file")
    return paths[0] if paths else None
