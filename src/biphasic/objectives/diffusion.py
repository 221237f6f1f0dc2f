"""Masked diffusion: hide a random share of a sequence, from none to all of it, and predict it.

The share t of hidden tokens is drawn per sequence, and each label has the weight 1 / t. With
uniform shares, the loss, divided by the number of all tokens of the texts, is in expectation an
upper bound on their negative log-likelihood in nats per token. Bimodal shares train on easy and on
hard sequences and leave out those between; held-out losses are of uniform shares for both.

References: Sahoo et al. 2024 (MDLM), arXiv:2406.07524, section 3.2; Nie et al. 2025 (LLaDA),
arXiv:2502.09992, section 2.1; beside causal language modelling: Samuel and Charpentier 2025,
arXiv:2512.14549. Bimodal shares: Kosmopoulou et al. 2025, arXiv:2509.05056, whose right mode moves
up to the place that it has here, and whose weights differ from 1 / t by less than a third.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from biphasic.data.rows import RowBatch
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.supervision import Supervision, Vocabulary
from biphasic.seeds import stream, uniforms

_LEFT_SHARE = 0.6  # of sequences
_LEFT, _RIGHT = NormalDist(0.12, 0.02), NormalDist(0.85, 0.08)


class Diffusion(ObjectiveConfig):
    """Masked diffusion."""

    objective: Literal["diffusion"]  # type: ignore[assignment]
    least_rate: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    """Smallest share of hidden tokens; the largest is 1. It limits the weights."""
    rates: Literal["uniform", "bimodal"] = "uniform"
    """Shares: uniform, or bimodal: near 0.12 for 60 % of the sequences, near 0.85 for the rest."""

    @property
    def directions(self) -> frozenset[bool]:
        """Bidirectional only."""
        return frozenset({False})

    @property
    def label_share(self) -> float:
        """Half of the tokens are hidden, on average, or 41 % with bimodal shares."""
        if self.rates == "bimodal":
            return _LEFT_SHARE * _LEFT.mean + (1 - _LEFT_SHARE) * _RIGHT.mean
        return (1 + self.least_rate) / 2

    @property
    def heldout_weights(self) -> dict[str, float]:
        """The bound alone."""
        return {"diffusion": 1.0}

    @property
    def heldout_measures(self) -> dict[str, tuple[ObjectiveConfig, int]]:
        """The bound with uniform shares; weights of 1 / t make it vary, so it is averaged."""
        return {"diffusion": (Diffusion(objective="diffusion"), 4)}

    def determinants(self, mask_seed: int) -> dict[str, Any]:
        """Return everything that determines inputs, labels and weights, given the rows."""
        rates = {} if self.rates == "uniform" else {"rates": self.rates}
        return {"name": "diffusion", "least_rate": self.least_rate, "mask_seed": mask_seed, **rates}

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
            rates[sequence] = self._rate(*uniforms(bits, 2).tolist())
        return [rates[sequence] for sequence in sequences.tolist()]

    def _rate(self, draw: float, choice: float) -> float:
        """Return the share of hidden tokens for two uniform numbers from 0 to 1."""
        if self.rates == "uniform":
            return self.least_rate + (1 - self.least_rate) * draw
        mode = _LEFT if choice < _LEFT_SHARE else _RIGHT
        return min(max(mode.inv_cdf(max(draw, 1e-12)), self.least_rate), 1.0)
