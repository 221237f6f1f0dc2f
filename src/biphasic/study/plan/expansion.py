"""Expansion of a recipe into stretches of equal updates.

`Lineage` defines the identity of a state, update by update. Nearly all updates of a run equal the
one before, so this module describes each stretch of equal updates by one text and a count. Plans
compare and hash these texts (`tree.py`). Tests check that both ways give the same identities.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from biphasic.files import canonical_json
from biphasic.training.lineage import DataFingerprint, Lineage, StepSpec, step_spec
from biphasic.training.recipe import Recipe
from biphasic.training.timeline import PlacedPhase

_RATE = '"learning_rate":'
_TURNS = 64


@dataclass(frozen=True, slots=True)
class Expansion:
    """Everything that determines the states of a run.

    Attributes:
        root: Identity of the state before the first update.
        stretches: Canonical JSON of an update, and the number of equal updates in a row; no two
            neighbours are equal.
    """

    root: str
    stretches: tuple[tuple[str, int], ...]


def expand(lineage: Lineage) -> Expansion:
    """Expand a recipe on its data."""
    recipe, fingerprint = lineage.recipe, lineage.fingerprint
    untrained = recipe.model_copy(update={"phases": (), "skip_steps": ()})
    merged: list[tuple[str, int]] = []
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
    stretches: Iterable[tuple[str, int]],
    placed: PlacedPhase,
    recipe: Recipe,
    fingerprint: DataFingerprint,
) -> Iterator[tuple[str, int]]:
    """Yield the stretches of a phase, cut at the steps that are skipped."""
    step = placed.start
    for text, count in stretches:
        end = step + count
        for skipped in sorted(skip for skip in recipe.skip_steps if step <= skip < end):
            if step < skipped:
                yield text, skipped - step
            spec = step_spec(placed, skipped, recipe, fingerprint)
            yield canonical_json(spec.determinants()), 1
            step = skipped + 1
        if step < end:
            yield text, end - step
            step = end


def _phase_stretches(
    placed: PlacedPhase, recipe: Recipe, fingerprint: DataFingerprint
) -> Iterator[tuple[str, int]]:
    """Yield the stretches of a phase as if no step were skipped."""
    first = placed.start
    if placed.resets_optimizer(first):
        yield canonical_json(step_spec(placed, first, recipe, fingerprint).determinants()), 1
        first += 1
    if first == placed.end:
        return
    spec = replace(
        step_spec(placed, first, recipe, fingerprint), resets_optimizer=False, skipped=False
    )
    if is_steady(placed):
        head, tail = _around_rate(spec)
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
            named = objective.determinants(recipe.seeds.mask_seed)
            around[key] = _around_rate(replace(spec, objective=named))
        head, tail = around[key]
        yield f"{head}{placed.learning_rate(step)!r}{tail}", 1


def _around_rate(spec: StepSpec) -> tuple[str, str]:
    """Return the canonical JSON of an update before and after its learning rate.

    JSON writes numbers as `repr` does.
    """
    head, name, rest = canonical_json(spec.determinants()).partition(_RATE)
    rate = repr(spec.learning_rate)
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
