"""Reads records, and verifies them against the manifest of their folder."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

from biphasic.errors import DataError, StudyError, reading
from biphasic.files import MANIFEST, file_sha256, json_value, read_json
from biphasic.records import STUDY, StudyRecord, parse_record

AGAIN = "'biphasic study run' with its study file writes it again"
"""Remedy for a damaged `study.json`."""


def check_file(path: Path) -> str:
    """Verify one file against its folder's manifest, if there is one.

    Returns:
        A description of the problem; empty if there is none.
    """
    return _changed(path, file_sha256(path))


def read_checked(path: Path, *, name: str, remedy: str) -> Any:
    """Read a JSON file once, for its hash and its content.

    Raises:
        DataError: It was changed since it was written, or is not JSON.
    """
    with reading(name, DataError, remedy=remedy):
        content = path.read_bytes()
        if damage := _changed(path, hashlib.sha256(content).hexdigest()):
            raise DataError(damage)
        try:
            return json_value(content.decode("utf-8"))
        except ValueError as error:
            raise DataError(f"{name}: damaged JSON ({error}); {remedy}") from None


def read_study(folder: Path) -> StudyRecord:
    """Read `study.json` from a study's folder.

    Raises:
        StudyError: It is not readable, or it contradicts itself.
    """
    path = folder / STUDY
    raw = read_json(path, remedy=AGAIN, error=StudyError)
    study = parse_record(StudyRecord, raw, where=str(path), remedy=AGAIN, error=StudyError)
    for what, names in (
        ("arm", [arm.name for arm in study.arms]),
        ("task", [task.name for task in study.tasks]),
    ):
        repeated = sorted(name for name, count in Counter(names).items() if count > 1)
        if repeated:
            raise StudyError(f"{path}: {what} '{repeated[0]}' occurs twice; rename one of them")
    return study


def _changed(path: Path, sha256: str) -> str:
    manifest = path.parent / MANIFEST
    if not manifest.is_file():
        return ""
    try:
        expected = read_json(manifest)["files"][path.name]["sha256"]
    except (DataError, KeyError, TypeError):
        expected = None
    if expected == sha256:
        return ""
    return f"{path.parent.name[:12]}/{path.name}: changed since it was written (SHA-256 differs)"
