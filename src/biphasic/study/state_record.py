"""The record of a finished state, read with the right remedy for damage."""

from __future__ import annotations

from pathlib import Path

from biphasic.errors import CheckpointError
from biphasic.files import read_json
from biphasic.records import StateRecord, parse_record


def read_state_record(folder: Path) -> StateRecord:
    """Read what a state says of itself.

    Args:
        folder: Of the state.

    Raises:
        CheckpointError: It is missing or damaged. The file alone cannot be made again.
    """
    path, remedy = folder / "state.json", f"delete the folder {folder} and run again"
    raw = read_json(path, remedy=remedy, error=CheckpointError)
    return parse_record(StateRecord, raw, where=str(path), remedy=remedy, error=CheckpointError)
