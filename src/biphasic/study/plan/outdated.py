"""States of another version of the program: said, and not used."""

from __future__ import annotations

from pathlib import Path

from biphasic.errors import DataError
from biphasic.files import canonical_json, is_complete, read_json
from biphasic.study.plan.plan import Plan


def outdated_arms(plan: Plan, store: Path) -> list[str]:
    """Say which arms the store has a state of that this version would compute otherwise.

    The recipe and the data are the same, and so is the step; the identity is not, since versions
    that compute other numbers name their states differently (`NUMERICS_VERSION`).
    """
    missing = [arm for arm in plan.arms if not is_complete(store / "states" / arm.state)]
    if not missing:
        return []
    others = _states_by_recipe(store, {segment.id for segment in plan.segments})
    return [
        f"arm '{arm.config.name}': the store has it from another version of biphasic (state "
        f"{others[key][:12]}); numbers have changed since, so it is trained again"
        for arm in missing
        if (key := _key(arm.lineage.recipe.model_dump(mode="json"), arm.lineage.recipe.total_steps,
                        arm.lineage.fingerprint.corpus_hash)) in others
    ]  # fmt: skip


def _states_by_recipe(store: Path, planned: set[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted((store / "states").glob("*/state.json")):
        name = path.parent.name
        if name in planned or not is_complete(path.parent):
            continue
        try:
            state = read_json(path)
            key = _key(state["recipe"], state["step"], state["ground"]["corpus_hash"])
        except (DataError, KeyError, TypeError):
            continue  # of a version so old that it cannot be compared, or nothing of ours
        found[key] = name
    return found


def _key(recipe: object, step: int, corpus_hash: str) -> str:
    return canonical_json({"recipe": recipe, "step": step, "corpus": corpus_hash})
