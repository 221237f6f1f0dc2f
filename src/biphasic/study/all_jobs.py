"""All kinds of jobs, and how one is read by its identity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from biphasic.errors import DataError
from biphasic.study.corpus_job import CorpusJob
from biphasic.study.job_store import job_path
from biphasic.study.jobs import FinetuneJob, TrainJob
from biphasic.study.report_job import ReportJob

AnyJob = TrainJob | FinetuneJob | CorpusJob | ReportJob
_ADAPTER: TypeAdapter[AnyJob] = TypeAdapter(Annotated[AnyJob, Field(discriminator="kind")])


def load_job(store: Path, identity: str) -> AnyJob:
    """Read a job.

    Raises:
        DataError: There is none, or it was written by another version of the program.
    """
    path = job_path(store, identity)
    try:
        return _ADAPTER.validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such job; 'biphasic study jobs FILE' writes those that a study lacks"
        ) from None
    except (ValidationError, UnicodeDecodeError):
        raise DataError(
            f"{path}: not a job of this version; 'biphasic study jobs FILE' writes it again"
        ) from None
