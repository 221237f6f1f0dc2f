"""What a store has of a plan: finished work, and states that another version computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biphasic.errors import DataError
from biphasic.files import canonical_json, complete_names, is_complete, read_json
from biphasic.plugins import references_in, shown, without_code
from biphasic.study.plan.finetuning import FinetuneGroup
from biphasic.study.plan.plan import Plan, Segment

_OTHER_VERSION = "another version of biphasic"


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
    numbers (`NUMERICS_VERSION`) and the code of plugins.
    """
    missing = [arm for arm in plan.arms if not is_complete(store / "states" / arm.state)]
    if not missing:
        return []
    others = _unplanned_states(plan, store)
    notes: list[str] = []
    for arm in missing:
        recipe, total = arm.lineage.recipe.model_dump(mode="json"), arm.lineage.recipe.total_steps
        key = _key(recipe, total, arm.lineage.fingerprint.corpus_hash)
        if key in others:
            state, before = others[key]
            now = references_in(recipe)
            changed = [shown(old) for old in references_in(before) if old not in now]
            who = f"other code, of {' and '.join(changed)}," if changed else _OTHER_VERSION
            notes.append(
                f"arm '{arm.config.name}': {who} trained it (state {state[:12]}); results differ "
                "between these versions, so it is trained again"
            )
    return notes


def _unplanned_states(plan: Plan, store: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the states of a store that a plan does not have, by recipe, step and corpus.

    Each is with its own recipe, as recipes with other code of a plugin count as the same.
    """
    planned = {segment.id for segment in plan.segments}
    names: dict[str, tuple[str, dict[str, Any]]] = {}
    for path in sorted((store / "states").glob("*/state.json")):
        name = path.parent.name
        if name in planned or not is_complete(path.parent):
            continue
        try:
            state = read_json(path)
            key = _key(state["recipe"], state["step"], state["ground"]["corpus_hash"])
        except (DataError, KeyError, TypeError):
            continue  # of a version too old to compare, or of another program
        names[key] = name, state["recipe"]
    return names


def _key(recipe: object, step: int, corpus_hash: str) -> str:
    return without_code(canonical_json({"recipe": recipe, "step": step, "corpus": corpus_hash}))
