"""The interface of optimizers; each is implemented in its own file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PositiveFloat

from biphasic.config import Config
from biphasic.data.text.source import with_contents
from biphasic.plugins import Plugin, code_of, short_name

if TYPE_CHECKING:  # plans read settings without torch
    import torch

    from biphasic.training.step.weights import MasterWeights


class OptimizerConfig(Config):
    """An optimizer of fp32 weights.

    `training/step/optimizer.py` does what all optimizers have in common: it clips gradients, sets
    the learning rate of a step, and saves and restores what an optimizer keeps for each weight.
    """

    plugin: ClassVar[Plugin | None] = None  # set by biphasic; None for our own
    splits_fused: ClassVar[bool] = False
    """Whether weights that hold several matrices (`weights.fused`) are updated by matrix."""
    name: str
    """Its name, or what names a plugin."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled decay of matrices and embeddings; norms and biases are not decayed."""
    max_gradient_norm: PositiveFloat | None = 1.0
    """Gradients with a larger norm are scaled down to it; none disables this."""

    @property
    def short_name(self) -> str:
        """Its name in tables: that of a plugin has no file and no hash."""
        return short_name(self.name)

    def determinants(self) -> dict[str, Any]:
        """Return what determines its updates: by default, all settings."""
        return {**self.model_dump(mode="json"), "name": self.short_name}

    def identity(self) -> dict[str, Any]:
        """Return what is hashed: the determinants, with contents of paths, and a plugin's code."""
        return {**with_contents(self.determinants(), self), **code_of(self)}

    @abstractmethod
    def num_moments(self, *, is_layer_matrix: bool) -> int:
        """Return how many numbers are kept for each number of a weight."""

    @abstractmethod
    def build(
        self, weights: MasterWeights, *, layer_matrices: Collection[str]
    ) -> list[torch.optim.Optimizer]:
        """Return optimizers that together update all masters, each one once.

        They use `group["lr"]`, the rate of the step, and `found_inf`, a scalar on the device: if it
        is 1, `step` changes nothing, although gradients may not be finite. What they keep for a
        weight is in `state[weight]`, by name: tensors of the weight's shape, or scalars.

        Args:
            weights: Weights by name. With `shard`, they are the parts that this process holds, and
                `weights.on_whole` applies a function to whole ones.
            layer_matrices: Names of the two-dimensional weights in the model's layers, without
                embeddings.

        Raises:
            ConfigError: It cannot train this model.
        """
