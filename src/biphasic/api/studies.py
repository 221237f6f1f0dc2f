"""Studies from Python: `status`, `cancel`, `retry`, `verify`, `clean` and `tune`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.errors import StudyError
from biphasic.progress import progress_console
from biphasic.shown import Shown, inline
from biphasic.study import DEFAULT_ROOT
from biphasic.study.status.record import StudyStatus

if TYPE_CHECKING:
    from biphasic.analysis.tune_record import TuneBy
    from biphasic.study.gc.clean import Cleaning
    from biphasic.study.gc.verify import Verification
    from biphasic.study.run.run import StudyOutcome
    from biphasic.study.tune.search import TuneOutcome


class Status(Shown, StudyStatus):
    """What `status` returns: the progress of a study."""

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each arm: the jobs it needs, and those that are done."""
        return [
            {"arm": name, "done": arm.done, "total": arm.total} for name, arm in self.by_arm.items()
        ]

    def lines(self) -> Iterator[str]:
        """Return jobs, failures, arms and device-hours."""
        from biphasic.study.status.status import status_lines

        return status_lines(self)


@dataclass(frozen=True, repr=False)
class Verified(Shown):
    """What `verify` returns: the files that were compared with their hashes.

    Attributes:
        name: Of the study.
        verification: Numbers of files that are intact and missing, and a line for each damage.
    """

    name: str
    verification: Verification

    @property
    def damage(self) -> tuple[str, ...]:
        """A line for each damaged file, with its remedy; empty if all are intact."""
        return tuple(self.verification.damage)

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each kind of files."""
        checked, missing = self.verification.checked, self.verification.missing
        return [
            {"kind": kind, "verified": checked[kind], "missing": missing[kind]}
            for kind in dict.fromkeys((*checked, *missing))
        ]

    def lines(self) -> Iterator[str]:
        """Return the numbers."""
        counts = ", ".join(f"{n:,} {kind}" for kind, n in self.verification.checked.items())
        yield f"{self.name}: verified {counts}, report"
        for kind, number in self.verification.missing.items():
            yield f"{number:,} {kind} missing; 'biphasic study run' creates them"
        if not self.damage:
            yield "all intact"


@dataclass(frozen=True, repr=False)
class Cleaned(Shown):
    """What `clean` returns: what no study needs.

    Attributes:
        cleaning: The items, and what is kept.
        is_deleted: Whether they were deleted.
    """

    cleaning: Cleaning
    is_deleted: bool

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each item."""
        return [
            {"kind": one.kind, "path": str(one.path), "bytes": one.num_bytes, "about": one.about}
            for one in self.cleaning.items
        ]

    def lines(self) -> Iterator[str]:
        """Return the items by kind."""
        from biphasic.study.gc.clean import cleaning_lines

        return cleaning_lines(self.cleaning, deleted=self.is_deleted)


@dataclass(frozen=True, repr=False)
class Retried(Shown):
    """What `retry` returns.

    Attributes:
        requests: A line for each job that the study's runner was asked to retry.
        outcome: The outcome of the study, if it ran here.
    """

    requests: tuple[str, ...]
    outcome: StudyOutcome | None

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows of the outcome."""
        return self.outcome.table() if self.outcome else [{"request": one} for one in self.requests]

    def lines(self) -> Iterator[str]:
        """Return the requests, or the outcome."""
        yield from self.requests
        if self.outcome is not None:
            yield from self.outcome.lines()


@dataclass(frozen=True, repr=False)
class Tuned(Shown):
    """What `tune` returns: trials of learning rates, and the chosen ones.

    Attributes:
        planned: What would be trained, with `dry_run`; else empty.
        outcome: The trials, their folder, and the changes of the study file; None with `dry_run`.
        file: The study file with the rates.
    """

    planned: tuple[str, ...]
    outcome: TuneOutcome | None
    file: Path

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each trial."""
        curves = () if self.outcome is None else self.outcome.record.curves
        return [
            {
                "name": curve.name,
                "rate": trial.peak,
                "loss": trial.loss,
                "is_chosen": trial.peak == curve.choice,
            }
            for curve in curves
            for trial in curve.trials
        ]

    def lines(self) -> Iterator[str]:
        """Return the trials, and the changes of the study file."""
        from biphasic.study.tune.text import result_lines

        yield from self.planned
        if self.outcome is not None:
            yield from result_lines(self.outcome.record)
            yield f"curves: {self.outcome.folder / 'curve.png'}"
            yield from self.outcome.difference or [f"{self.file}: already has these rates"]

    def drawing(self) -> str:
        """Return the losses by rate."""
        if self.outcome is None:
            return ""
        return inline((self.outcome.folder / "curve.svg").read_text(encoding="utf-8"))


def status(study: Path | str | None = None, *, root: Path | str = DEFAULT_ROOT) -> Status:
    """Show a study's progress: jobs, failures, arms, device-hours.

    Args:
        study: Study file, folder or name; the only study of the root when None.
        root: Folder of studies and their shared store.

    Raises:
        DataError: There is no such study.

    Example:
        >>> from biphasic import status
        >>> status("mine").phase, status("mine").frame.values.tolist()
        ('finished', [['mlm', 2, 2]])
    """
    from biphasic.study.find import find_study
    from biphasic.study.status.status import study_status

    return Status(**dict(study_status(*find_study(study, Path(root)))))


def cancel(study: Path | str, *, root: Path | str = DEFAULT_ROOT, quiet: bool = False) -> bool:
    """Stop a study, also on another machine; `run_study` resumes it.

    Args:
        study: Study file, folder or name.
        root: Folder of studies and their shared store.
        quiet: Say nothing.

    Returns:
        Whether it was running.

    Raises:
        DataError: There is no such study.

    Example:
        >>> from biphasic import cancel
        >>> cancel("mine", quiet=True)
        False
    """
    from biphasic.progress import say_on
    from biphasic.study.find import find_study
    from biphasic.study.run.control import cancel_study

    folder, _ = find_study(study, Path(root))
    return cancel_study(folder, say=say_on(progress_console(quiet=quiet)))


def retry(
    study: Path | str,
    jobs: Sequence[str] = (),
    *,
    root: Path | str = DEFAULT_ROOT,
    workers: int | None = None,
    threads: int = 1,
    quiet: bool = False,
) -> Retried:
    """Retry failed jobs.

    If the study is running, its runner retries them. Otherwise the study runs here.

    Args:
        study: Study file, folder or name.
        jobs: Failed jobs, by label or prefix of the identity; all when empty.
        root: Folder of studies and their shared store.
        workers: Parallel jobs, if the study is not running.
        threads: Threads per job, if the study is not running.
        quiet: Show no progress.

    Raises:
        DataError: There is no such study.
        StudyError: The study is not running, so single jobs cannot be retried.

    Example:
        >>> from biphasic import retry
        >>> retry("mine", workers=1).outcome.failures
        ()
    """
    from biphasic.locks import LOCK, find_owner
    from biphasic.study.api import run_study
    from biphasic.study.find import find_study
    from biphasic.study.run.control import retry_jobs
    from biphasic.study.study import Study

    folder, _ = find_study(study, Path(root))
    runner = find_owner(folder / LOCK)
    if runner is not None:
        asked = retry_jobs(folder, runner, jobs)
        return Retried(tuple(f"sent retry request to {runner}: {job.label}" for job in asked), None)
    if jobs:
        raise StudyError(
            f"{folder.name} is not running, so single jobs cannot be retried; omit them to run all "
            "missing jobs, or run one with 'biphasic job run ID'"
        )
    outcome = run_study(
        Study.saved(folder).config,
        root=folder.parent,
        workers=workers,
        threads=threads,
        quiet=quiet,
    )
    return Retried((), outcome)


def verify(
    study: Path | str | None = None, *, root: Path | str = DEFAULT_ROOT, quiet: bool = False
) -> Verified:
    """Verify the hashes of all files that a study uses.

    Args:
        study: As in `status`.
        root: Folder of studies and their shared store.
        quiet: Show no progress.

    Raises:
        DataError: There is no such study.

    Example:
        >>> from biphasic import verify
        >>> verify("mine", quiet=True).damage
        ()
    """
    from biphasic.progress import say_on
    from biphasic.study.find import find_study
    from biphasic.study.gc.verify import verify_study

    folder, _ = find_study(study, Path(root))
    return Verified(folder.name, verify_study(folder, say=say_on(progress_console(quiet=quiet))))


def clean(
    *,
    root: Path | str = DEFAULT_ROOT,
    delete: bool = False,
    also_pretrained: bool = False,
    quiet: bool = False,
) -> Cleaned:
    """List or delete unused items of a store.

    Args:
        root: Folder of studies and their shared store.
        delete: Delete the items; without it, only list them.
        also_pretrained: Include results of `pretrain`, `adapt`, `evaluate` and `finetune` that no
            study needs.
        quiet: Say nothing.

    Raises:
        StudyError: The root has no store, or one that others may use.

    Example:
        >>> from biphasic import clean
        >>> clean().is_deleted
        False
    """
    from biphasic.progress import say_on
    from biphasic.study.gc.clean import clean as clean_root

    say = say_on(progress_console(quiet=quiet))
    found = clean_root(Path(root), delete=delete, also_pretrained=also_pretrained, say=say)
    return Cleaned(found, delete)


def tune(
    file: Path | str,
    *,
    by: TuneBy = "beginning",
    rates: Sequence[float] | None = None,
    share: float = 0.1,
    extend: bool = True,
    root: Path | str = DEFAULT_ROOT,
    workers: int | None = None,
    threads: int = 1,
    out: Path | str | None = None,
    dry_run: bool = False,
    quiet: bool = False,
) -> Tuned:
    """Choose peak learning rates by short trials, and write them into the study file.

    Args:
        file: Study file.
        by: What gets a rate of its own: `beginning` (model, first objective and optimizer) or `arm`
            (trials have all phases, and the last objective decides).
        rates: Peak rates to try; 1/4, 1/2, 1, 2 and 4 times the file's rate when None.
        share: Trial length as a share of the longest schedule.
        extend: If the best rate is at an edge of the list, try up to three beyond it.
        root: Folder of studies and their shared store.
        workers: Parallel jobs; one per core, or one on a GPU, when None.
        threads: Threads per job.
        out: Write the tuned study here instead of changing `file`.
        dry_run: Show what would be trained, without training.
        quiet: Show no progress.

    Raises:
        ConfigError: The study file is invalid.
        StudyError: Every trial of an arm diverged.

    Example:
        >>> from biphasic import tune
        >>> tune("study.yaml", share=0.5, dry_run=True).outcome is None
        True
    """
    from biphasic.study.spec.load import load_study
    from biphasic.study.tune.search import first_rates, tune_study
    from biphasic.study.tune.text import plan_lines
    from biphasic.study.tune.trials import plan_tuning

    target = Path(out or file)
    if dry_run:
        tuning = plan_tuning(load_study(file), share, by=by)
        return Tuned(
            tuple(plan_lines(tuning, first_rates(tuning, rates), Path(root))), None, target
        )
    outcome = tune_study(
        file,
        root=root,
        by=by,
        rates=rates,
        share=share,
        extend=extend,
        out=out,
        num_workers=workers,
        num_threads=threads,
        console=progress_console(quiet=quiet),
    )
    return Tuned((), outcome, target)
