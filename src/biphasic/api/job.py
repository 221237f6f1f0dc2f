"""Single jobs of studies from Python: `job.run` and `show`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.api.verb import Function, Quiet, Root, option
from biphasic.errors import ConfigError
from biphasic.execution.slots import check_cores
from biphasic.model.compute.device import compute_threads
from biphasic.shown import Shown

if TYPE_CHECKING:
    from biphasic.study.run.jobs import AnyJob


@dataclass(frozen=True, repr=False)
class JobRun(Shown):
    """The result of `job.run`.

    Attributes:
        id: Identity of the job.
        label: What it does.
        was_done: Whether it was done before.
    """

    id: str
    label: str
    was_done: bool

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for the job."""
        return [{"id": self.id, "label": self.label, "was_done": self.was_done}]

    def lines(self) -> Iterator[str]:
        """Return what was done."""
        yield f"{'already done' if self.was_done else 'done'}: {self.label}"


class Run(Root, Quiet):
    """Run one job in this process, unless it is done.

    Its inputs must exist.

    Raises:
        ConfigError: No job is given, or two are.
        DataError: There is no such job, or an input is missing.

    Example:
        >>> from biphasic import job, jobs
        >>> changes = ["name=later", "recipe.seeds.init_seed=9"]
        >>> training = jobs("study.yaml", overrides=changes).items[0]
        >>> job.run(training.id).was_done, job.run(training.id).was_done
        (False, True)
    """

    job: str | None = None
    """Job identity; alternatively, give a list and an index."""
    _: KW_ONLY
    list_file: Path | str | None = option(default=None, flag="--list")
    """File with a job identity in each line."""
    index: int | None = option(default=None, least=0, env="JOB_COMPLETION_INDEX")
    """Line of the list, from 0."""
    threads: int = option(default=1, least=1)
    """Compute threads."""

    def __call__(self) -> JobRun:
        from biphasic.execution.executor import run_here
        from biphasic.training.memory import tune_allocator

        check_cores(num_threads=self.threads)
        loaded = show(_chosen_job(self.job, self.list_file, self.index), root=self.root)
        if was_done := loaded.is_done():
            limits: AbstractContextManager[None] = nullcontext()  # computes nothing, without torch
        else:
            loaded.check_needs()
            tune_allocator()
            limits = compute_threads(self.threads)
        with limits:  # also if it is done: deletes what a killed process left
            run_here(loaded, console=self.console)
        return JobRun(loaded.id, loaded.label, was_done=was_done)


class Show(Root):
    """Show a job's inputs.

    Raises:
        DataError: There is no such job.

    Example:
        >>> from biphasic import job, jobs
        >>> changes = ["name=later", "recipe.seeds.init_seed=10"]
        >>> job.show(jobs("study.yaml", overrides=changes).items[0].id).end
        2
    """

    job: str
    """Job identity, from `biphasic study jobs FILE`."""

    def __call__(self) -> AnyJob:
        from biphasic.study.run.jobs import load_job

        return load_job(self.store, self.job)


def _chosen_job(job: str | None, list_file: Path | str | None, index: int | None) -> str:
    """Return the identity of the job to run."""
    if (job is None) == (list_file is None):
        raise ConfigError("give a job identity, or --list FILE with --index N")
    if list_file is None:
        return str(job)
    try:
        lines = Path(list_file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--list {list_file}: cannot be read ({error})") from None
    if not lines:
        raise ConfigError(f"--list {list_file}: has no jobs")
    if index is None or not 0 <= index < len(lines):
        raise ConfigError(f"--index: give a line of {list_file}, from 0 to {len(lines) - 1}")
    return lines[index].strip()


run = Function(Run)
show = Function(Show)
