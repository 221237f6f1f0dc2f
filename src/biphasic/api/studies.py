"""Studies from Python: run, watch, report, tune and clean them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING

from biphasic.api.verb import Function, Logged, Overrides, Quiet, Root, option
from biphasic.errors import ConfigError
from biphasic.execution import TRIES
from biphasic.store import STORE

if TYPE_CHECKING:
    from biphasic.analysis.figures.tuning import TuneBy
    from biphasic.study.maintenance import Cleaning, Verification
    from biphasic.study.run.run import Retried, StudyOutcome
    from biphasic.study.settings.study import StudyConfig
    from biphasic.study.status import StudyStatus
    from biphasic.study.tune.search import Tuned


def _rates(text: str) -> tuple[float, ...]:
    """Return the list of rates such as `5e-4,1e-3,2e-3`."""
    from biphasic.study.tune.search import parse_rates

    return parse_rates(text)


class AnyStudy(Root):
    """A study that has begun."""

    study: Path | str | None = option(default=None, type=str)
    """Study file, folder or name. Default: the only study of the root."""

    @property
    def study_folder(self) -> Path:
        """The folder of the study."""
        from biphasic.study.find import find_study

        return find_study(self.study, self.root_folder)[0]


class NamedStudy(AnyStudy):
    """A study that is named, as its jobs are stopped or started."""

    study: Path | str = option(type=str)
    """Study file, folder or name."""


class JobOptions(Root, Quiet):
    """How jobs run."""

    _: KW_ONLY
    workers: int | None = option(default=None, least=1)
    """Parallel jobs. Default: one per core, or one on a GPU."""
    threads: int = option(default=1, least=1)
    """Threads per job; may change the last bits of results."""


class RunStudy(Overrides, Logged, JobOptions):
    """Run the missing jobs of a study, and write its report.

    Raises:
        ConfigError: The study file is invalid, the root has another study of this name, from
            another file, or `site` is given together with a setting of this machine.
        DataError: Data are missing or damaged.
        LockedError: Another process is running this study.

    Example:
        >>> from biphasic import run_study
        >>> outcome = run_study("study.yaml", overrides=["title=Mine"], workers=1)
        >>> outcome.failures, outcome.report.name
        ((), 'report.html')
    """

    study: StudyConfig | Path | str = option(metavar="file", type=Path)
    """Study file (YAML). In Python also its settings."""
    _: KW_ONLY
    per_gpu: int = option(default=1, least=1)
    """Jobs per GPU; they must fit into its memory."""
    tries: int = option(default=TRIES, least=1)
    """Attempts per job after transient failures (process killed, disk full)."""
    site: Path | str | None = None
    """Site file (YAML) of a cluster to run on (see `biphasic site`), or an executor of your own. In
    Python: as `./mine.py:Mine`, its name, or a file with its settings. A site file has the settings
    of this machine above for its nodes."""

    def __call__(self) -> StudyOutcome:
        from biphasic.execution.executor import Local
        from biphasic.execution.registry import load_executor
        from biphasic.execution.scheduler import RetryPolicy
        from biphasic.study.run.run import execute_study
        from biphasic.study.settings.load import load_study
        from biphasic.study.settings.study import StudyConfig
        from biphasic.study.study import Study
        from biphasic.training.memory import tune_allocator
        from biphasic.training.metrics_log import viewed_in_wandb

        if self.site is not None and (self.workers, self.threads, self.per_gpu) != (None, 1, 1):
            raise ConfigError(
                "--site: cannot be combined with --workers, --threads or --per-gpu; set "
                "jobs_per_node, threads or jobs_per_gpu in the site file"
            )
        if isinstance(self.study, StudyConfig):
            if self.overrides:
                raise ConfigError(
                    "overrides: only for files; change the settings of the study instead"
                )
            chosen = Study(self.study, self.root_folder, file=None)
        else:
            chosen = Study(
                load_study(self.study, self.overrides), self.root_folder, file=Path(self.study)
            )
        tune_allocator()
        with viewed_in_wandb(self.wandb):
            return execute_study(
                chosen,
                executor=Local(workers=self.workers, threads=self.threads, per_gpu=self.per_gpu)
                if self.site is None
                else load_executor(self.site),
                policy=RetryPolicy(tries=self.tries),
                console=self.console,
                fresh=self.fresh,
            )

    def print_config(self) -> str:
        """Return the resolved study, as YAML."""
        from biphasic.study.settings.load import load_study, study_text
        from biphasic.study.settings.study import StudyConfig

        if isinstance(self.study, StudyConfig):
            return study_text(self.study)
        return study_text(load_study(self.study, self.overrides))


class Status(AnyStudy):
    """Show a study's progress: jobs, failures, arms, device-hours.

    Raises:
        DataError: There is no such study.

    Example:
        >>> from biphasic import status
        >>> status("mine").phase, status("mine").frame.values.tolist()
        ('finished', [['mlm', 2, 2]])
    """

    def __call__(self) -> StudyStatus:
        from biphasic.study.find import find_study, study_status

        return study_status(*find_study(self.study, self.root_folder))


class ReportStudy(AnyStudy):
    """Write a study's report from its records, unless it is up to date.

    Returns:
        The path of `report.html`.

    Raises:
        DataError: There is no such study.

    Example:
        >>> from biphasic import report_study
        >>> report_study("mine").name
        'report.html'
    """

    def __call__(self) -> Path:
        from biphasic.analysis.report import write_report

        return write_report(self.study_folder, self.study_folder.parent / STORE)

    def markdown(self) -> str:
        """Return the answers to the study's questions, as a page."""
        from biphasic.analysis.page.markdown import answers_page
        from biphasic.analysis.records import load_records

        return answers_page(load_records(self.study_folder))


class Cancel(NamedStudy, Quiet):
    """Stop a study, also on another machine; `study run` resumes it.

    Returns:
        Whether it was running.

    Raises:
        DataError: There is no such study.

    Example:
        >>> from biphasic import cancel
        >>> cancel("mine", quiet=True)
        False
    """

    def __call__(self) -> bool:
        from biphasic.study.status import cancel_study

        return cancel_study(self.study_folder, say=self.say)


class Retry(NamedStudy, Quiet):
    """Retry failed jobs.

    If the study is running, its runner retries them. Otherwise the study runs here.

    Raises:
        ConfigError: The study is not running, so single jobs cannot be retried; or the study file
            has changed since.
        DataError: There is no such study.

    Example:
        >>> from biphasic import retry
        >>> retry("mine", workers=1).outcome.failures
        ()
    """

    jobs: Sequence[str] = ()
    """Failed jobs, by label or prefix of the identity. Default: all."""
    _: KW_ONLY
    workers: int | None = option(default=None, least=1)
    """Parallel jobs, if the study is not running. Default: one per core, or one on a GPU."""
    threads: int = option(default=1, least=1)
    """Threads per job, if the study is not running."""

    def __call__(self) -> Retried:
        from biphasic.locks import LOCK, find_owner
        from biphasic.study.find import find_study
        from biphasic.study.run.run import Retried
        from biphasic.study.status import retry_jobs
        from biphasic.study.study import Study

        folder, config = find_study(self.study, self.root_folder)
        runner = find_owner(folder / LOCK)
        if runner is not None and runner.seems_alive:
            requests = retry_jobs(folder, runner, self.jobs)
            return Retried(
                tuple(f"sent retry request to {runner}: {job.label}" for job in requests), None
            )
        if self.jobs:
            raise ConfigError(
                f"{folder.name} is not running, so single jobs cannot be retried; omit them to run "
                "all missing jobs, or run one with 'biphasic job run ID'"
            )
        saved = Study.saved(folder).config
        if config not in (None, saved):
            raise ConfigError(
                f"{self.study}: has other settings than the last run of {folder.name}; "
                f"'biphasic study run {self.study}' runs them, and 'biphasic study retry "
                f"{folder.name}' retries that run"
            )
        run = RunStudy(
            saved,
            root=folder.parent,
            workers=self.workers,
            threads=self.threads,
            quiet=self.quiet,
        )
        return Retried((), run())


class Verify(AnyStudy, Quiet):
    """Verify the hashes of all files that a study uses.

    Raises:
        DataError: There is no such study.

    Example:
        >>> from biphasic import verify
        >>> verify("mine", quiet=True).damage
        ()
    """

    def __call__(self) -> Verification:
        from biphasic.study.maintenance import verify_study

        return verify_study(self.study_folder, say=self.say)


class Clean(Root, Quiet):
    """List or delete unused items of a store.

    Raises:
        DataError: The root has no store, or one that others may use.

    Example:
        >>> from biphasic import clean
        >>> clean().is_deleted
        False
    """

    _: KW_ONLY
    delete: bool = False
    """Delete the listed items; without it, only list them."""
    also_pretrained: bool = False
    """Include results of `pretrain`, `adapt`, `evaluate` and `finetune` that no study needs."""

    def __call__(self) -> Cleaning:
        from biphasic.study.maintenance import clean

        also = self.also_pretrained
        return clean(self.root_folder, delete=self.delete, also_pretrained=also, say=self.say)


class Tune(JobOptions):
    """Choose peak learning rates by short trials.

    Writes one rate for each objective or each arm into FILE's .rates.yaml, to be included.

    Raises:
        ConfigError: The study file is invalid.
        StudyError: Every trial of an arm diverged.

    Example:
        >>> from biphasic import tune
        >>> tune("study.yaml", share=0.5, dry_run=True).outcome is None
        True
    """

    file: Path | str
    """Study file (YAML)."""
    _: KW_ONLY
    by: TuneBy = option(default="objective", choices=("objective", "arm"))
    """Parts with a rate of their own: each `objective` that arms start with (for each model and
    optimizer), or each `arm` (trials have all phases, and the last objective decides)."""
    rates: Sequence[float] | None = option(default=None, metavar="RATE,RATE,...", parse=_rates)
    """Peak rates to try. Default: 1/4, 1/2, 1, 2 and 4 times the file's rate."""
    share: float = 0.1
    """Trial length as a share of the longest schedule."""
    extend: bool = True
    """If the best rate is at an edge of the list, try up to three beyond it."""
    out: Path | str | None = option(default=None, flag="--out")
    """File for the rates. Default: that of the study, with the ending .rates.yaml."""
    dry_run: bool = False
    """Show what would be trained, without training."""

    def __call__(self) -> Tuned:
        from biphasic.execution.executor import Local
        from biphasic.study.settings.load import load_study
        from biphasic.study.tune.search import Tuned, first_rates, tune_study
        from biphasic.study.tune.trials import plan_lines, plan_tuning

        tuning = plan_tuning(load_study(self.file), self.share, by=self.by)
        rates = first_rates(tuning, self.rates)
        if self.dry_run:
            return Tuned(tuple(plan_lines(tuning, rates, self.root_folder)), None)
        outcome = tune_study(
            tuning,
            rates,
            Path(self.file),
            self.root_folder,
            extend=self.extend,
            out=self.out,
            local=Local(workers=self.workers, threads=self.threads),
            console=self.console,
        )
        return Tuned((), outcome)


run_study = Function(RunStudy)
status = Function(Status)
report_study = Function(ReportStudy)
cancel = Function(Cancel)
retry = Function(Retry)
verify = Function(Verify)
clean = Function(Clean)
tune = Function(Tune)
