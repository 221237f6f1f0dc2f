"""Plans of studies from Python: `plan`, `diff`, `schema`, `jobs` and `register`."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.api.verb import Function, Overrides, Quiet, Root, Verb, option
from biphasic.errors import ConfigError
from biphasic.study import EXAMPLE_TOKENS

if TYPE_CHECKING:
    from biphasic.shown import Findings
    from biphasic.study.plan.summary import StudyPlan
    from biphasic.study.run.record import StudyJobs
    from biphasic.study.run.register import Registered


class StudyFile(Root, Overrides):
    """A study that a file describes."""

    file: Path | str
    """Study file (YAML)."""


class Plan(StudyFile):
    """Show what a study will train, share and skip, without running it.

    Raises:
        ConfigError: The study file is invalid.
        DataError: Data are missing or damaged.

    Example:
        >>> from biphasic import plan
        >>> planned = plan("study.yaml", rate=1e12)
        >>> planned.frame.values.tolist(), planned.graph()[:12]
        ([['mlm', '', 2, 2]], 'flowchart LR')
    """

    _: KW_ONLY
    rate: float | None = option(default=None, least=1)
    """Sustained FLOP/s per device, to estimate device-hours. Default: this machine's, measured for
    a second."""
    example_tokens: int = option(default=EXAMPLE_TOKENS, least=1)
    """Assumed mean tokens per fine-tuning example."""

    def __call__(self) -> StudyPlan:
        from biphasic.study.plan.summary import StudyPlan, summarise_plan
        from biphasic.study.resolve import resolve
        from biphasic.study.settings.load import load_study
        from biphasic.study.sizing.estimate import plan_memory, speed_here
        from biphasic.study.study import Study

        config = load_study(self.file, self.overrides)
        planned = resolve(Study(config, self.root_folder), missing="placeholder").plan
        summary = summarise_plan(planned, example_tokens=self.example_tokens)
        rate, jobs_here, advice = self.rate, None, ""
        if rate is None:
            rate, jobs_here, advice = speed_here(config.recipe.precision)
        memory = plan_memory(planned)
        return StudyPlan(planned, summary, rate, self.example_tokens, memory, jobs_here, advice)


class Diff(Root):
    """Show how the plans of two studies differ, and why.

    Raises:
        ConfigError: A study file is invalid.

    Example:
        >>> from biphasic import diff
        >>> diff("study.yaml", "study.yaml").sentences[0]
        'both studies plan the same'
    """

    first: Path | str
    """Study file (YAML)."""
    second: Path | str
    """Study file to compare with."""

    def __call__(self) -> Findings:
        from biphasic.shown import Findings
        from biphasic.study.plan.summary import difference_lines
        from biphasic.study.resolve import resolve
        from biphasic.study.settings.load import load_study
        from biphasic.study.study import Study

        first, other = (
            resolve(Study(load_study(file), self.root_folder), missing="placeholder").plan
            for file in (self.first, self.second)
        )
        return Findings(tuple(difference_lines(first, other, str(self.first), str(self.second))))


class Schema(Verb):
    """Show the JSON schema of study files, for editors.

    Example:
        >>> from biphasic import schema
        >>> "arms" in schema()["properties"]
        True
    """

    def __call__(self) -> dict[str, Any]:
        from biphasic.study.settings.load import study_schema

        return study_schema()


class Jobs(StudyFile, Quiet):
    """Save and list missing jobs, for an external scheduler.

    Builds the study's data first.

    Raises:
        ConfigError: The study file is invalid.
        DataError: Data are missing or damaged.
        LockedError: Another process is running this study.

    Example:
        >>> from biphasic import jobs
        >>> changes = ["name=later", "recipe.seeds.init_seed=9"]
        >>> jobs("study.yaml", overrides=changes).frame["kind"].tolist()
        ['train', 'finetune', 'report']
    """

    def __call__(self) -> StudyJobs:
        from biphasic.execution.job import save_job
        from biphasic.study.resolve import resolve
        from biphasic.study.run.record import ReportJob, StudyJobs, write_study_report
        from biphasic.study.run.run import missing_work
        from biphasic.study.settings.load import load_study
        from biphasic.study.study import Study

        study = Study(load_study(self.file, self.overrides), self.root_folder, file=Path(self.file))
        resolved = resolve(study, missing="build", console=self.console)
        with study.locked():
            study.save()
            write_study_report(resolved)  # 'study report' reads the expected results from it
        items, last = missing_work(resolved.plan, resolved.paths), ReportJob.of(study)
        for job in (*(item.make() for item in items), *([last] if items else [])):
            save_job(job)
        return StudyJobs(study, tuple(items), last)


class Register(StudyFile, Quiet):
    """Fix a study's questions, arms, tasks, grid and seeds under a hash, before its first score.

    Registers again, as a dated amendment, if the study has changed since. Given a folder with
    `registrations/` instead of a study file, it only reads them.

    Raises:
        ConfigError: The study file is invalid or has no questions, or the study has scores and was
            not registered before them.
        DataError: A registration in the folder is damaged.

    Example:
        >>> from biphasic import register
        >>> len(register("registered.yaml", spread=0.5).records)
        1
    """

    _: KW_ONLY
    spread: float | None = option(default=None, least=0.001)
    """Assumed standard deviation of an arm's score over runs, in percentage points."""
    pilot: str | None = option(default=None, metavar="STUDY")
    """Finished study whose spreads over runs are assumed, instead of --spread."""

    def __call__(self) -> Registered:
        from biphasic.registration import read_registrations
        from biphasic.study.find import find_study
        from biphasic.study.run.register import Registered, register_study
        from biphasic.study.settings.load import load_study
        from biphasic.study.study import Study

        if (folder := Path(self.file)).is_dir():
            if self.overrides or self.spread is not None or self.pilot is not None:
                raise ConfigError(f"{folder}: a folder; to register, name the study file")
            if not (known := read_registrations(folder)):
                raise ConfigError(f"{folder}: no registrations; to register, name the study file")
            return Registered(folder.resolve().name, known)
        if self.spread is not None and self.pilot is not None:
            raise ConfigError("--spread, --pilot: give one of them")
        config = load_study(self.file, self.overrides)
        records = register_study(
            Study(config, self.root_folder, file=Path(self.file)),
            console=self.console,
            spread=self.spread,
            pilot=None if self.pilot is None else find_study(self.pilot, self.root_folder)[0],
        )
        return Registered(config.title, records)


plan = Function(Plan)
diff = Function(Diff)
schema = Function(Schema)
jobs = Function(Jobs)
register = Function(Register)
