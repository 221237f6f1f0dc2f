"""What functions about running and finished studies return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from biphasic.shown import Shown, inline
from biphasic.study.status.record import StudyStatus

if TYPE_CHECKING:
    from biphasic.study.gc.clean import Cleaning
    from biphasic.study.gc.verify import Verification
    from biphasic.study.run.run import StudyOutcome
    from biphasic.study.tune.search import TuneOutcome


class Status(Shown, StudyStatus):
    """What `status` returns: the progress of a study."""

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each arm: the jobs it needs, and those that are done."""
        return [
            {"arm": name, "done": arm.done, "total": arm.total} for name, arm in self.by_arm.items()
        ]

    def lines(self) -> Iterator[str]:
        """Return jobs, failures, arms and device-hours."""
        from biphasic.study.status.status import status_lines

        return status_lines(self)


@dataclass(frozen=True, repr=False)
class Verified(Shown):
    """What `verify` returns: the files that were compared with their hashes.

    Attributes:
        name: Of the study.
        verification: Numbers of files that are intact and missing, and a line for each damage.
    """

    name: str
    verification: Verification

    @property
    def damage(self) -> tuple[str, ...]:
        """A line for each damaged file, with its remedy; empty if all are intact."""
        return tuple(self.verification.damage)

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each kind of files."""
        checked, missing = self.verification.checked, self.verification.missing
        return [
            {"kind": kind, "verified": checked[kind], "missing": missing[kind]}
            for kind in dict.fromkeys((*checked, *missing))
        ]

    def lines(self) -> Iterator[str]:
        """Return the numbers."""
        counts = ", ".join(f"{n:,} {kind}" for kind, n in self.verification.checked.items())
        yield f"{self.name}: verified {counts}, report"
        for kind, number in self.verification.missing.items():
            yield f"{number:,} {kind} missing; 'biphasic study run' creates them"
        if not self.damage:
            yield "all intact"


@dataclass(frozen=True, repr=False)
class Cleaned(Shown):
    """What `clean` returns: what no study needs.

    Attributes:
        cleaning: The items, and what is kept.
        is_deleted: Whether they were deleted.
    """

    cleaning: Cleaning
    is_deleted: bool

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each item."""
        return [
            {"kind": one.kind, "path": str(one.path), "bytes": one.num_bytes, "about": one.about}
            for one in self.cleaning.items
        ]

    def lines(self) -> Iterator[str]:
        """Return the items by kind."""
        from biphasic.study.gc.clean import cleaning_lines

        return cleaning_lines(self.cleaning, deleted=self.is_deleted)


@dataclass(frozen=True, repr=False)
class Retried(Shown):
    """What `retry` returns.

    Attributes:
        requests: A line for each job that the study's runner was asked to retry.
        outcome: The outcome of the study, if it ran here.
    """

    requests: tuple[str, ...]
    outcome: StudyOutcome | None

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows of the outcome."""
        return self.outcome.table() if self.outcome else [{"request": one} for one in self.requests]

    def lines(self) -> Iterator[str]:
        """Return the requests, or the outcome."""
        yield from self.requests
        if self.outcome is not None:
            yield from self.outcome.lines()


@dataclass(frozen=True, repr=False)
class Tuned(Shown):
    """What `tune` returns: trials of learning rates, and the chosen ones.

    Attributes:
        planned: What would be trained, with `dry_run`; else empty.
        outcome: The trials, their folder, and the file with the rates; None with `dry_run`.
    """

    planned: tuple[str, ...]
    outcome: TuneOutcome | None

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each trial."""
        curves = () if self.outcome is None else self.outcome.record.curves
        return [
            {
                "name": curve.name,
                "rate": trial.peak,
                "loss": trial.loss,
                "is_chosen": trial.peak == curve.choice,
            }
            for curve in curves
            for trial in curve.trials
        ]

    def lines(self) -> Iterator[str]:
        """Return the trials, and the file with the rates."""
        from biphasic.study.tune.text import result_lines

        yield from self.planned
        if self.outcome is not None:
            yield from result_lines(self.outcome.record)
            yield f"curves: {self.outcome.folder / 'curve.png'}"
            yield f"rates:  {self.outcome.file}"
            if self.outcome.advice:
                yield self.outcome.advice

    def drawing(self) -> str:
        """Return the losses by rate."""
        if self.outcome is None:
            return ""
        return inline((self.outcome.folder / "curve.svg").read_text(encoding="utf-8"))
