"""The job that writes a study's report from the results in the store."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich.console import Console

from biphasic.config import Config
from biphasic.execution.job import Progress, Report, ShouldStop, never
from biphasic.files import digest
from biphasic.study.run.prepare import PreparedStudy, prepare_study
from biphasic.study.run.report import write_study_report
from biphasic.study.spec.arms import Name
from biphasic.study.spec.load import load_resolved


class ReportJob(Config):
    """Write a report."""

    kind: Literal["report"] = "report"
    id: str
    """Depends on the study's name only: a report may be written again."""
    label: str
    """Label in progress displays."""
    store: Path
    """Content store; study folders are its siblings."""
    study: Name
    """Name of the study."""

    @classmethod
    def of(cls, study: PreparedStudy) -> ReportJob:
        """Return the job that reports a study."""
        name = study.config.name
        return cls(
            id=f"report-{digest(name)[:32]}",
            label=f"report of {name}",
            store=study.store,
            study=name,
        )

    @property
    def num_slots(self) -> int:
        """One."""
        return 1

    def outputs(self) -> list[Path]:
        """Return its output folder."""
        return [self.store.parent / self.study]

    def is_done(self) -> bool:
        """Return False: `run` itself skips an up-to-date report."""
        return False

    def check_needs(self) -> None:
        """Do nothing: the report lists missing results."""

    def run(self, report: Report, *, should_stop: ShouldStop = never) -> None:  # noqa: ARG002
        """Write the report, unless it is up to date.

        Raises:
            StudyError: The study was never run or planned here.
        """
        root = self.store.parent
        config = load_resolved(root / self.study)
        write_study_report(prepare_study(config, root=root, console=Console(quiet=True)))
        report(Progress(1, 1, ""))
