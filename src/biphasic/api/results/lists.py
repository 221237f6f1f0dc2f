"""What functions about plugins, sites, single jobs and two plans return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from biphasic.shown import Shown


@dataclass(frozen=True, repr=False)
class Findings(Shown):
    """What `plugin.list`, `plugin.check`, `site.check` and `diff` return.

    Attributes:
        sentences: A line for each plugin, difference or other finding.
    """

    sentences: tuple[str, ...]

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each line."""
        return [{"finding": sentence} for sentence in self.sentences]

    def lines(self) -> Sequence[str]:
        """Return the lines."""
        return self.sentences


@dataclass(frozen=True, repr=False)
class JobRun(Shown):
    """What `job.run` returns.

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
