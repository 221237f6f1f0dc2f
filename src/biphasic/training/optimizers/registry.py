"""The optimizers that recipes can use. Add new ones here."""

from __future__ import annotations

from biphasic.training.optimizers.adamw import AdamW
from biphasic.training.optimizers.optimizer import OptimizerConfig

OPTIMIZERS: tuple[type[OptimizerConfig], ...] = (AdamW,)
AnyOptimizer = AdamW
