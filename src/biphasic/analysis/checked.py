"""Reads files of complete folders, and verifies them against their manifest."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from biphasic.errors import DataError, reading
from biphasic.files import MANIFEST, damaged_files, file_sha256, read_json

NOTE = "made-from.json"
"""Lists the files of a report; written last."""


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
            return json.loads(content.decode("utf-8"))
        except ValueError as error:
            raise DataError(f"{name}: damaged JSON ({error}); {remedy}") from None


def report_damage(folder: Path, *, hashes: bool) -> list[str]:
    """Return the problems of the files of a study's report; none if there is no report.

    Without `hashes`, only missing files and wrong sizes are detected.
    """
    note = folder / "report" / NOTE
    if not note.is_file():
        is_begun = (folder / "report").is_dir()
        return [f"{note}: missing: the report was not finished"] if is_begun else []
    if not has_hashes(folder):
        return []
    return list(damaged_files(folder, note, hashes=hashes))


def has_hashes(folder: Path) -> bool:
    """Return whether a study's report lists its files; those of earlier versions do not."""
    try:
        return "files" in read_json(folder / "report" / NOTE)
    except (DataError, TypeError):
        return True  # damaged, which is reported elsewhere


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
