"""Learning-rate schedules: warmup, constant, linear decay.

Reference: Hu et al. 2024, arXiv:2404.06395, section 4 (warmup-stable-decay); the study's decay is
linear (arXiv 2507.00994, section 2).
"""

from __future__ import annotations

from pydantic import NonNegativeInt, PositiveFloat

from biphasic.config import Config
from biphasic.errors import ConfigError


class LearningRateConfig(Config):
    """Warmup-stable-decay."""

    peak: PositiveFloat
    """Learning rate after warmup."""
    warmup_steps: NonNegativeInt = 0
    """Linear warmup, in optimizer steps."""
    decay_steps: NonNegativeInt = 0
    """Final linear decay to zero, in optimizer steps."""


def learning_rate(config: LearningRateConfig, step: int, *, total_steps: int) -> float:
    """Return the rate of update `step`, counted from 0."""
    # Warmup reaches the peak at its last step; decay would reach zero one step after the last.
    if step < config.warmup_steps:
        return config.peak * (step + 1) / config.warmup_steps
    left = total_steps - step
    if left <= config.decay_steps:
        return config.peak * left / (config.decay_steps + 1)
    return config.peak


def check_learning_rate(config: LearningRateConfig, *, total_steps: int) -> None:
    """Raise an error for a schedule that does not fit."""
    if config.warmup_steps + config.decay_steps > total_steps:
        raise ConfigError(
            f"learning_rate: warmup_steps {config.warmup_steps} + decay_steps "
            f"{config.decay_steps} exceed the {total_steps} steps; shorten one of them"
        )
