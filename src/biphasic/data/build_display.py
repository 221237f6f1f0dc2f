"""What a person sees while a corpus is built: sentences, and on a terminal a bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from biphasic.data.blend import BuildProgress, Report
from biphasic.errors import visible


def say_on(console: Console) -> Callable[[str], None]:
    """Return what prints a sentence as it is: names may look like markup."""

    def say(text: str) -> None:
        console.print(visible(text), markup=False, highlight=False, soft_wrap=True)

    return say


@contextmanager
def build_bar(console: Console) -> Iterator[Report]:
    """Show how far tokenising is, on a terminal only; yield what moves the bar."""
    with Progress(
        TextColumn("tokenising"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[text]}"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        bar = bars.add_task("", total=None, text="", visible=False)

        def show(progress: BuildProgress) -> None:
            bars.update(
                bar,
                completed=progress.tokens,
                total=progress.total_tokens,
                text=rates(progress),
                visible=True,
            )

        yield show


def rates(progress: BuildProgress) -> str:
    """Write how much was tokenised, how long it took, and how fast that is."""
    megabytes, seconds = progress.text_bytes / 1e6, max(progress.seconds, 1e-9)
    return (
        f"{megabytes:,.1f} MB in {seconds:,.1f} s: {megabytes / seconds:,.1f} MB/s, "
        f"{progress.tokens / seconds:,.0f} tokens/s"
    )
