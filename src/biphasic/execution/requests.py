"""What people ask of a running study: files in its folder, so that any machine can ask."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from biphasic.config import Config
from biphasic.files import write_text

_FOLDER = "requests"


class Request(Config):
    """One pin."""

    kind: Literal["cancel", "retry"]
    jobs: tuple[str, ...] = ()
    """Jobs to try again; all that were set aside when empty."""


@dataclass(frozen=True)
class Requests:
    """All pins since the last look.

    Attributes:
        is_cancelled: Somebody wants the study to stop.
        retries: Jobs to try again: all that were set aside when empty; None for no pin.
    """

    is_cancelled: bool = False
    retries: tuple[str, ...] | None = None


def write_request(folder: Path, request: Request) -> None:
    """Ask something of the study of a folder; whoever runs it hears within some seconds."""
    name = f"{request.kind}-{uuid.uuid4().hex[:12]}.json"
    write_text(folder / _FOLDER / name, request.model_dump_json())


def has_request(folder: Path, kind: Literal["cancel", "retry"]) -> bool:
    """Tell whether a pin of a kind has not been read yet."""
    return any((folder / _FOLDER).glob(f"{kind}-*.json"))


def read_requests(folder: Path) -> Requests:
    """Take the pins that have come in; none is read twice.

    A file that is no pin of this version is left alone.
    """
    is_cancelled, retries = False, None
    for path in sorted((folder / _FOLDER).glob("*.json")):
        try:
            request = Request.model_validate_json(path.read_text(encoding="utf-8"))
        except (ValidationError, UnicodeDecodeError, FileNotFoundError):
            continue
        path.unlink(missing_ok=True)
        if request.kind == "cancel":
            is_cancelled = True
        elif not request.jobs or retries == ():
            retries = ()
        else:
            retries = (*(retries or ()), *request.jobs)
    return Requests(is_cancelled=is_cancelled, retries=retries)


def forget_requests(folder: Path) -> None:
    """Drop what was asked of an earlier run."""
    for path in (folder / _FOLDER).glob("*.json"):
        path.unlink(missing_ok=True)
