"""Going on from a state of an earlier run as one run: its rows, its optimizer, its schedule.

A state on other text than its own is a finished model like any other; on its own text the rows
that it has read must not come again, and both arms of a comparison must read the same new ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from biphasic.config import parse_config
from biphasic.errors import CheckpointError, ConfigError, DataError
from biphasic.files import is_complete, read_json_object, verify_folder
from biphasic.model.loading.hub import LocalModel, check_claim, claimed_identity
from biphasic.objectives.lr import LearningRateConfig
from biphasic.training.lineage import DataFingerprint, Lineage
from biphasic.training.recipe import Recipe
from biphasic.training.timeline import check_phases


@dataclass(frozen=True)
class Continuation:
    """A state, and the recipe that ends with it.

    Attributes:
        folder: Of the state.
        identity: Of the state.
        recipe: To be extended by the phases to come.
    """

    folder: Path
    identity: str
    recipe: Recipe

    @property
    def steps(self) -> int:
        """Updates that led to the state."""
        return self.recipe.total_steps

    @property
    def schedule(self) -> LearningRateConfig:
        """Schedule of the learning rate that the state was trained with last."""
        return self.recipe.placed_phases[-1].schedule

    def require(self, recipe: Recipe, fingerprint: DataFingerprint) -> None:
        """Check that a recipe still passes through the state.

        Args:
            recipe: The state's own, with phases to come.
            fingerprint: What it would be trained on now.

        Raises:
            DataError: What the run began with has changed, so all of it would be another.
        """
        if Lineage(recipe, fingerprint).identities[self.steps] != self.identity:
            raise DataError(
                f"{self.folder}: cannot be gone on with: the model that its run began with, or the "
                "corpus of a phase, has changed since; put it back, or adapt an export of the state"
            )

    def bring_into(self, store: Path) -> None:
        """Copy the state into a store, unless it is there."""
        target = store / "states" / self.identity
        if is_complete(target):
            return
        verify_folder(self.folder, remedy="take another copy of the state")
        partial = target.with_name(f".partial-{self.identity}")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(self.folder, partial)
        partial.rename(target)


def is_state(model: LocalModel) -> bool:
    """Tell whether a model is a state of a run, whole and unchanged."""
    return claimed_identity(model.folder) == model.identity


def check_state(model: LocalModel, store: Path, *, say: Callable[[str], None]) -> None:
    """Tell the states of a store that are damaged from copies that somebody changed.

    Args:
        model: Any model on disk.
        store: Content store.
        say: Told of a copy that is no longer the state that its records name.

    Raises:
        CheckpointError: A state of the store is damaged.
    """
    try:
        check_claim(model, remedy="delete the folder and run again")
    except CheckpointError as error:
        if model.folder.parent == (store / "states").resolve():
            raise
        told = str(error).rpartition("; ")[0]
        say(f"{told}; so this is not the state that its records name, but a model of its own")


def find_continuation(model: LocalModel, fingerprint: DataFingerprint) -> Continuation | None:
    """Return how a state's own run goes on; None if the model is no state, or of other text.

    What the run read beside, the model that it began with and corpora of single phases, is taken
    as the state has it.

    Args:
        model: Any model on disk.
        fingerprint: The text that is to be read.
    """
    if not is_state(model):
        return None
    state = read_json_object(model.folder / "state.json")
    fingerprint = _with_own(fingerprint, state.get("ground") or {})
    try:
        recipe = parse_config(Recipe, state["recipe"], where=str(model.folder / "state.json"))
    except ConfigError:
        return None  # of another version of the program, whose recipes have other settings
    for candidate in _ending_at(recipe, int(state["step"])):
        if Lineage(candidate, fingerprint).identities[-1] == model.identity:
            return Continuation(model.folder, model.identity, candidate)
    return None


def _with_own(fingerprint: DataFingerprint, own: dict[str, Any]) -> DataFingerprint:
    return replace(fingerprint, pretrained=own.get("pretrained"), corpora=own.get("corpora") or {})


def _ending_at(recipe: Recipe, step: int) -> list[Recipe]:
    """Return recipes that may end with the state after `step` updates.

    Before its decay a run has the rates of one that never decays.
    """
    if not step:
        return []
    phases = [
        placed.phase.model_copy(update={"steps": min(placed.phase.steps, step - placed.start)})
        for placed in recipe.placed_phases
        if placed.start < step
    ]
    whole = recipe.model_copy(update={"phases": tuple(phases)})
    return [each for each in (whole, _without_decay(whole)) if _is_possible(each)]


def _without_decay(recipe: Recipe) -> Recipe:
    """Return a recipe whose last schedule stays at its peak."""
    phases = list(recipe.phases)
    constant = recipe.placed_phases[-1].schedule.model_copy(update={"decay_steps": 0})
    own = [index for index, phase in enumerate(phases) if phase.learning_rate]
    if not own:
        return recipe.model_copy(update={"learning_rate": constant})
    phases[own[-1]] = phases[own[-1]].model_copy(update={"learning_rate": constant})
    return recipe.model_copy(update={"phases": tuple(phases)})


def _is_possible(recipe: Recipe) -> bool:
    try:
        check_phases(recipe.placed_phases)
    except ConfigError:
        return False
    return True
