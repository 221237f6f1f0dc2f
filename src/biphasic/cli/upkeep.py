"""The `biphasic study` commands `status`, `cancel`, `retry`, `verify` and `clean`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biphasic.cli.options import (
    AsJson,
    AtLeastOne,
    Positive,
    Quiet,
    Root,
    StudyName,
    echo,
    progress_console,
    show_outcome,
)
from biphasic.errors import StudyError

if TYPE_CHECKING:
    from biphasic.study.spec.study import StudyConfig
    from biphasic.study.status.record import StudyStatus

_REFRESH_SECONDS = 1.0
NamedStudy = Annotated[str, typer.Argument(help="Study file, folder or name.")]


def study_status_command(
    study: StudyName = None,
    root: Root = Path("runs"),
    as_json: AsJson = False,
    watch: bool | None = None,
) -> None:
    """Show a study's progress: jobs, failures, arms, device-hours.

    Args:
        as_json: Print as JSON, once.
        watch: Watch until the study ends. Default: on a terminal, if it is running.
    """
    from biphasic.study.find import find_study
    from biphasic.study.status.status import status_lines, study_status

    folder, config = find_study(study, root)
    status = study_status(folder, config)
    if as_json:
        echo(status.model_dump_json(indent=1))
        return
    stays = sys.stdout.isatty() if watch is None else watch
    if stays and status.runner is not None:
        status = _watch(status, config)
    echo("\n".join(status_lines(status)))


def study_cancel(study: NamedStudy, root: Root = Path("runs")) -> None:
    """Stop a study, also on another machine; 'study run' resumes it."""
    from biphasic.study.find import find_study
    from biphasic.study.run.control import cancel_study

    folder, _ = find_study(study, root)
    cancel_study(folder, say=echo)


def study_retry(
    study: NamedStudy,
    jobs: Annotated[list[str] | None, typer.Argument()] = None,
    root: Root = Path("runs"),
    workers: Positive = None,
    threads: AtLeastOne = 1,
    quiet: Quiet = False,
) -> None:
    """Retry failed jobs.

    If the study is running, its runner retries them. Otherwise the study runs here.

    Args:
        jobs: Failed jobs, by label or prefix of the identity. Default: all.
        workers: Parallel jobs, if the study is not running.
        threads: Threads per job, if the study is not running.
    """
    from biphasic.locks import LOCK, find_owner
    from biphasic.study.find import find_study
    from biphasic.study.run.control import retry_jobs

    folder, _ = find_study(study, root)
    runner = find_owner(folder / LOCK)
    if runner is not None:
        for job in retry_jobs(folder, runner, jobs or ()):
            echo(f"sent retry request to {runner}: {job.label}")
        return
    if jobs:
        raise StudyError(
            f"{folder.name} is not running, so single jobs cannot be retried; omit them to run all "
            "missing jobs, or run one with 'biphasic job run ID'"
        )
    from biphasic.study.api import run_study
    from biphasic.study.study import Study

    outcome = run_study(
        Study.saved(folder).config,
        root=folder.parent,
        num_workers=workers,
        num_threads=threads,
        console=progress_console(quiet=quiet),
    )
    show_outcome(outcome)


def study_verify(study: StudyName = None, root: Root = Path("runs")) -> None:
    """Verify the hashes of all files that a study uses.

    The exit code is 1 if any file is damaged.
    """
    from biphasic.study.find import find_study
    from biphasic.study.gc.verify import verify_study

    folder, _ = find_study(study, root)
    result = verify_study(folder, say=partial(echo, err=True))
    counts = ", ".join(f"{count:,} {kind}" for kind, count in result.checked.items())
    echo(f"{folder.name}: verified {counts}, report")
    for kind, count in result.missing.items():
        echo(f"{count:,} {kind} missing; 'biphasic study run' creates them")
    for problem in result.damage:
        echo(f"damaged: {problem}", err=True)
    if result.damage:
        raise typer.Exit(1)
    echo("all intact")


def study_clean(
    root: Root = Path("runs"),
    delete: bool = False,
    also_pretrained: bool = False,
) -> None:
    """List or delete (--delete) unused items of a store.

    Args:
        delete: Delete the listed items; without it, only list them.
        also_pretrained: Include results of 'pretrain', 'adapt', 'evaluate' and 'finetune' that no
            study needs.
    """
    from biphasic.study.gc.clean import clean, cleaning_lines

    say = partial(echo, err=True)
    cleaning = clean(root, delete=delete, also_pretrained=also_pretrained, say=say)
    echo("\n".join(cleaning_lines(cleaning, deleted=delete)))


def _watch(status: StudyStatus, config: StudyConfig | None) -> StudyStatus:
    """Show a running study until it ends or Ctrl-C; return its last status."""
    import time
    from contextlib import suppress

    from biphasic.study.status.status import study_status

    # Ctrl-C stops watching; the study keeps running.
    with suppress(KeyboardInterrupt), _screen() as show:
        while status.runner is not None:
            show(status)
            time.sleep(_REFRESH_SECONDS)
            status = study_status(status.folder, config)
    return status


@contextmanager
def _screen() -> Iterator[Callable[[StudyStatus], None]]:
    """Yield a function that shows a status: in place on a terminal, else a line per change."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from biphasic.study.status.status import short_line, status_lines

    console = Console()
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield lambda status: live.update(Text("\n".join(status_lines(status))), refresh=True)
        return
    printed = ""

    def show(status: StudyStatus) -> None:
        nonlocal printed
        if (line := short_line(status)) != printed:
            echo(line)
            printed = line

    yield show
