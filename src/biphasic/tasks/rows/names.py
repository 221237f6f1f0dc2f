"""Usual names of the user's files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from biphasic.errors import DataError

SPLIT_NAMES = {"train": "train", "validation": "validation|valid|val|dev", "test": "test"}
"""Usual names of splits."""
USUAL_TEXTS = (
    ("text",),
    ("sentence",),
    ("text_a", "text_b"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
)
"""Usual column names of single texts and of pairs."""


def plain_suffix(path: Path) -> str:
    """Return a file's suffix without that of compression."""
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


def find_splits(folder: Path, suffixes: Sequence[str]) -> dict[str, Path]:
    """Return the files of splits in a folder."""
    files, ends = {}, "|".join(map(re.escape, suffixes))
    for split, names in SPLIT_NAMES.items():
        # SQuAD's file names include the version, those of Universal Dependencies the treebank.
        pattern = rf"(.+-ud-)?({names})(-v\d+\.\d+)?({ends})(\.gz)?"
        paths = [path for path in sorted(folder.iterdir()) if re.fullmatch(pattern, path.name)]
        if path := only_path(paths):
            files[split] = path
    return files


def only_path(paths: list[Path]) -> Path | None:
    """Return the only path, or None if there is none."""
    if len(paths) > 1:
        names = " or ".join(path.name for path in paths)
        raise DataError(f"{paths[0].parent}: several files match ({names}); set one in a task file")
    return paths[0] if paths else None
