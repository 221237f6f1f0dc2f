"""Muon: steps of equal size in all directions that a matrix of weights can move.

Matrices in the layers are updated by their orthogonalized momentum, scaled so that its root mean
square is that of AdamW's steps; one learning rate then serves both. A weight that holds several
matrices, such as queries, keys and values, is split by the layout of its family
(`model/shape.py`). Embeddings, head, norms and biases are updated by AdamW.

References: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/; the scale is that of Liu
et al. 2025, "Muon is scalable for LLM training", section 2.2, arXiv:2502.16982.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from biphasic.errors import ConfigError
from biphasic.training.optimizers.adamw import AdamW

if TYPE_CHECKING:
    import torch

    from biphasic.training.step.weights import MasterWeights


class Muon(AdamW):
    """Muon for matrices in the layers; all other weights have AdamW with the settings below."""

    splits_fused = True
    # Required: without a name, settings are AdamW's.
    name: Literal["muon"]  # type: ignore[assignment]
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the momentum of matrices in the layers."""

    def determinants(self) -> dict[str, Any]:
        """Return what is hashed."""
        return {**super().determinants(), "momentum": self.momentum}

    def num_moments(self, *, is_layer_matrix: bool) -> int:
        """Return one for a matrix in a layer, two for other weights."""
        return 1 if is_layer_matrix else super().num_moments(is_layer_matrix=False)

    def build(
        self, weights: MasterWeights, *, layer_matrices: Collection[str]
    ) -> list[torch.optim.Optimizer]:
        """Return Muon's part and AdamW's."""
        from biphasic.training.optimizers.orthogonal import OrthogonalSteps  # noqa: PLC0415

        if not layer_matrices:
            raise ConfigError("optimizer: the model's layers have no matrices; set name: adamw")
        others = (m for name, m in weights.masters.items() if name not in layer_matrices)
        steps = OrthogonalSteps(
            weights, layer_matrices, momentum=self.momentum, weight_decay=self.weight_decay
        )
        return [steps, self.adamw(others)]
