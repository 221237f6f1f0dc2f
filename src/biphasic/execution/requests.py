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
    # To cancel twice is to cancel once; each retry names other jobs.
    mark = "" if request.kind == "cancel" else f"-{uuid.uuid4().hex[:12]}"
    write_text(folder / _FOLDER / f"{request.kind}{mark}.json", request.model_dump_json())


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
