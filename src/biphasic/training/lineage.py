"""Lineages: a recipe's expansion step by step, and the identities of its states.

The identity of the state after step *s* is the hash of the recipe's step-by-step expansion up to
*s*, not of the settings as written. Recipes that agree up to *s* share that state, whatever their
length, decay or later phases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from biphasic.data.corpus import Corpus
from biphasic.data.pairs import Pairs
from biphasic.data.rows import ROW_PLAN_VERSION, WINDOW_DOCUMENTS
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.files import canonical_json
from biphasic.model.loading.hub import LocalModel
from biphasic.objectives.supervision import Vocabulary
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
    """Content hashes of the corpora of single phases, by name, and of pairs, by folder."""
    fused: bool = False
    """Whether weights of the pretrained model hold several matrices (`model/shape.py`)."""

    def hash_of(self, corpus: str | None) -> str:
        """Return the content hash of a phase's corpus, by name; None means the run's own."""
        return self.corpus_hash if corpus is None else self.corpora[corpus]


def step_determinants(
    placed: PlacedPhase, step: int, recipe: Recipe, fingerprint: DataFingerprint
) -> dict[str, Any]:
    """Return everything that determines one update, given the state before it."""
    # Device, processes and passes are recorded beside a state, not hashed: they differ by rounding
    # alone, and a run may be resumed elsewhere.
    # What was added later is hashed only if it is not as it was before, which keeps old identities.
    added = {
        "rope_theta": placed.rope_theta,
        "lora": placed.phase.lora and placed.phase.lora.determinants(),
        "frozen": tuple(sorted(set(placed.phase.freeze))),
        # True before the first update of a phase only. Otherwise two phases with equal settings
        # would have the identity of one long phase, whose moments are not reset between them.
        "resets_optimizer": placed.resets_optimizer(step),
        "skipped": step in recipe.skip_steps,
        "rows": None if recipe.rows == "documents" else recipe.rows,
        # Only optimizers of matrices (Muon) treat a fused weight as several. Others train it as
        # before.
        "splits_fused": fingerprint.fused and recipe.optimizer.splits_fused,
    }
    return {
        "objective": placed.objective(step).identity(recipe.seeds.mask_seed),
        # Not the schedule: runs of other lengths share their states until their rates differ.
        "learning_rate": placed.learning_rate(step),
        "optimizer": recipe.optimizer.identity(),
        "precision": recipe.precision,
        # By content: equal text in another folder, or built elsewhere, gives equal states.
        "corpus_hash": fingerprint.hash_of(placed.corpus),
        "data_seed": recipe.seeds.data_seed,
        "rows_per_step": placed.batches.rows_per_step,
        "max_seqlen": placed.batches.max_seqlen,
        # Documents are ordered and packed window by window, so another size would give other rows.
        "window_documents": WINDOW_DOCUMENTS,
        "row_plan_version": ROW_PLAN_VERSION,
        **{name: value for name, value in added.items() if value},
    }


class Lineage:
    """Identities of the states that a recipe reaches on given data."""

    def __init__(self, recipe: Recipe, fingerprint: DataFingerprint) -> None:
        """Check the recipe and prepare its expansion."""
        recipe.check()
        recipe.check_beginning()
        self.recipe, self.fingerprint = recipe, fingerprint

    @cached_property
    def identities(self) -> list[str]:
        """Identity after 0, 1, ... `total_steps` updates: 64 hexadecimal digits each."""
        # The whole chain at once: plans look up states at any step, and 42,000 steps take 0.3 s.
        current = hashlib.sha256(canonical_json(self._root()).encode()).hexdigest()
        chain = [current]
        for update in self.updates():
            # With the link before: the same update after another past gives other weights.
            link = current + canonical_json(update)
            current = hashlib.sha256(link.encode()).hexdigest()
            chain.append(current)
        return chain

    def updates(self) -> Iterator[dict[str, Any]]:
        """Expand the recipe, update by update."""
        for placed in self.recipe.placed_phases:
            for step in range(placed.start, placed.end):
                yield step_determinants(placed, step, self.recipe, self.fingerprint)

    def _root(self) -> dict[str, Any]:
        """Return what determines the state before the first update."""
        shared = {
            # Once is enough: the chain carries it, like the whole root, to the identities of all
            # steps.
            "numerics_version": NUMERICS_VERSION,
            "vocab_size": self.fingerprint.vocab_size,
            "tokenizer_sha256": self.fingerprint.tokenizer_sha256,
            # A pretrained model needs it, too: LoRA draws its first numbers from this seed.
            "init_seed": self.recipe.seeds.init_seed,
        }
        architecture = self.recipe.architecture
        if architecture is None:
            # The hash of its files covers its configuration, too.
            return {**shared, "pretrained": self.fingerprint.pretrained}
        return {
            **shared,
            "family": "eurobert",
            "architecture": architecture.model_dump(),
            "max_position_embeddings": self.recipe.max_seqlen,
        }


@dataclass(frozen=True)
class TrainingData:
    """Everything outside a recipe that determines its states."""

    corpus: Corpus  # training text
    # Not in the fingerprint, as it changes no weight. States record its hash, and reports leave out
    # losses on another held-out text (docs/decisions/0009).
    heldout: Corpus
    tokenizer: TextTokenizer
    # The pretrained model that the recipe starts from; None for a new one.
    pretrained: LocalModel | None = None
    corpora: Mapping[str, Corpus] = field(default_factory=dict)  # text of single phases, by name
    # Pairs of texts that phases read, by folder.
    pairs: Mapping[Path, Pairs] = field(default_factory=dict)

    @property
    def fingerprint(self) -> DataFingerprint:
        """The fields that identities depend on."""
        return DataFingerprint(
            corpus_hash=self.corpus.content_hash,
            tokenizer_sha256=self.tokenizer.sha256,
            vocab_size=self.tokenizer.vocab_size,
            pretrained=self.pretrained.identity if self.pretrained else None,
            corpora={
                str(name): data.content_hash
                for name, data in (*self.corpora.items(), *self.pairs.items())
            },
            fused=self.pretrained is not None and self.pretrained.is_fused,
        )

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer's properties that objectives need."""
        return vocabulary_of(self.tokenizer)


def vocabulary_of(tokenizer: TextTokenizer) -> Vocabulary:
    """Return the properties of a tokenizer that objectives need."""
    special_ids = frozenset(tokenizer.special_ids.values())
    return Vocabulary(tokenizer.vocab_size, tokenizer.mask_id, special_ids, tokenizer)
