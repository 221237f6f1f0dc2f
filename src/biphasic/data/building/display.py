"""Progress display of a corpus build."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from biphasic.data.building.blend import BuildProgress, Report
from biphasic.progress import progress_bar


@contextmanager
def build_bar(console: Console) -> Iterator[Report]:
    """Show the progress of a build; yield its progress callback."""
    with progress_bar(console, "building the corpus", unit="tokens") as report:
        yield lambda progress: report(
            progress.tokens, progress.total_tokens, f"{progress.text_bytes / 1e6:,.1f} MB"
        )


def rates(progress: BuildProgress) -> str:
    """Format the amount of text tokenized, the time and the rates."""
    megabytes, seconds = progress.text_bytes / 1e6, max(progress.seconds, 1e-9)
    return (
        f"{megabytes:,.1f} MB in {seconds:,.1f} s: {megabytes / seconds:,.1f} MB/s, "
        f"{progress.tokens / seconds:,.0f} tokens/s"
    )
