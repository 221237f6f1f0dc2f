"""Jobs in the store, each under its identity: enough to do one anywhere the store can be seen."""

from __future__ import annotations

import re
from pathlib import Path

from biphasic.errors import ConfigError
from biphasic.execution.job import Job
from biphasic.files import write_text

IDENTITY = "[0-9a-z][0-9a-z-]*"
"""Names jobs and results. It can be no path: hashes, with `data-`, `report-` or `-0-of-2`."""
_LONGEST = 128


def save_job(job: Job) -> None:
    """Write down what a job is given; the same job may be written again."""
    # Not flushed: whoever plans again writes it again.
    write_text(job_path(job.store, job.id), job.model_dump_json(), is_flushed=False)


def job_path(store: Path, identity: str) -> Path:
    """Return where a job lies.

    Raises:
        ConfigError: That is no identity.
    """
    if len(identity) > _LONGEST or not re.fullmatch(IDENTITY, identity):
        raise ConfigError(f"'{identity}' is not the identity of a job: digits, letters and dashes")
    return store / "jobs" / f"{identity}.json"
