"""States that another version of biphasic computed: reported, not used."""

from __future__ import annotations

from pathlib import Path

from biphasic.errors import DataError
from biphasic.files import canonical_json, is_complete, read_json
from biphasic.study.plan.plan import Plan


def outdated_arms(plan: Plan, store: Path) -> list[str]:
    """Return a note for each arm whose final state only another version of biphasic computed.

    Recipe, data and step are the same, but the identity differs: it includes the version of the
    numbers (`NUMERICS_VERSION`).
    """
    missing = [arm for arm in plan.arms if not is_complete(store / "states" / arm.state)]
    if not missing:
        return []
    others = _states_by_recipe(store, {segment.id for segment in plan.segments})
    return [
        f"arm '{arm.config.name}': another version of biphasic trained it (state "
        f"{others[key][:12]}); results differ between these versions, so it is trained again"
        for arm in missing
        if (key := _key(arm.lineage.recipe.model_dump(mode="json"), arm.lineage.recipe.total_steps,
                        arm.lineage.fingerprint.corpus_hash)) in others
    ]  # fmt: skip


def _states_by_recipe(store: Path, planned: set[str]) -> dict[str, str]:
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
