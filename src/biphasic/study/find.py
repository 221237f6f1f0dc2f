"""Studies on disk, found by file, folder or name; a study file alone needs more than a look."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from biphasic.config import nearest
from biphasic.errors import DataError
from biphasic.records import STUDY
from biphasic.study.paths import RESOLVED

if TYPE_CHECKING:
    from biphasic.study.spec.study import StudyConfig

_YAML = frozenset({".yaml", ".yml"})


def study_folders(root: Path) -> list[Path]:
    """Return the folders of a root that hold studies."""
    return [each for each in sorted(root.iterdir()) if _holds_study(each)]


def _holds_study(folder: Path) -> bool:
    return (folder / RESOLVED).is_file() or (folder / STUDY).is_file()


def find_study(target: Path | str | None, root: Path) -> tuple[Path, StudyConfig | None]:
    """Return the folder of a study, and its settings if a study file was named.

    Args:
        target: Study file, study folder, or name of a study; None for the only one of the root.
        root: Folder of studies.

    Raises:
        ConfigError: The study file is wrong.
        DataError: There is no such study, or none was named and there are several.
    """
    known = [folder.name for folder in study_folders(root)] if root.is_dir() else []
    if target is None:
        if len(known) != 1:
            told = f"name one of {', '.join(known)}" if known else "none was run there"
            raise DataError(f"{root}: which study? {told}")
        return root.resolve() / known[0], None
    path = Path(target)
    if path.suffix in _YAML:
        # Imports torch; who names a folder gets an answer at once.
        from biphasic.study.spec.load import load_study  # noqa: PLC0415

        config = load_study(path)
        return root.resolve() / config.name, config
    for folder in (path, root / path):
        if _holds_study(folder):
            return folder.resolve(), None
    raise DataError(
        f"{target}: neither a study file, nor the folder or name of a study that was run"
        f"{nearest(str(target), known)}"
    )
