"""Recipes: all that determines the weights, and their expansion step by step.

The identity of the state after step *s* is the hash of its step-by-step expansion up to *s*, never
of the settings as written: recipes that agree up to *s* share that state, whatever their length,
decay or later phases.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from biphasic.config import Config
from biphasic.data.rows import ROW_PLAN_VERSION, WINDOW_DOCUMENTS, Leg
from biphasic.files import canonical_json
from biphasic.model.presets import PRESETS, Architecture, PresetName
from biphasic.objectives.phases import Phase
from biphasic.training.lr import LearningRateConfig, check_learning_rate, learning_rate

NUMERICS_VERSION = 2
"""Stands for our code: raised by hand whenever the same recipe would give other weights."""


class OptimizerConfig(Config):
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101), with the study's constants."""

    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the second moment."""
    epsilon: PositiveFloat = 1e-5
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled decay of matrices and embeddings; norms and biases are not decayed."""
    clip_norm: PositiveFloat = 1.0
    """Largest norm of the gradient."""

    def determinants(self) -> dict[str, Any]:
        """Return what is hashed: spelled out, so that a new default changes no identity."""
        return {
            "name": "adamw",
            "beta1": self.beta1,
            "beta2": self.beta2,
            "epsilon": self.epsilon,
            "weight_decay": self.weight_decay,
            "clip_norm": self.clip_norm,
        }


class Seeds(Config):
    """One seed per stream of random numbers."""

    init_seed: NonNegativeInt = 0
    """Initial weights."""
    data_seed: NonNegativeInt = 0
    """Order of documents and rows."""
    mask_seed: NonNegativeInt = 0
    """Which tokens are masked."""


class Recipe(Config):
    """One training run from random weights."""

    model: PresetName | Architecture
    """A preset's name, or dimensions."""
    phases: tuple[Phase, ...] = ()
    """Objectives in order; none leaves the model untrained."""
    learning_rate: LearningRateConfig
    """Schedule over all phases together."""
    max_seqlen: PositiveInt = 256
    """Capacity of a row, and longest sequence of the model, in tokens."""
    rows_per_step: PositiveInt = 8
    """Rows of the global batch."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW's constants."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """Of the computation; weights are kept in fp32 either way."""
    seeds: Seeds = Seeds()
    """One per stream."""

    @property
    def architecture(self) -> Architecture:
        """Dimensions of the model."""
        return PRESETS[self.model] if isinstance(self.model, str) else self.model

    @property
    def total_steps(self) -> int:
        """Optimizer steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def legs(self) -> list[Leg]:
        """Shape of the rows, step by step."""
        return [Leg(self.max_seqlen, self.rows_per_step, phase.steps) for phase in self.phases]

    def phase_at(self, step: int) -> tuple[int, Phase]:
        """Return the number of the phase that update `step` belongs to, and the phase."""
        for index, phase in enumerate(self.phases):
            if step < phase.steps:
                return index, phase
            step -= phase.steps
        raise IndexError(f"step is {step} beyond the last phase")


@dataclass(frozen=True)
class Ground:
    """The data a recipe stands on: content hashes, and what the model must know of them."""

    corpus_hash: str
    tokenizer_sha256: str
    vocab_size: int


@dataclass(frozen=True)
class StepSpec:
    """All that determines one update, given the state before it.

    Fields without a default are always hashed. A field that is added later must have a default
    that means "as before"; it is hashed only where it differs, so old identities stay.
    """

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

    def determinants(self) -> dict[str, Any]:
        """Return what is hashed."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.default is dataclasses.MISSING or getattr(self, field.name) != field.default
        }


class Lineage:
    """Identities of the states that a recipe passes through on given data."""

    def __init__(self, recipe: Recipe, ground: Ground) -> None:
        """Check the recipe and prepare its expansion.

        Raises:
            ConfigError: The schedule does not fit the run.
        """
        if recipe.phases:
            check_learning_rate(recipe.learning_rate, total_steps=recipe.total_steps)
        self.recipe, self.ground = recipe, ground

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
        recipe = self.recipe
        optimizer = recipe.optimizer.determinants()
        step = 0
        for phase in recipe.phases:
            objective = phase.determinants(recipe.seeds.mask_seed)
            for _ in range(phase.steps):
                yield StepSpec(
                    objective=objective,
                    learning_rate=learning_rate(
                        recipe.learning_rate, step, total_steps=recipe.total_steps
                    ),
                    optimizer=optimizer,
                    precision=recipe.precision,
                    corpus_hash=self.ground.corpus_hash,
                    data_seed=recipe.seeds.data_seed,
                    rows_per_step=recipe.rows_per_step,
                    max_seqlen=recipe.max_seqlen,
                    window_documents=WINDOW_DOCUMENTS,
                    row_plan_version=ROW_PLAN_VERSION,
                )
                step += 1

    def _root(self) -> dict[str, Any]:
        """Return what determines the state before the first update."""
        return {
            "numerics_version": NUMERICS_VERSION,
            "family": "eurobert",
            "architecture": self.recipe.architecture.model_dump(),
            "vocab_size": self.ground.vocab_size,
            "max_position_embeddings": self.recipe.max_seqlen,
            "tokenizer_sha256": self.ground.tokenizer_sha256,
            "init_seed": self.recipe.seeds.init_seed,
        }
