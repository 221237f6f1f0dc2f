"""The `biphasic study` commands `status`, `cancel`, `retry`, `verify` and `clean`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    show_outcome,
)

if TYPE_CHECKING:
    from biphasic.api.studies import Status

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
    from biphasic.api.studies import status

    found = status(study, root=root)
    if as_json:
        echo(found.model_dump_json(indent=1))
        return
    stays = sys.stdout.isatty() if watch is None else watch
    if stays and found.runner is not None:
        found = _watch(found, study, root)
    echo("\n".join(found.lines()))


def study_cancel(study: NamedStudy, root: Root = Path("runs")) -> None:
    """Stop a study, also on another machine; 'study run' resumes it."""
    from biphasic.api.studies import cancel

    cancel(study, root=root)


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
    from biphasic.api.studies import retry

    retried = retry(study, jobs or (), root=root, workers=workers, threads=threads, quiet=quiet)
    for request in retried.requests:
        echo(request)
    if retried.outcome is not None:
        show_outcome(retried.outcome)


def study_verify(study: StudyName = None, root: Root = Path("runs")) -> None:
    """Verify the hashes of all files that a study uses.

    The exit code is 1 if any file is damaged.
    """
    from biphasic.api.studies import verify

    verified = verify(study, root=root)
    echo("\n".join(verified.lines()))
    for problem in verified.damage:
        echo(f"damaged: {problem}", err=True)
    if verified.damage:
        raise typer.Exit(1)


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
    from biphasic.api.studies import clean

    echo("\n".join(clean(root=root, delete=delete, also_pretrained=also_pretrained).lines()))


def _watch(found: Status, study: str | None, root: Path) -> Status:
    """Show a running study until it ends or Ctrl-C; return its last status."""
    import time
    from contextlib import suppress

    from biphasic.api.studies import status

    # Ctrl-C stops watching; the study keeps running.
    with suppress(KeyboardInterrupt), _screen() as show:
        while found.runner is not None:
            show(found)
            time.sleep(_REFRESH_SECONDS)
            found = status(study, root=root)
    return found


@contextmanager
def _screen() -> Iterator[Callable[[Status], None]]:
    """Yield a function that shows a status: in place on a terminal, else a line per change."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from biphasic.study.status.status import short_line

    console = Console()
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield lambda status: live.update(Text(str(status)), refresh=True)
        return
    printed = ""

    def show(status: Status) -> None:
        nonlocal printed
        if (line := short_line(status)) != printed:
            echo(line)
            printed = line

    yield show
