"""A study's report, rewritten when its content changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from biphasic.analysis.report import is_current, write_report
from biphasic.errors import DataError
from biphasic.files import read_json, write_json
from biphasic.records import STUDY
from biphasic.study.run.prepare import PreparedStudy
from biphasic.study.run.record import settings_digest, study_record
from biphasic.training.records.environment import environment


def write_study_report(study: PreparedStudy) -> Path:
    """Write `study.json` and the report, unless both are intact and up to date.

    Returns:
        The path of the report.
    """
    folder, store, plan = study.folder, study.store, study.plan
    record = study_record(
        study.config, plan, study.data, origin=study.paths.origin(), store=store
    ).model_dump(mode="json", exclude_unset=True)
    if _written(folder) == record and is_current(folder, store):
        return folder / "report" / "report.html"
    record["provenance"] = {"environment": environment(), **record["provenance"]}
    write_json(folder / STUDY, record)
    return write_report(folder, store)


def refresh_edited_report(study: PreparedStudy) -> None:
    """Rewrite the report if the study was edited since.

    Its jobs may take hours or be interrupted before the final report.
    """
    if not (study.folder / "report").is_dir():
        return
    try:
        known = read_json(study.folder / STUDY)["provenance"]["settings_sha256"]
    except (DataError, KeyError, TypeError):
        known = None
    if known != settings_digest(study.config):
        write_study_report(study)


def _written(folder: Path) -> Any:
    """Return `study.json` without the hardware; None if it is not readable."""
    try:
        record = read_json(folder / STUDY)
        del record["provenance"]["environment"]
    except (DataError, KeyError, TypeError):
        return None
    return record
