"""All kinds of jobs, and loading a job by its identity.

`python -m biphasic.study.run.jobs STORE THREADS` runs jobs, as the worker of an executor.

Anyone who can write to a shared store can edit its job files. A job therefore always uses the
store it was loaded from, and its outputs must lie below that store's root.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from biphasic.errors import DataError
from biphasic.execution.job import job_path
from biphasic.execution.worker import serve
from biphasic.files import json_value
from biphasic.plugin_code import look_in
from biphasic.study.inputs.corpus import CorpusJob
from biphasic.study.jobs import FinetuneJob, TrainJob
from biphasic.study.run.record import ReportJob

WORKER = "biphasic.study.run.jobs"  # Module of the processes that run jobs.
AnyJob = TrainJob | FinetuneJob | CorpusJob | ReportJob
_ADAPTER: TypeAdapter[AnyJob] = TypeAdapter(Annotated[AnyJob, Field(discriminator="kind")])


def load_job(store: Path, identity: str) -> AnyJob:
    """Load a job from a store."""
    path = job_path(store, identity)
    look_in(store)
    try:
        raw: dict[str, Any] = json_value(path.read_text(encoding="utf-8"))
        job = _ADAPTER.validate_python({**raw, "store": store})
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such job; 'biphasic study jobs FILE' writes a study's missing jobs"
        ) from None
    except (ValueError, TypeError, RecursionError):
        raise DataError(
            f"{path}: not a job of this version; 'biphasic study jobs FILE' rewrites it"
        ) from None
    if job.id != identity:
        raise DataError(f"{path}: contains job '{job.id}'; 'biphasic study jobs FILE' rewrites it")
    places = (store.resolve(), store.parent.resolve())
    for output in job.outputs():
        if not any(output.resolve().is_relative_to(place) for place in places):
            raise DataError(
                f"{path}: would write {output}, which is not below {store.parent}; "
                "'biphasic study jobs FILE' rewrites the job"
            )
    return job


if __name__ == "__main__":
    serve(load_job)
