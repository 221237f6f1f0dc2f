"""The states of many runs as one tree, which branches where their expansions differ.

Updates that runs share are compared and hashed once, and sharing needs no declaration.

`Lineage` defines the identity of a state, update by update. Nearly all updates of a run equal the
one before, so a run is expanded into stretches of equal updates, each with one text and a count.
Trees compare and hash these texts. Tests check that both ways give the same identities.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from biphasic.files import canonical_json
from biphasic.training.lineage import DataFingerprint, Lineage, step_determinants
from biphasic.training.recipe import Recipe
from biphasic.training.timeline import PlacedPhase

Stretch = tuple[str, int]
_RATE = '"learning_rate":'
_TURNS = 64


@dataclass(frozen=True, slots=True)
class Expansion:
    """Everything that determines the states of a run."""

    root: str  # Identity of the state before the first update.
    # Canonical JSON of an update, and the number of equal updates in a row; no two neighbours are
    # equal.
    stretches: tuple[Stretch, ...]


class State(NamedTuple):
    """A state that the plan needs: the end of a run, one to evaluate, or a branching point."""

    step: int
    identity: str
    # Step and identity of the last known state between the one before and this one.
    nearest: tuple[int, str] | None = None


class _Place(NamedTuple):
    """A state after a number of equal updates."""

    number: int
    state: State
    is_needed: bool
    is_known: bool


@dataclass(slots=True, eq=False)
class _Updates:
    """Equal updates in a row, and what follows some of them."""

    # The next updates, by their text, after a number of these; none where a run ends.
    after: dict[int, dict[str, _Updates]] = field(default_factory=dict[int, dict[str, "_Updates"]])
    stops: set[int] = field(default_factory=set[int])  # Numbers after which a state is needed.
    places: list[_Place] = field(default_factory=list[_Place])  # Set by `StateTree.name_states`.


@dataclass(frozen=True)
class Track:
    """A run in a tree: how many of which updates it has."""

    root: str
    parts: list[tuple[_Updates, int]]

    def states(self) -> list[State]:
        """Return the needed states from the initial one to its end, which the tree has named."""
        states, nearest = [State(0, self.root)], None
        for updates, count in self.parts:
            for number, state, is_needed, is_known in updates.places:
                if number > count:
                    break
                if is_needed:
                    states.append(state if is_known else state._replace(nearest=nearest))
                    nearest = None
                elif is_known:
                    nearest = state.step, state.identity
        return states


class StateTree:
    """Runs, merged as far as their updates agree."""

    def __init__(self) -> None:
        """Create an empty tree."""
        self._roots: dict[str, dict[str, _Updates]] = {}

    def add(self, lineage: Lineage, steps: Iterable[int] = ()) -> Track:
        """Add a run, whose states at `steps` and at its end are needed."""
        expansion = expand(lineage)
        following, step = self._roots.setdefault(expansion.root, {}), 0
        parts: list[tuple[_Updates, int]] = []
        stops = sorted({step for step in steps if step > 0}, reverse=True)
        for text, count in expansion.stretches:
            updates = following.setdefault(text, _Updates())
            parts.append((updates, count))
            while stops and stops[-1] <= step + count:
                updates.stops.add(stops[-1] - step)
                updates.after.setdefault(stops.pop() - step, {})
            following = updates.after.setdefault(count, {})
            step += count
        if parts:
            updates, count = parts[-1]
            updates.stops.add(count)
        return Track(expansion.root, parts)

    def name_states(self, known: Set[str] = frozenset()) -> None:
        """Compute the identities of states, as `Lineage.identities` does."""
        waiting = [(State(0, root), after) for root, after in self._roots.items()]
        while waiting:
            state, following = waiting.pop()
            for text, updates in following.items():
                updates.places = [*_places(state, text.encode(), updates, known)]
                after = {place.number: place.state for place in updates.places}
                waiting += [(after[number], more) for number, more in updates.after.items()]


def _places(before: State, link: bytes, updates: _Updates, known: Set[str]) -> Iterator[_Place]:
    """Yield the states after which runs differ or end, and those that are known."""
    current, last = before.identity.encode(), max(updates.after)
    for number in range(1, last + 1):
        current = hashlib.sha256(current + link).hexdigest().encode()
        is_end = number in updates.after
        is_known = bool(known) and current.decode() in known
        if is_end or is_known:
            state = State(before.step + number, current.decode())
            is_branch = is_end and len(updates.after[number]) + (number < last) > 1
            yield _Place(number, state, is_branch or number in updates.stops, is_known)


def expand(lineage: Lineage) -> Expansion:
    """Expand a recipe on its data."""
    recipe, fingerprint = lineage.recipe, lineage.fingerprint
    untrained = recipe.model_copy(update={"phases": (), "skip_steps": ()})
    merged: list[Stretch] = []
    for placed in recipe.placed_phases:
        stretches = _phase_stretches(placed, recipe, fingerprint)
        for text, count in _cut_at_skipped(stretches, placed, recipe, fingerprint):
            if merged and merged[-1][0] == text:
                merged[-1] = text, merged[-1][1] + count
            else:
                merged.append((text, count))
    return Expansion(Lineage(untrained, fingerprint).identities[0], tuple(merged))


def is_steady(placed: PlacedPhase) -> bool:
    """Return whether a phase has the same objective at every step."""
    return placed.objective(placed.start) is placed.objective(placed.end - 1) is placed.phase


def _cut_at_skipped(
    stretches: Iterable[Stretch], placed: PlacedPhase, recipe: Recipe, fingerprint: DataFingerprint
) -> Iterator[Stretch]:
    """Yield the stretches of a phase, cut at the steps that are skipped."""
    step = placed.start
    for text, count in stretches:
        end = step + count
        for skipped in sorted(skip for skip in recipe.skip_steps if step <= skip < end):
            if step < skipped:
                yield text, skipped - step
            yield canonical_json(step_determinants(placed, skipped, recipe, fingerprint)), 1
            step = skipped + 1
        if step < end:
            yield text, end - step
            step = end


def _phase_stretches(
    placed: PlacedPhase, recipe: Recipe, fingerprint: DataFingerprint
) -> Iterator[Stretch]:
    """Yield the stretches of a phase as if no step were skipped."""
    first = placed.start
    if placed.resets_optimizer(first):
        yield canonical_json(step_determinants(placed, first, recipe, fingerprint)), 1
        first += 1
    if first == placed.end:
        return
    update = step_determinants(placed, first, recipe, fingerprint)
    for name in ("resets_optimizer", "skipped"):
        update.pop(name, None)
    if is_steady(placed):
        head, tail = _around_rate(update)
        for step, count in _equal_rates(placed, first):
            yield f"{head}{placed.learning_rate(step)!r}{tail}", count
        return

    around: dict[str, tuple[str, str]] = {}
    for step in range(first, placed.end):
        objective = placed.objective(step)
        key = objective.model_dump_json()
        if key not in around:
            if len(around) == _TURNS:  # a changing objective has a text for each step
                around.clear()
            named = objective.identity(recipe.seeds.mask_seed)
            around[key] = _around_rate(update | {"objective": named})
        head, tail = around[key]
        yield f"{head}{placed.learning_rate(step)!r}{tail}", 1


def _around_rate(update: dict[str, Any]) -> tuple[str, str]:
    """Return the canonical JSON of an update before and after its learning rate."""
    # JSON writes numbers as `repr` does.
    head, name, rest = canonical_json(update).partition(_RATE)
    rate = repr(update["learning_rate"])
    if not rest.startswith(rate):
        raise RuntimeError(f"canonical JSON does not write {rate} as Python does")
    return head + name, rest[len(rate) :]


def _equal_rates(placed: PlacedPhase, first: int) -> Iterator[tuple[int, int]]:
    """Yield steps of a phase, each with the number of steps at the same learning rate."""
    peak_from = placed.schedule_start + placed.schedule.warmup_steps
    peak_to = placed.schedule_end - placed.schedule.decay_steps
    step = first
    while step < placed.end:
        count = min(peak_to, placed.end) - step if peak_from <= step < peak_to else 1
        yield step, count
        step += count
