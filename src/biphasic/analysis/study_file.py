"""Reads `study.json`."""

from __future__ import annotations

from pathlib import Path

from biphasic.errors import DataError, repeated
from biphasic.files import read_json
from biphasic.records import STUDY, StudyRecord, parse_record

# Remedy for a damaged `study.json`.
AGAIN = "'biphasic study run' with its study file writes it again"


def read_study(folder: Path) -> StudyRecord:
    """Read `study.json` from a study's folder."""
    path = folder / STUDY
    raw = read_json(path, remedy=AGAIN)
    study = parse_record(StudyRecord, raw, where=str(path), remedy=AGAIN)
    for what, names in (
        ("arm", [arm.name for arm in study.arms]),
        ("task", [task.name for task in study.tasks]),
    ):
        if twice := repeated(names):
            raise DataError(f"{path}: {what} '{twice[0]}' occurs twice; rename one of them")
    return study
