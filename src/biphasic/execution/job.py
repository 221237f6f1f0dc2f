"""What a job is: work that a process can do alone, given the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from biphasic.locks import Lock


@dataclass(frozen=True)
class Progress:
    """How far a job is: `done` of `total` steps, and a few words such as the loss."""

    done: int
    total: int
    text: str


Report = Callable[[Progress], None]
ShouldStop = Callable[[], bool]
"""Asked now and then; a job that hears yes saves what it has and raises `StoppedError`."""


def never() -> bool:
    """Never stop."""
    return False


class Runnable(Protocol):
    """A job that this process can run."""

    label: str

    def run(self, report: Report, *, should_stop: ShouldStop) -> None:
        """Run it, or find it done."""
        ...


class Job(Runnable, Protocol):
    """A job of a store, as JSON, so that another process can run it."""

    id: str
    store: Path

    @property
    def num_slots(self) -> int:
        """Slots that it takes."""
        ...

    def model_dump_json(self) -> str:
        """Return it as it is read again."""
        ...


LoadJob = Callable[[Path, str], Job]
"""Reads a job of a store by its identity."""


def while_held(report: Report, held: Lock) -> Report:
    """Return a report that ends a job which another process took over: this one seemed gone."""

    def forward(progress: Progress) -> None:
        report(progress)
        if held.is_lost:
            held.check()

    return forward
