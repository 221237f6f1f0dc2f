"""Masking shared by several objectives: rate, selection and replacement.

References: the study (arXiv 2507.00994, section 2) selects single tokens and hides them all. A
linearly changing rate: Ankner et al. 2023, arXiv:2305.15096, section 2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field

from biphasic.data.rows import RowBatch
from biphasic.errors import DataError
from biphasic.objectives.masking.replacement import (
    Replacement,
    replace_selected,
    replacement_identity,
    shares_of,
)
from biphasic.objectives.masking.selection import Selection, SpanConfig, select
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.supervision import Supervision, Vocabulary

Probability = Annotated[float, Field(gt=0, le=1)]


class MaskingConfig(ObjectiveConfig):
    """Settings of masking objectives."""

    mlm_probability: Probability = 0.4
    """Probability that a token is selected."""
    final_mlm_probability: Probability | None = None
    """Probability at the last step of the phase; it changes linearly from `mlm_probability` at the
    first step. By default it is constant."""
    selection: Selection = "token"
    """Unit of selection: `token`, `word`, or `span` (several words; geometric length)."""
    replacement: Replacement = "mask"
    """`mask` hides every selected token; `bert` hides 80 %, randomizes 10 % and keeps 10 %; or
    custom shares of the three."""

    @property
    def directions(self) -> frozenset[bool]:
        """Bidirectional only."""
        return frozenset({False})

    def at(self, step: int, *, num_steps: int) -> Self:
        """Return the objective with the rate at one step of a phase."""
        if self.final_mlm_probability is None:
            return self
        passed = step / (num_steps - 1) if num_steps > 1 else 0.0
        rate = (1 - passed) * self.mlm_probability + passed * self.final_mlm_probability
        return self.model_copy(update={"mlm_probability": rate, "final_mlm_probability": None})

    def check_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Raise an error for whole words if the vocabulary does not mark word starts."""
        if self.selection != "token":
            _ = vocabulary.spellings

    def determinants(self, mask_seed: int) -> dict[str, Any]:
        """Return everything that determines inputs and labels, given the rows."""
        identity = {
            "name": self.objective,
            "mlm_probability": self._rate,
            "replacement": replacement_identity(self.replacement),
            "mask_seed": mask_seed,
        }
        if self.selection == "token":  # keeps identities from before the setting existed
            return identity
        spans = SpanConfig() if self.selection == "span" else self.selection
        named = spans.model_dump() if isinstance(spans, SpanConfig) else spans
        return {**identity, "selection": named}

    def mask(self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int) -> Supervision:
        """Select tokens to predict and hide them; each is labelled at its own position.

        Selection and replacement are a pure function of `mask_seed` and each token's epoch,
        document and chunk; they do not depend on the row or step in which a chunk appears. Special
        tokens are never selected.

        Raises:
            DataError: No token of the batch was selected, so there is nothing to learn from.
        """
        rate = self._rate
        selected = select(
            batch, vocabulary, self.selection, mlm_probability=rate, mask_seed=mask_seed
        )
        positions = np.flatnonzero(selected.is_selected)
        if not len(positions):
            raise DataError(
                f"no token of a batch of {batch.packed.num_tokens} was masked at mlm_probability "
                f"{rate}; use larger batches or a higher rate"
            )
        shares = shares_of(self.replacement)
        shown = replace_selected(batch, selected, vocabulary, shares, mask_seed=mask_seed)
        return Supervision(
            rows=replace(batch.packed, input_ids=shown),
            positions=positions,
            labels=batch.packed.input_ids.reshape(-1)[positions],
            causal=False,
        )

    @property
    def _rate(self) -> float:
        if self.final_mlm_probability is not None:
            raise RuntimeError("the rate depends on the step of the phase: call `at` first")
        return self.mlm_probability
