"""What commands that read results share: the folder, and the convention of intervals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from biphasic.analysis.load import Problem
    from biphasic.analysis.score_table import Scores
    from biphasic.records import Convention


def chosen_convention(text: str | None) -> Convention | None:
    """Check what `--convention` was given; None where it was not.

    Raises:
        ConfigError: There is no such convention.
    """
    from typing import get_args

    from biphasic.config import nearest
    from biphasic.errors import ConfigError
    from biphasic.records import Convention

    known = get_args(Convention)
    if text is not None and text not in known:
        raise ConfigError(f"--convention {text}: no such convention{nearest(text, known)}")
    return cast("Convention | None", text)


def read_scores(folder: Path, convention: Convention | None) -> tuple[Scores, tuple[Problem, ...]]:
    """Read a study's scores or other people's, and what is wrong with their records.

    Args:
        folder: A study's, or one with results by model, task and dataset.
        convention: Of intervals; by default the study's own, or standard.

    Raises:
        DataError: There is nothing to read.
        StudyError: The study's record is damaged.
    """
    from biphasic.analysis.layout import read_layout
    from biphasic.analysis.load import load_study
    from biphasic.analysis.scores import study_scores

    folder = folder.resolve()
    if (folder / "study.json").is_file():
        records = load_study(folder, folder.parent / "store")
        return study_scores(records, convention), records.problems
    layout = read_layout(folder)
    return layout.scores(convention or "standard"), layout.problems
