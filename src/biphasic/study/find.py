"""Lookup of studies on disk, by file, folder or name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from biphasic.config import nearest
from biphasic.errors import DataError
from biphasic.records import STUDY
from biphasic.study import RESOLVED

if TYPE_CHECKING:
    from biphasic.study.settings.study import StudyConfig

_YAML = frozenset({".yaml", ".yml"})


def study_folders(root: Path) -> list[Path]:
    """Return the folders of a root with studies."""
    return [folder for folder in sorted(root.iterdir()) if _holds_study(folder)]


def _holds_study(folder: Path) -> bool:
    return (folder / RESOLVED).is_file() or (folder / STUDY).is_file()


def find_study(target: Path | str | None, root: Path) -> tuple[Path, StudyConfig | None]:
    """Return the folder of a study, and its settings if `target` is a study file."""
    known = [folder.name for folder in study_folders(root)] if root.is_dir() else []
    if target is None:
        if len(known) != 1:
            problem = f"several studies, name one of {', '.join(known)}" if known else "no studies"
            raise DataError(f"{root}: {problem}")
        return root.resolve() / known[0], None
    path = Path(target)
    if path.suffix in _YAML:
        # Slow, and not needed for a name.
        from biphasic.study.settings.load import load_study  # noqa: PLC0415

        config = load_study(path)
        return root.resolve() / config.name, config
    for folder in (path, root / path):
        if _holds_study(folder):
            return folder.resolve(), None
    raise DataError(
        f"{target}: not a study file, nor the folder of a study, nor the name of one in {root}"
        f"{nearest(str(target), known)}"
    )
