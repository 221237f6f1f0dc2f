"""Registrations: what a study fixed before its results, sealed in the study's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from biphasic.errors import DataError
from biphasic.files import digest, write_json
from biphasic.records import RegistrationRecord, StudyRecord
from biphasic.store import REGISTRATION, complete_folder

REGISTRATIONS = "registrations"
_FILE = "registration.json"
_ARM = {"state", "steps", "model", "phases", "recipe", "seeds", "attention"}
_TASK = {"kind", "metric", "num_train", "num_validation", "num_test", "trained_on"}


def fixed_part(study: StudyRecord) -> dict[str, Any]:
    """Return what a registration fixes, by part."""
    # Identities of states and fine-tunings cover text, tasks and protocol. Defaults are left out: a
    # later version of biphasic, with more fields, must find no change.

    def plain(record: Any, include: set[str] | None = None) -> Any:
        return record.model_dump(mode="json", include=include, exclude_defaults=True)

    # Runs beyond the grid become due by results; that they may is fixed.
    grid = {0.0, *study.learning_rates}  # zero-shot runs have 0
    runs = sorted((run.arm, run.task, run.id) for run in study.runs if run.learning_rate in grid)
    extend = {"extend": study.extend} if study.extend else {}
    return {
        "questions": [plain(one) for one in study.questions],
        "planned comparisons": [plain(one) for one in study.compare],
        "arms": {arm.name: plain(arm, _ARM) for arm in study.arms},
        "tasks": {task.name: plain(task, _TASK) for task in study.tasks},
        "grid": {"learning_rates": list(study.learning_rates), "runs": digest(runs), **extend},
        "seeds": sorted({run.seed for run in study.runs}),
        "statistics": study.convention,
    }


def changed_parts(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts in which two studies differ."""
    return tuple(name for name in after if before.get(name) != after[name])


def registration_id(fixed: Mapping[str, Any], code: Mapping[str, str], amends: str | None) -> str:
    """Return the hash that names a registration."""
    return digest({"fixed": fixed, "code": code, "amends": amends})


def read_registrations(study_folder: Path) -> tuple[RegistrationRecord, ...]:
    """Read a study's registrations: the first one, then its amendments."""
    records: list[RegistrationRecord] = []
    for folder in sorted((study_folder / REGISTRATIONS).glob("[0-9]*")):
        record = REGISTRATION.open(folder).record(RegistrationRecord, _FILE)
        before = records[-1].id if records else None
        if registration_id(record.fixed, record.code, record.amends) != record.id:
            raise DataError(f"{folder}: its content does not have the hash {record.id[:12]}")
        if record.amends != before:
            raise DataError(f"{folder}: amends another registration than the one before it")
        records.append(record)
    return tuple(records)


def write_registration(study_folder: Path, record: RegistrationRecord, *, number: int) -> Path:
    """Seal a registration in the study's folder."""
    path = study_folder / REGISTRATIONS / f"{number:03d}-{record.id[:12]}"
    with complete_folder(path, id=record.id) as partial:
        write_json(partial / _FILE, record.model_dump(mode="json"))
    return path
