"""What a store has of a plan: finished work, and states that another version computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from biphasic.errors import DataError
from biphasic.files import canonical_json, complete_names, is_complete, read_json
from biphasic.study.plan.finetuning import FinetuneGroup
from biphasic.study.plan.plan import Plan, Segment


def missing_runs(group: FinetuneGroup, store: Path) -> list[str]:
    """Return the fine-tunings of one group that have no result; only these are looked up."""
    return [name for name in group.run_ids() if not is_complete(store / "finetunes" / name)]


@dataclass(frozen=True)
class Finished:
    """A snapshot of the finished work in a store: identities of states and of fine-tunings."""

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

    def results_of(self, plan: Plan) -> Iterator[str]:
        """Yield the identities of a plan's finished fine-tunings."""
        if self.results:
            names = (name for group in plan.groups for name in group.run_ids())
            yield from (name for name in names if name in self.results)


def outdated_arms(plan: Plan, store: Path) -> list[str]:
    """Return a note for each arm whose final state only another version of biphasic computed.

    Recipe, data and step are the same, but the identity differs: it includes the version of the
    numbers (`NUMERICS_VERSION`).
    """
    missing = [arm for arm in plan.arms if not is_complete(store / "states" / arm.state)]
    if not missing:
        return []
    others = _unplanned_states(plan, store)
    return [
        f"arm '{arm.config.name}': another version of biphasic trained it (state "
        f"{others[key][:12]}); results differ between these versions, so it is trained again"
        for arm in missing
        if (key := _key(arm.lineage.recipe.model_dump(mode="json"), arm.lineage.recipe.total_steps,
                        arm.lineage.fingerprint.corpus_hash)) in others
    ]  # fmt: skip


def _unplanned_states(plan: Plan, store: Path) -> dict[str, str]:
    """Return the states of a store that a plan does not have, by recipe, step and corpus."""
    planned = {segment.id for segment in plan.segments}
    names: dict[str, str] = {}
    for path in sorted((store / "states").glob("*/state.json")):
        name = path.parent.name
        if name in planned or not is_complete(path.parent):
            continue
        try:
            state = read_json(path)
            key = _key(state["recipe"], state["step"], state["ground"]["corpus_hash"])
        except (DataError, KeyError, TypeError):
            continue  # of a version too old to compare, or of another program
        names[key] = name
    return names


def _key(recipe: object, step: int, corpus_hash: str) -> str:
    return canonical_json({"recipe": recipe, "step": step, "corpus": corpus_hash})
