"""Studies from Python: run, watch, report, tune and clean them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from biphasic.api.arguments import check_arguments
from biphasic.errors import ConfigError
from biphasic.execution import TRIES
from biphasic.files import expanded
from biphasic.store import DEFAULT_ROOT, STORE

if TYPE_CHECKING:
    from biphasic.analysis.tune_record import TuneBy
    from biphasic.api.results.studies import Cleaned, Retried, Status, Tuned, Verified
    from biphasic.study.run.run import StudyOutcome
    from biphasic.study.spec.study import StudyConfig


@check_arguments()
def run_study(
    study: StudyConfig | Path | str,
    *,
    root: Path | str = DEFAULT_ROOT,
    workers: int | None = None,
    threads: int = 1,
    per_gpu: int = 1,
    tries: int = TRIES,
    site: Path | str | None = None,
    fresh: bool = False,
    overrides: Sequence[str] = (),
    wandb: str | None = None,
    quiet: bool = False,
) -> StudyOutcome:
    """Run the missing jobs of a study, and write its report.

    Args:
        study: Study file (YAML). In Python also its settings.
        root: Folder of studies and their shared store.
        workers: Parallel jobs. Default: one per core, or one on a GPU.
        threads: Threads per job; may change the last bits of results.
        per_gpu: Jobs per GPU; they must fit into its memory.
        tries: Attempts per job after transient failures (process killed, disk full).
        site: Site file (YAML) of a cluster to run on (see `biphasic site`), or an executor of your
            own. In Python: as `./mine.py:Mine`, its name, or a file with its settings. A site file
            has the settings of this machine above for its nodes.
        fresh: Delete the states and results that were made by other code, and make them again.
        overrides: Override a setting, e.g. recipe.model=micro.
        wandb: Log training to a Weights & Biases project; offline unless WANDB_MODE is set. Needs
            the extra 'wandb'.
        quiet: Show results and errors only.

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
    from biphasic.execution.local import Local
    from biphasic.execution.registry import load_executor
    from biphasic.execution.scheduler import RetryPolicy
    from biphasic.progress import progress_console
    from biphasic.study.run.run import execute_study
    from biphasic.study.spec.load import load_study
    from biphasic.study.spec.study import StudyConfig
    from biphasic.study.study import Study
    from biphasic.training.memory import tune_allocator
    from biphasic.training.records.log import viewed_in_wandb

    if site is not None and (workers, threads, per_gpu) != (None, 1, 1):
        raise ConfigError(
            "--site: cannot be combined with --workers, --threads or --per-gpu; set jobs_per_node, "
            "threads or jobs_per_gpu in the site file"
        )
    if isinstance(study, StudyConfig):
        if overrides:
            raise ConfigError("overrides: only for files; change the settings of the study instead")
        chosen = Study(study, expanded(root), file=None)
    else:
        chosen = Study(load_study(study, overrides), expanded(root), file=Path(study))
    tune_allocator()
    with viewed_in_wandb(wandb):
        return execute_study(
            chosen,
            executor=Local(workers=workers, threads=threads, per_gpu=per_gpu)
            if site is None
            else load_executor(site),
            policy=RetryPolicy(tries=tries),
            console=progress_console(quiet=quiet),
            fresh=fresh,
        )


def status(study: Path | str | None = None, *, root: Path | str = DEFAULT_ROOT) -> Status:
    """Show a study's progress: jobs, failures, arms, device-hours.

    Args:
        study: Study file, folder or name. Default: the only study of the root.
        root: Folder of studies and their shared store.

    Raises:
        DataError: There is no such study.

    Example:
        >>> from biphasic import status
        >>> status("mine").phase, status("mine").frame.values.tolist()
        ('finished', [['mlm', 2, 2]])
    """
    from biphasic.api.results.studies import Status
    from biphasic.study.find import find_study
    from biphasic.study.status.status import study_status

    return Status(**dict(study_status(*find_study(study, expanded(root)))))


def report_study(study: Path | str | None = None, *, root: Path | str = DEFAULT_ROOT) -> Path:
    """Write a study's report from its records, unless it is up to date.

    Args:
        study: As in `status`.
        root: Folder of studies and their shared store.

    Returns:
        The path of `report.html`.

    Raises:
        DataError: There is no such study.

    Example:
        >>> from biphasic import report_study
        >>> report_study("mine").name
        'report.html'
    """
    from biphasic.analysis.report import write_report
    from biphasic.study.find import find_study

    folder, _ = find_study(study, expanded(root))
    return write_report(folder, folder.parent / STORE)


def cancel(study: Path | str, *, root: Path | str = DEFAULT_ROOT, quiet: bool = False) -> bool:
    """Stop a study, also on another machine; `study run` resumes it.

    Args:
        study: Study file, folder or name.
        root: Folder of studies and their shared store.
        quiet: Show results and errors only.

    Returns:
        Whether it was running.

    Raises:
        DataError: There is no such study.

    Example:
        >>> from biphasic import cancel
        >>> cancel("mine", quiet=True)
        False
    """
    from biphasic.progress import say_on_stderr
    from biphasic.study.find import find_study
    from biphasic.study.run.control import cancel_study

    folder, _ = find_study(study, expanded(root))
    return cancel_study(folder, say=say_on_stderr(quiet=quiet))


@check_arguments()
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
        jobs: Failed jobs, by label or prefix of the identity. Default: all.
        root: Folder of studies and their shared store.
        workers: Parallel jobs, if the study is not running. Default: one per core, or one on a GPU.
        threads: Threads per job, if the study is not running.
        quiet: Show results and errors only.

    Raises:
        ConfigError: The study is not running, so single jobs cannot be retried.
        DataError: There is no such study.

    Example:
        >>> from biphasic import retry
        >>> retry("mine", workers=1).outcome.failures
        ()
    """
    from biphasic.api.results.studies import Retried
    from biphasic.locks import LOCK, find_owner
    from biphasic.study.find import find_study
    from biphasic.study.run.control import retry_jobs
    from biphasic.study.study import Study

    folder, _ = find_study(study, expanded(root))
    runner = find_owner(folder / LOCK)
    if runner is not None and runner.seems_alive:
        asked = retry_jobs(folder, runner, jobs)
        return Retried(tuple(f"sent retry request to {runner}: {job.label}" for job in asked), None)
    if jobs:
        raise ConfigError(
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
        quiet: Show results and errors only.

    Raises:
        DataError: There is no such study.

    Example:
        >>> from biphasic import verify
        >>> verify("mine", quiet=True).damage
        ()
    """
    from biphasic.api.results.studies import Verified
    from biphasic.progress import say_on_stderr
    from biphasic.study.find import find_study
    from biphasic.study.gc.verify import verify_study

    folder, _ = find_study(study, expanded(root))
    return Verified(folder.name, verify_study(folder, say=say_on_stderr(quiet=quiet)))


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
        delete: Delete the listed items; without it, only list them.
        also_pretrained: Include results of `pretrain`, `adapt`, `evaluate` and `finetune` that no
            study needs.
        quiet: Show results and errors only.

    Raises:
        DataError: The root has no store, or one that others may use.

    Example:
        >>> from biphasic import clean
        >>> clean().is_deleted
        False
    """
    from biphasic.api.results.studies import Cleaned
    from biphasic.progress import say_on_stderr
    from biphasic.study.gc.clean import clean as clean_root

    say = say_on_stderr(quiet=quiet)
    found = clean_root(expanded(root), delete=delete, also_pretrained=also_pretrained, say=say)
    return Cleaned(found, delete)


@check_arguments()
def tune(
    file: Path | str,
    *,
    by: TuneBy = "objective",
    rates: Sequence[float] | None = None,
    share: float = 0.1,  # The reference study chose its rate on a tenth of its data.
    extend: bool = True,
    root: Path | str = DEFAULT_ROOT,
    workers: int | None = None,
    threads: int = 1,
    out: Path | str | None = None,
    dry_run: bool = False,
    quiet: bool = False,
) -> Tuned:
    """Choose peak learning rates by short trials.

    Writes one rate for each objective or each arm into FILE's .rates.yaml, to be included.

    Args:
        file: Study file (YAML).
        by: What gets a rate of its own: each `objective` that arms start with (for each model and
            optimizer), or each `arm` (trials have all phases, and the last objective decides).
        rates: Peak rates to try. Default: 1/4, 1/2, 1, 2 and 4 times the file's rate.
        share: Trial length as a share of the longest schedule.
        extend: If the best rate is at an edge of the list, try up to three beyond it.
        root: Folder of studies and their shared store.
        workers: Parallel jobs. Default: one per core, or one on a GPU.
        threads: Threads per job; may change the last bits of results.
        out: File for the rates. Default: that of the study, with the ending .rates.yaml.
        dry_run: Show what would be trained, without training.
        quiet: Show results and errors only.

    Raises:
        ConfigError: The study file is invalid.
        StudyError: Every trial of an arm diverged.

    Example:
        >>> from biphasic import tune
        >>> tune("study.yaml", share=0.5, dry_run=True).outcome is None
        True
    """
    from biphasic.api.results.studies import Tuned
    from biphasic.progress import progress_console
    from biphasic.study.spec.load import load_study
    from biphasic.study.tune.search import first_rates, tune_study
    from biphasic.study.tune.text import plan_lines
    from biphasic.study.tune.trials import plan_tuning

    if dry_run:
        tuning = plan_tuning(load_study(file), share, by=by)
        lines = plan_lines(tuning, first_rates(tuning, rates), expanded(root))
        return Tuned(tuple(lines), None)
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
    return Tuned((), outcome)
