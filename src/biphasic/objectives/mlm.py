"""Masked language modelling: hide tokens, predict them from both sides.

Reference: Devlin et al. 2019, arXiv:1810.04805, section 3.1. The study (arXiv 2507.00994) selects
each token independently and replaces all selected tokens by the mask token; Devlin's 80/10/10 is
`replacement: bert`.
"""

from __future__ import annotations

from typing import Literal

from biphasic.data.rows import RowBatch
from biphasic.objectives.masking import MaskingConfig
from biphasic.objectives.supervision import Supervision, Vocabulary


class Mlm(MaskingConfig):
    """Masked language modelling."""

    objective: Literal["mlm"]  # type: ignore[assignment]

    @property
    def heldout_weights(self) -> dict[str, float]:
        """The held-out loss of MLM, which has a masking rate of its own."""
        return {self.objective: 1.0}

    def supervise(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        """Mask tokens; each is predicted at its own position."""
        return (self.mask(batch, vocabulary, mask_seed=mask_seed),)
