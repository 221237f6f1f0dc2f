"""A study's report, written when there is something new to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from biphasic.analysis.report import write_report
from biphasic.files import digest, read_json, write_json
from biphasic.study.plan import missing_runs, missing_segments
from biphasic.study.prepared import PreparedStudy
from biphasic.study.record import study_record


def write_study_report(study: PreparedStudy) -> Path:
    """Write `study.json` and the report, or leave them where they say the same already.

    What they were made from is noted last: an interrupted call, and a study file that changed
    without a job to run, leave no stale report behind.

    Returns:
        The path of the report.
    """
    folder, store, plan = study.folder, study.store, study.plan
    record = study_record(
        study.config, plan, study.data, origin=study.paths.origin(), store=store
    )  # fmt: skip
    made_from = digest({"study": _lasting(record), "missing": _missing(study)})
    report, note = folder / "report" / "report.html", folder / "report" / "made-from.json"
    if report.is_file() and note.is_file() and read_json(note) == {"sha256": made_from}:
        return report
    write_json(folder / "study.json", record)
    report = write_report(folder, store)
    write_json(note, {"sha256": made_from})
    return report


def _lasting(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without what changes from machine to machine, or with the folder."""
    provenance = {
        key: part
        for key, part in record["provenance"].items()
        if key not in {"environment", "settings_sha256"}
    }
    return {**record, "provenance": provenance}


def _missing(study: PreparedStudy) -> list[str]:
    segments = [segment.id for segment in missing_segments(study.plan, study.store)]
    return segments + [
        run for group in study.plan.groups for run in missing_runs(group, study.store)
    ]
