"""All kinds of jobs, and how one is read by its identity.

Whoever may write into a shared store may edit its job files. So a job works in the store that it
was found in, whatever its file says, and writes nowhere else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from biphasic.errors import DataError
from biphasic.execution.job_store import job_path
from biphasic.study.jobs.corpus import CorpusJob
from biphasic.study.jobs.finetune import FinetuneJob
from biphasic.study.jobs.train import TrainJob
from biphasic.study.run.report_job import ReportJob

WORKER = "biphasic.study.run.worker"
"""Module of the processes that run jobs."""
AnyJob = TrainJob | FinetuneJob | CorpusJob | ReportJob
_ADAPTER: TypeAdapter[AnyJob] = TypeAdapter(Annotated[AnyJob, Field(discriminator="kind")])


def load_job(store: Path, identity: str) -> AnyJob:
    """Read a job; its store is the one that it lies in.

    Raises:
        DataError: There is none, another version of the program wrote it, or it is another job
            than its file's name says, or it would write outside of the root folder.
    """
    path = job_path(store, identity)
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        job = _ADAPTER.validate_python({**raw, "store": store})
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such job; 'biphasic study jobs FILE' writes those that a study lacks"
        ) from None
    except (ValueError, TypeError, RecursionError):
        raise DataError(
            f"{path}: not a job of this version; 'biphasic study jobs FILE' writes it again"
        ) from None
    if job.id != identity:
        raise DataError(
            f"{path}: says that it is job '{job.id}'; 'biphasic study jobs FILE' writes it again"
        )
    places = (store.resolve(), store.parent.resolve())
    for output in job.outputs():
        if not any(output.resolve().is_relative_to(place) for place in places):
            raise DataError(
                f"{path}: would write {output}, which is not below {store.parent}; "
                "'biphasic study jobs FILE' writes the job again"
            )
    return job
