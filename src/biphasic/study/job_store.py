"""Jobs in the store, each under its identity: enough to do one anywhere the store can be seen."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from biphasic.errors import StudyError
from biphasic.files import write_text
from biphasic.study.jobs import Job

_ADAPTER: TypeAdapter[Job] = TypeAdapter(Job)
_IDENTITY = re.compile(r"[0-9a-z][0-9a-z-]{0,127}")


def save_job(job: Job) -> None:
    """Write down what a job is given; the same job may be written again."""
    # Not flushed: whoever plans again writes it again.
    write_text(_path(job.store, job.id), job.model_dump_json(), is_flushed=False)


def load_job(store: Path, identity: str) -> Job:
    """Read a job.

    Raises:
        StudyError: There is none, or it was written by another version of the program.
    """
    path = _path(store, identity)
    try:
        return _ADAPTER.validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StudyError(
            f"{path}: no such job; 'biphasic study jobs FILE' writes those that a study lacks"
        ) from None
    except (ValidationError, UnicodeDecodeError):
        raise StudyError(
            f"{path}: not a job of this version; 'biphasic study jobs FILE' writes it again"
        ) from None


def _path(store: Path, identity: str) -> Path:
    if not _IDENTITY.fullmatch(identity):
        raise StudyError(f"'{identity}' is not the identity of a job: digits, letters and dashes")
    return store / "jobs" / f"{identity}.json"
