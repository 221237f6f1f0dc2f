"""Masked language modelling: hide tokens, predict them from both sides.

Reference: Devlin et al. 2019, arXiv:1810.04805, section 3.1. The study (arXiv 2507.00994) selects
each token independently and replaces all of the selected by the mask token; Devlin's 80/10/10 is
`replacement: bert`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from biphasic.config import Config
from biphasic.data.rows import NUM_SPECIAL, RowBatch
from biphasic.errors import DataError
from biphasic.objectives.supervision import Supervision, Vocabulary
from biphasic.seeds import stream, uniforms

_HIDDEN, _RANDOMISED = 0.8, 0.9  # Devlin: 80 % hidden, 10 % randomised, 10 % kept


class MlmPhase(Config):
    """Steps of masked language modelling."""

    objective: Literal["mlm"]
    steps: PositiveInt
    """Optimizer steps."""
    mlm_probability: Annotated[float, Field(gt=0, le=1)] = 0.4
    """Chance that a token is selected."""
    replacement: Literal["mask", "bert"] = "mask"
    """`mask` hides every selected token; `bert` hides 80 %, randomises 10 % and keeps 10 %."""

    causal: ClassVar[bool] = False

    def determinants(self, mask_seed: int) -> dict[str, Any]:
        """Return all that decides inputs and labels, given the rows."""
        return {
            "name": "mlm",
            "mlm_probability": self.mlm_probability,
            "replacement": self.replacement,
            "mask_seed": mask_seed,
        }

    def supervise(self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int) -> Supervision:
        """Select tokens to predict and hide them.

        The selection is a pure function of `mask_seed` and each token's epoch, document and
        chunk: neither the row nor the step in which a chunk appears changes it. Special tokens
        are never selected.

        Raises:
            DataError: No token of the batch was selected, so there is nothing to learn from.
        """
        flat = batch.packed.input_ids.reshape(-1).copy()
        selected = np.zeros(flat.size, dtype=bool)
        for (start, end), piece in zip(batch.packed.spans.tolist(), batch.pieces, strict=True):
            bits = stream("mask", mask_seed, piece.epoch, piece.document, piece.start)
            draws = uniforms(bits, end - start - NUM_SPECIAL)
            selected[start + 1 : end - 1] = draws < self.mlm_probability
        positions = np.flatnonzero(selected)
        if not len(positions):
            raise DataError(
                f"no token of a batch of {batch.packed.num_tokens} was masked at mlm_probability "
                f"{self.mlm_probability}; use larger batches or a higher rate"
            )
        labels = flat[positions]
        if self.replacement == "mask":
            flat[positions] = vocabulary.mask_id
        else:
            _replace_as_bert(flat, selected, batch, mask_seed, vocabulary)
        return Supervision(
            input_ids=flat.reshape(batch.packed.input_ids.shape), positions=positions, labels=labels
        )


def _replace_as_bert(
    flat: NDArray[np.int64],
    selected: NDArray[np.bool_],
    batch: RowBatch,
    mask_seed: int,
    vocabulary: Vocabulary,
) -> None:
    """Hide, randomise or keep each selected token, in place."""
    candidates = np.setdiff1d(np.arange(vocabulary.size), sorted(vocabulary.special_ids))
    for (start, end), piece in zip(batch.packed.spans.tolist(), batch.pieces, strict=True):
        bits = stream("replacement", mask_seed, piece.epoch, piece.document, piece.start)
        fate, draw = uniforms(bits, 2 * (end - start)).reshape(2, -1)
        tokens, chosen = flat[start:end], selected[start:end]
        randomised = chosen & (fate >= _HIDDEN) & (fate < _RANDOMISED)
        tokens[chosen & (fate < _HIDDEN)] = vocabulary.mask_id
        tokens[randomised] = candidates[(draw[randomised] * len(candidates)).astype(np.int64)]
