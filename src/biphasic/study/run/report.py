"""A study's report, rewritten when its content changes."""

from __future__ import annotations

from pathlib import Path

from biphasic.analysis.checked import NOTE, has_hashes, report_damage
from biphasic.errors import DataError
from biphasic.files import digest, read_json, write_json
from biphasic.records import STUDY
from biphasic.study.plan.finished import Finished
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
    made_from = digest({"study": record, "missing": Finished.of(store).missing(plan)})
    if _is_current(folder, made_from):
        return folder / "report" / "report.html"
    record["provenance"] = {"environment": environment(), **record["provenance"]}
    write_json(folder / STUDY, record)
    from biphasic.analysis.page.report import write_report  # noqa: PLC0415 - loads matplotlib

    return write_report(folder, store, made_from=made_from)


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


def _is_current(folder: Path, made_from: str) -> bool:
    """Return whether a study has an intact report made from this digest."""
    try:
        note = read_json(folder / "report" / NOTE)
        is_same = note["sha256"] == made_from
    except (DataError, KeyError, TypeError):
        return False
    return is_same and has_hashes(folder) and not report_damage(folder, hashes=True)
