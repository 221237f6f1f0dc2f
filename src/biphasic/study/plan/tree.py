"""The states of many runs as one tree, which branches where their expansions differ.

Only these states are nodes: the end of a run, a state to evaluate, and a branching point. The
edge to a node has the updates that lead there from its parent. Updates that runs share are
compared and hashed once, and sharing needs no declaration.

`Lineage` defines the identity of a state, update by update. Nearly all updates of a run equal the
one before, so a run is expanded into stretches of equal updates, each with one text and a count.
Trees compare and hash these texts. Tests check that both ways give the same identities.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import Any

from biphasic.files import canonical_json
from biphasic.training.lineage import DataFingerprint, Lineage, step_determinants
from biphasic.training.recipe import Recipe
from biphasic.training.timeline import PlacedPhase

Stretch = tuple[str, int]
_RATE = '"learning_rate":'
# Texts of objectives that a phase has in turn are kept: it comes back to each of them.
_TURNS = 64


@dataclass(frozen=True, slots=True)
class Expansion:
    """Everything that determines the states of a run."""

    root: str  # Identity of the state before the first update.
    # Canonical JSON of an update, and the number of equal updates in a row; no two neighbours are
    # equal.
    stretches: tuple[Stretch, ...]


@dataclass(slots=True, eq=False)
class Node:
    """A state that the plan needs."""

    step: int
    parent: Node | None  # The previous node; None for the initial state of a run.
    identity: str = ""  # Of the state; empty until `StateTree.name_states`.
    edge: list[Stretch] = field(default_factory=list[Stretch])  # The updates from the parent.
    # The next nodes, by the first update of their edge.
    children: dict[str, Node] = field(default_factory=dict[str, "Node"])
    # Step and identity of the last known state between the parent and this node.
    nearest: tuple[int, str] | None = None

    def path(self) -> list[Node]:
        """Return the nodes from the initial state to this one."""
        nodes: list[Node] = [self]
        while nodes[-1].parent is not None:
            nodes.append(nodes[-1].parent)
        return nodes[::-1]


class StateTree:
    """Runs, merged as far as their updates agree."""

    def __init__(self) -> None:
        """Create an empty tree."""
        self._roots: dict[str, Node] = {}

    def add(self, lineage: Lineage, steps: Iterable[int] = ()) -> dict[int, Node]:
        """Add a run; return its nodes at `steps` and at its end, by step."""
        expansion = expand(lineage)
        root = self._roots.setdefault(expansion.root, Node(0, None, expansion.root))
        total = sum(count for _, count in expansion.stretches)
        stops = sorted({step for step in steps if 0 < step < total} | {total})
        nodes, node = {0: root}, root
        for step, part in zip(stops, _cut(expansion.stretches, stops), strict=True):
            node = nodes[step] = _extend(node, part)
        return {step: nodes[step] for step in stops}

    def name_states(self, known: Set[str] = frozenset()) -> None:
        """Compute the identity of each node, as `Lineage.identities` does."""
        waiting = list(self._roots.values())
        while waiting:
            node = waiting.pop()
            for child in node.children.values():
                if not child.identity:
                    child.identity, nearest = _chain(node, child.edge, known)
                    child.nearest = None if child.identity in known else nearest
                waiting.append(child)


def expand(lineage: Lineage) -> Expansion:
    """Expand a recipe on its data."""
    recipe, fingerprint = lineage.recipe, lineage.fingerprint
    # Of the chain of identities only the first is needed: without phases, there are no others.
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
    # The first step may be one that is skipped; `_cut_at_skipped` puts such steps in.
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
        # Rates are equal between warm-up and decay alone; in these, each step has its own.
        count = min(peak_to, placed.end) - step if peak_from <= step < peak_to else 1
        yield step, count
        step += count


def _cut(stretches: Iterable[Stretch], stops: Iterable[int]) -> Iterator[list[Stretch]]:
    """Cut an expansion at the given steps, of which the last is its end."""
    source, step = iter(stretches), 0
    text, left = "", 0
    for stop in stops:
        part: list[Stretch] = []
        while step < stop:
            if not left:
                text, left = next(source)
            taken = min(left, stop - step)
            part.append((text, taken))
            left, step = left - taken, step + taken
        yield part


def _extend(node: Node, part: list[Stretch]) -> Node:
    """Follow a part of an expansion from a node, adding nodes; return the node at its end."""
    while part:
        child = node.children.get(part[0][0])
        if child is None:
            return _attach(node, part)
        matched, part, rest = _match(child.edge, part)
        node = child if not rest else _split(node, child, matched, rest)
    return node


def _attach(node: Node, part: list[Stretch]) -> Node:
    child = Node(node.step + sum(count for _, count in part), node, "", part)
    node.children[part[0][0]] = child
    return child


def _split(parent: Node, child: Node, matched: list[Stretch], rest: list[Stretch]) -> Node:
    """Insert a node on the edge to `child`: after `matched`, before `rest`."""
    middle = _attach(parent, matched)
    child.parent, child.edge = middle, rest
    middle.children[rest[0][0]] = child
    return middle


def _match(
    edge: list[Stretch], part: list[Stretch]
) -> tuple[list[Stretch], list[Stretch], list[Stretch]]:
    """Return the common beginning of an edge and a part, and the rest of the part and the edge."""
    for index, ((text, count), (other, others)) in enumerate(zip(edge, part, strict=False)):
        if text != other:
            return edge[:index], part[index:], edge[index:]
        if count != others:
            common = min(count, others)
            matched = [*edge[:index], (text, common)]
            more = [(text, others - common)] if others > common else []
            left = [(text, count - common)] if count > common else []
            return matched, [*more, *part[index + 1 :]], [*left, *edge[index + 1 :]]
    common = min(len(edge), len(part))
    return edge[:common], part[common:], edge[common:]


def _chain(
    parent: Node, stretches: Iterable[Stretch], known: Set[str]
) -> tuple[str, tuple[int, str] | None]:
    """Return the identity at the end of an edge, and the last known state on it."""
    current, step = parent.identity.encode(), parent.step
    nearest: tuple[int, str] | None = None
    for text, count in stretches:
        link = text.encode()
        for _ in range(count):
            # The digits, not the bytes, of the link before, as in `Lineage.identities`.
            current = hashlib.sha256(current + link).hexdigest().encode()
            step += 1
            if known and (identity := current.decode()) in known:
                nearest = step, identity
    return current.decode(), nearest
