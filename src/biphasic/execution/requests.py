"""Requests to a running study: files in its folder, written from any machine."""

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
    """One request."""

    kind: Literal["cancel", "retry"]
    jobs: tuple[str, ...] = ()
    """Jobs to retry; all failed jobs when empty."""


@dataclass(frozen=True)
class Requests:
    """All requests since the last read.

    Attributes:
        is_cancelled: Whether to stop the study.
        retries: Jobs to retry: all failed jobs when empty; None for no request.
    """

    is_cancelled: bool = False
    retries: tuple[str, ...] | None = None


def write_request(folder: Path, request: Request) -> None:
    """Write a request into a study's folder; its runner reads it within a few seconds."""
    name = f"{request.kind}-{uuid.uuid4().hex[:12]}.json"
    write_text(folder / _FOLDER / name, request.model_dump_json())


def has_request(folder: Path, kind: Literal["cancel", "retry"]) -> bool:
    """Return whether a request of this kind is still unread."""
    return any((folder / _FOLDER).glob(f"{kind}-*.json"))


def read_requests(folder: Path) -> Requests:
    """Read and delete all pending requests.

    Files that are not requests of this version are ignored.
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
    """Delete requests to an earlier run."""
    for path in (folder / _FOLDER).glob("*.json"):
        path.unlink(missing_ok=True)
