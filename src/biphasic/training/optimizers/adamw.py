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
    # 0.95 and 1e-5, not torch's 0.999 and 1e-8: the study's (arXiv:2507.00994).
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
            # Set before each step, from the schedule.
            lr=0.0,
            betas=(self.beta1, self.beta2),
            eps=self.epsilon,
            # Only the fused kernel takes `found_inf`, with which the device skips an update by
            # itself.
            fused=True,
        )
