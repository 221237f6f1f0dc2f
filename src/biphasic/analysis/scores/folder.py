"""Results in a folder: a study's, or those of other tools."""

from __future__ import annotations

from pathlib import Path

from biphasic.analysis.records import StudyRecords, load_study
from biphasic.analysis.scores.datasets import DatasetChoice
from biphasic.analysis.scores.layout import Layout, read_layout
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.scores.table import Scores
from biphasic.files import is_file
from biphasic.records import STUDY, Convention


def read_results(folder: Path, choice: DatasetChoice) -> StudyRecords | Layout:
    """Read the chosen datasets of a study's folder, or of one with the layout of other tools."""
    folder = folder.resolve()
    if not is_file(folder / STUDY):
        return read_layout(folder, choice)
    records = load_study(folder, folder.parent / "store")
    left_out = choice.left_out(task.name for task in records.tasks)
    return records.without(left_out) if left_out else records


def scores_of(results: StudyRecords | Layout, convention: Convention | None) -> Scores:
    """Return the scores; the default convention is the study's, else standard."""
    if isinstance(results, Layout):
        return results.scores(convention or "standard")
    return study_scores(results, convention)
