"""Lineages: a recipe's expansion step by step, and the identities of its states.

The identity of the state after step *s* is the hash of the recipe's step-by-step expansion up to
*s*, not of the settings as written. Recipes that agree up to *s* share that state, whatever their
length, decay or later phases.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from biphasic.data.rows import ROW_PLAN_VERSION, WINDOW_DOCUMENTS, RowKind
from biphasic.files import canonical_json
from biphasic.training.recipe import Recipe
from biphasic.training.timeline import PlacedPhase

# Version of our numerics: increase by hand whenever the same recipe gives different weights.
NUMERICS_VERSION = 2


@dataclass(frozen=True)
class DataFingerprint:
    """Content hashes of a recipe's data, and the properties that affect the model."""

    corpus_hash: str
    tokenizer_sha256: str
    vocab_size: int
    pretrained: str | None = None
    """Hash of the pretrained model that the recipe starts from."""
    corpora: Mapping[str, str] = field(default_factory=dict)
    """Content hashes of the corpora of single phases, by folder."""
    fused: bool = False
    """Whether weights of the pretrained model hold several matrices (`model/shape.py`)."""

    def hash_of(self, corpus: Path | None) -> str:
        """Return the content hash of a phase's corpus; None means the run's own."""
        return self.corpus_hash if corpus is None else self.corpora[str(corpus)]


@dataclass(frozen=True)
class StepSpec:
    """Everything that determines one update, given the state before it."""

    # Fields without a default are always hashed. A field added later must have a default that keeps
    # the old behaviour; it is hashed only if it differs, which keeps old identities.

    objective: dict[str, Any]
    learning_rate: float
    optimizer: dict[str, Any]
    precision: str
    corpus_hash: str
    data_seed: int
    rows_per_step: int
    max_seqlen: int
    window_documents: int
    row_plan_version: int
    rope_theta: float | None = None
    frozen: tuple[str, ...] = ()
    resets_optimizer: bool = False
    skipped: bool = False
    rows: RowKind = "documents"
    splits_fused: bool = False

    def determinants(self) -> dict[str, Any]:
        """Return what is hashed."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.default is dataclasses.MISSING or getattr(self, field.name) != field.default
        }


def step_spec(
    placed: PlacedPhase, step: int, recipe: Recipe, fingerprint: DataFingerprint
) -> StepSpec:
    """Return everything that determines one update of a recipe on its data."""
    return StepSpec(
        objective=placed.objective(step).identity(recipe.seeds.mask_seed),
        learning_rate=placed.learning_rate(step),
        optimizer=recipe.optimizer.identity(),
        precision=recipe.precision,
        corpus_hash=fingerprint.hash_of(placed.corpus),
        data_seed=recipe.seeds.data_seed,
        rows_per_step=placed.batches.rows_per_step,
        max_seqlen=placed.batches.max_seqlen,
        window_documents=WINDOW_DOCUMENTS,
        row_plan_version=ROW_PLAN_VERSION,
        rope_theta=placed.rope_theta,
        frozen=tuple(sorted(set(placed.phase.freeze))),
        resets_optimizer=placed.resets_optimizer(step),
        skipped=step in recipe.skip_steps,
        rows=recipe.rows,
        splits_fused=fingerprint.fused and recipe.optimizer.splits_fused,
    )


class Lineage:
    """Identities of the states that a recipe reaches on given data."""

    def __init__(self, recipe: Recipe, fingerprint: DataFingerprint) -> None:
        """Check the recipe and prepare its expansion."""
        recipe.check()
        self.recipe, self.fingerprint = recipe, fingerprint

    @cached_property
    def identities(self) -> list[str]:
        """Identity after 0, 1, ... `total_steps` updates: 64 hexadecimal digits each."""
        current = hashlib.sha256(canonical_json(self._root()).encode()).hexdigest()
        chain = [current]
        for spec in self.steps():
            link = current + canonical_json(spec.determinants())
            current = hashlib.sha256(link.encode()).hexdigest()
            chain.append(current)
        return chain

    def steps(self) -> Iterator[StepSpec]:
        """Expand the recipe, update by update."""
        for placed in self.recipe.placed_phases:
            for step in range(placed.start, placed.end):
                yield step_spec(placed, step, self.recipe, self.fingerprint)

    def _root(self) -> dict[str, Any]:
        """Return what determines the state before the first update."""
        shared = {
            "numerics_version": NUMERICS_VERSION,
            "vocab_size": self.fingerprint.vocab_size,
            "tokenizer_sha256": self.fingerprint.tokenizer_sha256,
            "init_seed": self.recipe.seeds.init_seed,
        }
        architecture = self.recipe.architecture
        if architecture is None:
            return {**shared, "pretrained": self.fingerprint.pretrained}
        return {
            **shared,
            "family": "eurobert",
            "architecture": architecture.model_dump(),
            "max_position_embeddings": self.recipe.max_seqlen,
        }
