"""`biphasic study status`, `cancel`, `retry` and `clean`: looking after studies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biphasic.cli.options import Quiet, Root, echo, progress_console
from biphasic.cli.results import show_outcome

if TYPE_CHECKING:
    from biphasic.study.spec.study import StudyConfig
    from biphasic.study.status.record import StudyStatus

_REFRESH_SECONDS = 1.0

StudyName = Annotated[
    str | None,
    typer.Argument(help="Study file, folder or name; default: the only study of the root."),
]


def study_status_command(
    study: StudyName = None,
    root: Root = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON, once.")] = False,
    watch: Annotated[
        bool | None,
        typer.Option(help="Stay until the study has ended; default: on a terminal, if it runs."),
    ] = None,
) -> None:
    """Say how far a study is: jobs, failures and why, arms, device-hours."""
    from biphasic.study.find import find_study
    from biphasic.study.status.status import study_status
    from biphasic.study.status.text import status_lines

    folder, config = find_study(study, root)
    status = study_status(folder, config)
    if as_json:
        echo(status.model_dump_json(indent=1))
        return
    stays = sys.stdout.isatty() if watch is None else watch
    if stays and status.runner is not None:
        status = _watch(status, config)
    echo("\n".join(status_lines(status)))


def study_cancel(
    study: Annotated[str, typer.Argument(help="Study file, folder or name.")],
    root: Root = Path("runs"),
) -> None:
    """Stop a study, also one that runs on another machine; 'study run' goes on later."""
    from biphasic.study.find import find_study
    from biphasic.study.run.control import cancel_study

    folder, _ = find_study(study, root)
    cancel_study(folder, say=echo)


def study_retry(
    study: Annotated[str, typer.Argument(help="Study file, folder or name.")],
    jobs: Annotated[
        list[str] | None,
        typer.Argument(help="Jobs, by label or beginning of the identity; default: all."),
    ] = None,
    root: Root = Path("runs"),
    workers: Annotated[
        int | None, typer.Option(min=1, help="Jobs at once, if nobody runs it yet.")
    ] = None,
    threads: Annotated[
        int, typer.Option(min=1, help="Threads per job, if nobody runs it yet.")
    ] = 1,
    quiet: Quiet = False,
) -> None:
    """Try jobs again that were set aside: ask whoever runs the study, or else run it here."""
    from biphasic.errors import StudyError
    from biphasic.locks import LOCK, find_owner
    from biphasic.study.find import find_study
    from biphasic.study.run.control import retry_jobs

    folder, _ = find_study(study, root)
    runner = find_owner(folder / LOCK)
    if runner is not None:
        for job in retry_jobs(folder, runner, jobs or ()):
            echo(f"asked {runner} to try again: {job.label}")
        return
    if jobs:
        raise StudyError(
            f"nobody runs {folder.name}, so single jobs cannot be tried again in it; leave them "
            "away to run all that is missing, or run one with 'biphasic job run ID'"
        )
    from biphasic.study.api import run_study
    from biphasic.study.spec.load import load_resolved

    outcome = run_study(
        load_resolved(folder),
        root=folder.parent,
        num_workers=workers,
        num_threads=threads,
        console=progress_console(quiet=quiet),
    )
    show_outcome(outcome)


def study_verify(
    study: Annotated[
        str | None,
        typer.Argument(help="Study file, folder or name; default: the only study of the root."),
    ] = None,
    root: Root = Path("runs"),
) -> None:
    """Read every byte that a study stands on; exit code 1 if something is damaged."""
    from biphasic.study.find import find_study
    from biphasic.study.gc.verify import verify_study

    folder, _ = find_study(study, root)
    found = verify_study(folder, say=lambda told: echo(told, err=True))
    counts = ", ".join(f"{count:,} {kind}" for kind, count in found.checked.items())
    echo(f"{folder.name}: read {counts}, report")
    for kind, count in found.missing.items():
        echo(f"{count:,} {kind} are not there; 'biphasic study run' makes them")
    for told in found.damage:
        echo(f"damaged: {told}", err=True)
    if found.damage:
        raise typer.Exit(1)
    echo("all whole")


def study_clean(
    root: Root = Path("runs"),
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete what is listed; without it, only list.")
    ] = False,
    also_pretrained: Annotated[
        bool,
        typer.Option(
            "--also-pretrained",
            help="Count what 'pretrain', 'adapt', 'evaluate' or 'finetune' made, and no study "
            "needs, as not needed.",
        ),
    ] = False,
) -> None:
    """List what no study of a root needs, with sizes; delete it with --delete."""
    from biphasic.study.gc.clean import clean
    from biphasic.study.gc.text import cleaning_lines

    def say(sentence: str) -> None:
        echo(sentence, err=True)

    cleaning = clean(root, delete=delete, also_pretrained=also_pretrained, say=say)
    echo("\n".join(cleaning_lines(cleaning, deleted=delete)))


def _watch(status: StudyStatus, config: StudyConfig | None) -> StudyStatus:
    """Show a running study until it has ended, or Ctrl-C; return how far it is then."""
    import time
    from contextlib import suppress

    from biphasic.study.status.status import study_status

    # Ctrl-C ends the watching alone: the study goes on.
    with suppress(KeyboardInterrupt), _screen() as show:
        while status.runner is not None:
            show(status)
            time.sleep(_REFRESH_SECONDS)
            status = study_status(status.folder, config)
    return status


@contextmanager
def _screen() -> Iterator[Callable[[StudyStatus], None]]:
    """Yield what shows a status: in place on a terminal, elsewhere a line whenever it changes."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from biphasic.study.status.text import short_line, status_lines

    console = Console()
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield lambda status: live.update(Text("\n".join(status_lines(status))), refresh=True)
        return
    told = [""]

    def tell(status: StudyStatus) -> None:
        if (line := short_line(status)) != told[-1]:
            echo(line)
            told.append(line)

    yield tell
