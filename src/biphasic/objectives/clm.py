"""Causal language modelling: predict each token from those before it.

Reference: Radford et al. 2018, "Improving language understanding by generative pre-training",
section 3.1; in the study, arXiv 2507.00994, section 2.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from biphasic.data.rows import RowBatch
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.supervision import Supervision, Vocabulary


class Clm(ObjectiveConfig):
    """Causal language modelling."""

    objective: Literal["clm"]  # type: ignore[assignment]

    @property
    def directions(self) -> frozenset[bool]:
        """Causal alone."""
        return frozenset({True})

    @property
    def heldout_weights(self) -> dict[str, float]:
        """The held-out loss of CLM."""
        return {self.objective: 1.0}

    @property
    def predicts_specials(self) -> bool:
        """EOS is predicted."""
        return True

    def determinants(self, mask_seed: int) -> dict[str, Any]:
        """Return everything that determines inputs and labels, given the rows."""
        # Nothing is masked, so arms with other masks share these steps.
        return {"name": "clm"}

    def supervise(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        """Label every token except the last of a sequence with the next token."""
        # EOS is predicted, the BOS that begins a sequence never is.
        rows = batch.packed
        has_next = batch.is_token
        has_next[rows.spans[:, 1] - 1] = False
        positions = np.flatnonzero(has_next)
        labels = rows.input_ids.reshape(-1)[positions + 1]
        return (Supervision(rows=rows, positions=positions, labels=labels, causal=True),)
