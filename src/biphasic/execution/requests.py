"""Requests to a running study: files in its folder, written from any machine."""

from __future__ import annotations

import uuid
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


def write_request(folder: Path, request: Request) -> None:
    """Write a request into a study's folder; its runner reads it within a few seconds."""
    name = f"{request.kind}-{uuid.uuid4().hex[:12]}.json"
    write_text(folder / _FOLDER / name, request.model_dump_json())


def has_request(folder: Path, kind: Literal["cancel", "retry"]) -> bool:
    """Return whether a request of this kind is still unread."""
    return any((folder / _FOLDER).glob(f"{kind}-*.json"))


def read_requests(folder: Path) -> list[Request]:
    """Read and delete all pending requests; files that are none of this version are ignored."""
    requests: list[Request] = []
    for path in sorted((folder / _FOLDER).glob("*.json")):
        try:
            requests.append(Request.model_validate_json(path.read_text(encoding="utf-8")))
        except (ValidationError, UnicodeDecodeError, FileNotFoundError):
            continue
        path.unlink(missing_ok=True)
    return requests
