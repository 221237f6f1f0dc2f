"""A study's report: the job that writes it when its content changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from biphasic.analysis.report import is_current, write_report
from biphasic.errors import DataError
from biphasic.execution.job import Job, Progress, Report, ShouldStop, WorkItem, never
from biphasic.files import digest, read_json, write_json
from biphasic.records import STUDY
from biphasic.shown import Shown
from biphasic.study.run.prepare import PreparedStudy, prepare_study
from biphasic.study.run.record import settings_digest, study_record
from biphasic.study.spec.arms import Name
from biphasic.study.study import Study
from biphasic.training.records.environment import environment


def write_study_report(prepared: PreparedStudy) -> Path:
    """Write `study.json` and the report, unless both are up to date; return the report's path."""
    folder, store = prepared.study.folder, prepared.study.store
    record = study_record(prepared).model_dump(mode="json", exclude_unset=True)
    if _written(folder) == record and is_current(folder, store):
        return folder / "report" / "report.html"
    _write_record(folder, record)
    return write_report(folder, store)


def refresh_record(prepared: PreparedStudy) -> None:
    """Write `study.json`, and the report if there is one, if the study is new or was edited."""
    # Jobs may take hours: 'study report' needs the record meanwhile, and after an interruption.
    study = prepared.study
    try:
        known = read_json(study.folder / STUDY)["provenance"]["settings_sha256"]
    except (DataError, KeyError, TypeError):
        known = None
    if known == settings_digest(study.config):
        return
    if (study.folder / "report").is_dir():
        write_study_report(prepared)
    else:
        record = study_record(prepared).model_dump(mode="json", exclude_unset=True)
        _write_record(study.folder, record)


def _write_record(folder: Path, record: dict[str, Any]) -> None:
    record["provenance"] = {"environment": environment(), **record["provenance"]}
    write_json(folder / STUDY, record)


def _written(folder: Path) -> Any:
    """Return `study.json` without the hardware; None if it is not readable."""
    try:
        record = read_json(folder / STUDY)
        del record["provenance"]["environment"]
    except (DataError, KeyError, TypeError):
        return None
    return record


class ReportJob(Job):
    """Write a report."""

    kind: Literal["report"] = "report"
    id: str  # Depends on the study's name only: a report may be written again.
    study: Name  # Name of the study; its folder is a sibling of the store.

    @classmethod
    def of(cls, study: Study) -> ReportJob:
        """Return the job that reports a study."""
        name = study.config.name
        return cls(
            id=f"report-{digest(name)[:32]}",
            label=f"report of {name}",
            store=study.store,
            study=name,
        )

    def outputs(self) -> list[Path]:
        """Return its output folder."""
        return [self.store.parent / self.study]

    def is_done(self) -> bool:
        """Return False: `run` itself skips an up-to-date report."""
        return False

    def run(self, report: Report, *, should_stop: ShouldStop = never) -> None:  # noqa: ARG002
        """Write the report, unless it is up to date."""
        study = Study.saved(self.store.parent / self.study)
        console = Console(quiet=True)
        prepared = prepare_study(study, console=console)
        prepared.compute_baselines(console=console)
        write_study_report(prepared)
        report(Progress(1, 1, ""))


@dataclass(frozen=True, repr=False)
class StudyJobs(Shown):
    """What `jobs` returns: the missing jobs of a study, saved in its store."""

    study: Study
    items: tuple[WorkItem, ...]
    report: ReportJob

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each job; `needs` is `-` for no job and `*` for all others."""
        names = {item.id for item in self.items}
        rows = [
            {
                "id": item.id,
                "kind": item.kind,
                "processes": item.num_slots,
                "needs": item.needs if item.needs in names else "-",
                "label": item.label,
            }
            for item in self.items
        ]
        last = {"kind": "report", "processes": 1, "needs": "*", "label": self.report.label}
        return [*rows, {"id": self.report.id, **last}] if rows else rows

    def lines(self) -> Iterator[str]:
        """Return the table with tabs, for schedulers."""
        return ("\t".join(map(str, row.values())) for row in self.table())
