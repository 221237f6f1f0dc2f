"""Masked diffusion: hide a random share of a sequence, from none to all of it, and predict it.

The share t of hidden tokens is drawn uniformly per sequence, and each label has the weight 1 / t.
The loss, divided by the number of all tokens of the texts, is in expectation an upper bound on
their negative log-likelihood in nats per token.

References: Sahoo et al. 2024 (MDLM), arXiv:2406.07524, section 3.2; Nie et al. 2025 (LLaDA),
arXiv:2502.09992, section 2.1; beside causal language modelling: Samuel and Charpentier 2025,
arXiv:2512.14549.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from biphasic.data.rows import RowBatch
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.supervision import Supervision, Vocabulary
from biphasic.seeds import stream, uniforms


class Diffusion(ObjectiveConfig):
    """Masked diffusion."""

    objective: Literal["diffusion"]  # type: ignore[assignment]
    least_rate: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    """Smallest share of hidden tokens; the largest is 1. It limits the weights."""

    @property
    def directions(self) -> frozenset[bool]:
        """Bidirectional only."""
        return frozenset({False})

    @property
    def label_share(self) -> float:
        """Half of the tokens are hidden, on average."""
        return (1 + self.least_rate) / 2

    @property
    def heldout_weights(self) -> dict[str, float]:
        """The bound alone."""
        return {"diffusion": 1.0}

    @property
    def heldout_measures(self) -> dict[str, tuple[ObjectiveConfig, int]]:
        """The bound; weights of 1 / t make it vary, so it is averaged."""
        return {"diffusion": (Diffusion(objective="diffusion"), 4)}

    def supervise(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        """Hide tokens; each is predicted at its own position, with the weight of its sequence.

        Rates and selection are a pure function of `mask_seed` and each sequence's first document.
        At one rate, MLM hides the same tokens.
        """
        pieces = zip(batch.texts.tolist(), batch.pieces, self._rates(batch, mask_seed), strict=True)
        is_hidden = np.zeros(batch.packed.input_ids.size, dtype=bool)
        weights = np.zeros(is_hidden.size, dtype=np.float32)
        for (start, end), piece, rate in pieces:
            bits = stream("mask", mask_seed, piece.epoch, piece.document, piece.start)
            is_hidden[start:end] = uniforms(bits, end - start) < rate
            weights[start:end] = 1 / rate
        positions = np.flatnonzero(is_hidden)
        shown = batch.packed.input_ids.copy()
        shown.reshape(-1)[positions] = vocabulary.mask_id
        supervision = Supervision(
            rows=replace(batch.packed, input_ids=shown),
            positions=positions,
            labels=batch.packed.input_ids.reshape(-1)[positions],
            causal=False,
            weights=weights[positions],
            num_predicted=int((batch.texts[:, 1] - batch.texts[:, 0]).sum()),
        )
        return (supervision,)

    def _rates(self, batch: RowBatch, mask_seed: int) -> list[float]:
        """Return the share of hidden tokens of each piece: that of its sequence."""
        starts = np.sort(batch.packed.spans[:, 0])
        sequences = np.searchsorted(starts, batch.texts[:, 0], side="right")
        first = dict(zip(sequences[::-1].tolist(), batch.pieces[::-1], strict=True))
        rates: dict[int, float] = {}
        for sequence, piece in first.items():
            bits = stream("diffusion", mask_seed, piece.epoch, piece.document, piece.start)
            draw = float(uniforms(bits, 1)[0])
            rates[sequence] = self.least_rate + (1 - self.least_rate) * draw
        return [rates[sequence] for sequence in sequences.tolist()]
