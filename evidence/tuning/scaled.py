"""AdamW with a lower rate for matrices of wide models (docs/tune.md).

Reference: Kalra and Barkeshli 2026, arXiv:2605.21486.
"""

import torch

from biphasic.training.optimizers.adamw import AdamW

BASE_WIDTH = 64


class Scaled(AdamW):
    """Matrices in the layers and the head train at 64 / width of the peak rate."""

    name: str

    def build(self, weights, *, layer_matrices):
        """Return AdamW of groups with their own rates."""
        del layer_matrices  # the head is scaled, too
        (embeddings,) = (name for name in weights.masters if "embed" in name)
        width = weights.working[embeddings].shape[1]
        groups = {}
        for name, weight in weights.masters.items():
            is_scaled = weight.ndim > 1 and name != embeddings
            settings = {
                "factor": BASE_WIDTH / width if is_scaled else 1.0,
                "weight_decay": self.weight_decay if weight.ndim > 1 else 0.0,
            }
            group = groups.setdefault(tuple(settings.values()), {"params": [], **settings})
            group["params"].append(weight)
        betas = self.beta1, self.beta2
        return [Steps([*groups.values()], lr=0.0, betas=betas, eps=self.epsilon, fused=True)]


class Steps(torch.optim.AdamW):
    """AdamW with a factor of the rate for each group."""

    def step(self, closure=None):
        """Scale the rate of the step, and update."""
        for group in self.param_groups:
            group["lr"] *= group["factor"]
        super().step(closure)
