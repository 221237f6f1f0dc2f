"""Jobs saved in the store by identity, so any process with access to it can run them."""

from __future__ import annotations

import re
from pathlib import Path

from biphasic.errors import ConfigError
from biphasic.execution.job import Job
from biphasic.files import write_text

IDENTITY = "[0-9a-z][0-9a-z-]*"
"""Pattern of job and result names: hashes, with `data-`, `report-` or `-0-of-2`; never a path."""
_LONGEST = 128


def save_job(job: Job) -> None:
    """Save a job's inputs; overwrites an earlier copy."""
    # Not flushed: planning again rewrites it.
    write_text(job_path(job.store, job.id), job.model_dump_json(), is_flushed=False)


def job_path(store: Path, identity: str) -> Path:
    """Return the path of a job.

    Raises:
        ConfigError: The identity is invalid.
    """
    if len(identity) > _LONGEST or not re.fullmatch(IDENTITY, identity):
        raise ConfigError(
            f"'{identity}' is not a job identity (digits, lowercase letters and dashes)"
        )
    return store / "jobs" / f"{identity}.json"
