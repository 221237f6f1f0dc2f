"""The record of a finished state, read with the right remedy for damage."""

from __future__ import annotations

from pathlib import Path

from biphasic.errors import CheckpointError, DataError
from biphasic.files import read_json
from biphasic.records import StateRecord, parse_record


def read_state_record(folder: Path) -> StateRecord:
    """Read what a state says of itself.

    Args:
        folder: Of the state.

    Raises:
        CheckpointError: It is missing or damaged. The file alone cannot be made again.
    """
    path = folder / "state.json"
    try:
        return parse_record(StateRecord, read_json(path), where=str(path))
    except DataError as error:
        told = str(error).removesuffix("; delete it and run again")
        raise CheckpointError(f"{told}; delete the folder {folder} and run again") from None
