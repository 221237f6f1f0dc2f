"""The `biphasic study` commands `status`, `cancel`, `retry`, `verify` and `clean`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biphasic.api.studies import cancel, clean, retry, status, verify
from biphasic.cli.command import command
from biphasic.cli.options import echo, show_outcome

if TYPE_CHECKING:
    from biphasic.api.results.studies import Cleaned, Retried, Status, Verified

_REFRESH_SECONDS = 1.0


@command(status)
def study_status(
    found: Status,
    *,
    study: str | None,
    root: Path,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON, once.")] = False,
    watch: Annotated[
        bool | None,
        typer.Option(help="Watch until the study ends. Default: on a terminal, if it is running."),
    ] = None,
) -> None:
    if as_json:
        echo(found.model_dump_json(indent=1))
        return
    stays = sys.stdout.isatty() if watch is None else watch
    if stays and found.runner is not None:
        found = _watch(found, study, root)
    echo(str(found))


@command(cancel)
def study_cancel(_: bool) -> None:
    pass  # `cancel` says what happens


@command(retry)
def study_retry(retried: Retried) -> None:
    for request in retried.requests:
        echo(request)
    if retried.outcome is not None:
        show_outcome(retried.outcome)


@command(verify)
def study_verify(verified: Verified) -> None:
    """The exit code is 1 if any file is damaged."""
    echo(str(verified))
    for problem in verified.damage:
        echo(f"damaged: {problem}", err=True)
    if verified.damage:
        raise typer.Exit(1)


@command(clean)
def study_clean(cleaned: Cleaned) -> None:
    echo(str(cleaned))


def _watch(found: Status, study: str | None, root: Path) -> Status:
    """Show a running study until it ends or Ctrl-C; return its last status."""
    import time
    from contextlib import suppress

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
