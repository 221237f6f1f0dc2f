"""Finished work: the states and results of a plan that a store has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from biphasic.files import complete_names, is_complete
from biphasic.study.plan.plan import FinetuneGroup, Plan
from biphasic.study.plan.training import Segment


def missing_runs(group: FinetuneGroup, store: Path) -> list[str]:
    """Return the fine-tunings of one group that have no result; only these are looked up."""
    return [name for name in group.run_ids() if not is_complete(store / "finetunes" / name)]


@dataclass(frozen=True)
class Finished:
    """A snapshot of the finished work in a store.

    Attributes:
        states: Identities of its states.
        results: Identities of its fine-tunings.
    """

    states: frozenset[str]
    results: frozenset[str]

    @classmethod
    def of(cls, store: Path) -> Finished:
        """List the finished work of a store."""
        return cls(*(frozenset(complete_names(store / kind)) for kind in ("states", "finetunes")))

    def missing_segments(self, plan: Plan) -> list[Segment]:
        """Return the segments whose state is missing."""
        return [segment for segment in plan.segments if segment.id not in self.states]

    def missing_groups(self, plan: Plan) -> list[FinetuneGroup]:
        """Return the groups of fine-tunings with a missing result."""
        return [group for group in plan.groups if not self.results.issuperset(group.run_ids())]

    def jobs(self, plan: Plan) -> set[str]:
        """Return the identities of the finished jobs."""
        left = {job.id for job in (*self.missing_segments(plan), *self.missing_groups(plan))}
        return {job.id for job in (*plan.segments, *plan.groups)} - left

    def missing(self, plan: Plan) -> list[str]:
        """Return the identities of the missing states and fine-tunings."""
        runs = (name for group in plan.groups for name in group.run_ids())
        segments = [segment.id for segment in self.missing_segments(plan)]
        return segments + [name for name in runs if name not in self.results]

    def results_of(self, plan: Plan) -> Iterator[str]:
        """Yield the identities of a plan's finished fine-tunings."""
        if self.results:
            names = (name for group in plan.groups for name in group.run_ids())
            yield from (name for name in names if name in self.results)
