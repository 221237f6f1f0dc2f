"""Files of complete folders, believed only while they are what their manifest says."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from biphasic.errors import DataError, reading
from biphasic.files import MANIFEST, file_sha256, read_json


def check_file(path: Path) -> str:
    """Compare one file with its folder's manifest; a folder without one is taken as it is.

    Returns:
        What is wrong with the file; empty where nothing is.
    """
    return _changed(path, file_sha256(path))


def read_checked(path: Path, *, name: str) -> Any:
    """Read a JSON file once, for its hash and its content.

    Args:
        path: The file.
        name: What messages call it.

    Raises:
        DataError: It was changed since it was written, or is no JSON.
    """
    with reading(name, DataError):
        content = path.read_bytes()
        if damage := _changed(path, hashlib.sha256(content).hexdigest()):
            raise DataError(damage)
        try:
            return json.loads(content.decode("utf-8"))
        except ValueError as error:
            raise DataError(f"{name}: damaged JSON ({error}); delete it and run again") from None


def _changed(path: Path, found: str) -> str:
    manifest = path.parent / MANIFEST
    if not manifest.is_file():
        return ""
    try:
        expected = read_json(manifest)["files"][path.name]["sha256"]
    except (DataError, KeyError, TypeError):
        expected = None
    if expected == found:
        return ""
    return f"{path.parent.name[:12]}/{path.name}: changed since it was written (SHA-256 differs)"
