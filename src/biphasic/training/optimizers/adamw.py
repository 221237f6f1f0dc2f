"""AdamW: steps scaled by the second moment of each weight's gradient.

Reference: Loshchilov and Hutter 2019, "Decoupled weight decay regularization", arXiv:1711.05101.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PositiveFloat

from biphasic.training.optimizers.optimizer import OptimizerConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from biphasic.training.step.weights import MasterWeights


class AdamW(OptimizerConfig):
    """AdamW, with the study's constants."""

    name: Literal["adamw"] = "adamw"  # type: ignore[assignment]
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the second moment."""
    epsilon: PositiveFloat = 1e-5
    """Added to the square root of the second moment."""

    def determinants(self) -> dict[str, Any]:
        """Return what is hashed."""
        return {
            "name": self.name,
            "beta1": self.beta1,
            "beta2": self.beta2,
            "epsilon": self.epsilon,
            "weight_decay": self.weight_decay,
            "clip_norm": self.max_gradient_norm,  # its name when the first states were made
        }

    def num_moments(self, *, is_layer_matrix: bool) -> int:
        """Return two, for every weight."""
        del is_layer_matrix
        return 2

    def build(
        self, weights: MasterWeights, *, layer_matrices: Collection[str]
    ) -> list[torch.optim.Optimizer]:
        """Return torch's fused AdamW."""
        del layer_matrices
        return [self.adamw(weights.masters.values())]

    def adamw(self, masters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """Return torch's fused AdamW of some weights."""
        from torch.optim import AdamW as TorchAdamW  # noqa: PLC0415

        masters = list(masters)
        groups = [
            {"params": [p for p in masters if p.ndim > 1], "weight_decay": self.weight_decay},
            {"params": [p for p in masters if p.ndim <= 1], "weight_decay": 0.0},
        ]
        return TorchAdamW(
            [group for group in groups if group["params"]],
            lr=0.0,
            betas=(self.beta1, self.beta2),
            eps=self.epsilon,
            fused=True,
        )
