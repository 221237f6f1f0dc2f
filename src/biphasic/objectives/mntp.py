"""Masked next-token prediction: hide tokens, predict each from the position before it.

Reference: BehnamGhader et al. 2024 (LLM2Vec), arXiv:2404.05961, section 2.1. A decoder's state has
learned to predict the next token, and a decoder made bidirectional keeps doing so. They adapt with
20 % of tokens selected and `replacement: bert`, Mistral with 80 % and all of them hidden (their
released settings). The default rate here is the study's, so MLM and MNTP compare at one rate with
the same tokens hidden.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from biphasic.data.rows import RowBatch
from biphasic.objectives.masking import MaskingConfig
from biphasic.objectives.supervision import Supervision, Vocabulary


class Mntp(MaskingConfig):
    """Masked next-token prediction."""

    objective: Literal["mntp"]  # type: ignore[assignment]

    def supervise(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        """Mask tokens; each is predicted one position earlier, the first of a text at BOS."""
        masked = self.mask(batch, vocabulary, mask_seed=mask_seed)
        # A document's first token follows BOS. A sequence that begins within a document has no
        # position before its first token.
        has_before = ~np.isin(masked.positions, batch.packed.spans[:, 0])
        positions, labels = masked.positions[has_before] - 1, masked.labels[has_before]
        return (replace(masked, positions=positions, labels=labels),)
