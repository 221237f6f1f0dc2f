"""Compute settings of a step: processes, passes and compilation.

They are not part of a state's identity. They do not change losses and weights, except for the
rounding of sums taken in another order; a state records them with the hardware.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, Self

from pydantic import PositiveInt, model_validator

from biphasic.config import Config
from biphasic.errors import ConfigError
from biphasic.training.timeline import PlacedPhase

if TYPE_CHECKING:
    import torch

# Updates between two loss readings where waiting for the device would cost time.
READ_BACK_EVERY_ON_CUDA = 10
AHEAD_ON_CUDA = 2  # steps whose data are prepared while the device computes an earlier one


class ComputeConfig(Config):
    """How steps are computed, without effect on their results."""

    processes: PositiveInt = 1
    """Processes that train one model together, each on its own device or cores. Each reads a part
    of the rows of every step, and gradients are summed."""
    shard: Literal["none", "full", "hybrid"] = "none"
    """Whether each process holds all weights, gradients and moments (`none`), or a part, divided
    over all processes (`full`) or over those of one machine (`hybrid`). Parts take less memory and
    more communication. A single process always holds all."""
    shard_size: PositiveInt | None = None
    """With `hybrid`: processes that hold one copy together, instead of those of one machine."""
    max_tokens_per_pass: PositiveInt | None = None
    """Maximum tokens per forward and backward pass, including padding and per process. A larger
    step takes several passes, whose losses are summed and divided once. Set it if memory is
    insufficient; by default a step is one pass."""
    activation_checkpointing: bool = False
    """Whether layers recompute their activations in the backward pass instead of storing them:
    about a quarter more time, for memory that no longer grows with the activations inside layers.
    Exact."""
    compile: bool = False
    """Whether torch compiles the model's layers: minutes at the start, faster steps afterwards.
    Sums are taken in another order."""
    predicted_only: bool = True
    """Whether the MLP of EuroBERT's last layer reads only the tokens that a bidirectional phase
    predicts, since no other final state is used: 5 % less time at a masking rate of 40 % with four
    layers, and less memory. Rounding differs."""
    cpu_kernels: bool = True
    """Whether training on a CPU uses biphasic's own kernels: 1.03 to 1.2 times as fast with rows of
    256 tokens, and up to 2.2 times with long rows of several documents. Rounding differs. Compiled
    layers do not use them."""
    read_back_every: PositiveInt | None = None
    """Updates between two loss readings from the device; by default every update on a CPU, where
    reading costs nothing, and every tenth on CUDA. Losses are always read before saving."""

    @model_validator(mode="after")
    def _check_shards(self) -> Self:
        if self.shard_size is None:
            return self
        if self.shard != "hybrid":
            raise ValueError("shard_size is for shard: hybrid; remove it")
        if self.processes % self.shard_size:
            raise ValueError(
                f"shard_size: {self.shard_size} does not divide the {self.processes} processes"
            )
        return self

    @property
    def uses_cpu_kernels(self) -> bool:
        """Whether passes on a CPU use our kernels."""
        return self.cpu_kernels and not self.compile

    def rows_per_pass(self, row_length: int) -> int | None:
        """Return the maximum rows per pass; None for all."""
        if self.max_tokens_per_pass is None:
            return None
        if self.max_tokens_per_pass < row_length:
            raise ConfigError(
                f"max_tokens_per_pass: {self.max_tokens_per_pass} tokens are fewer than a row of "
                f"{row_length} (max_seqlen); set {row_length} or more"
            )
        return self.max_tokens_per_pass // row_length

    def check_rows(self, phases: Iterable[PlacedPhase]) -> None:
        """Raise an error if a step has fewer rows than processes, or longer ones than a pass."""
        for placed in phases:
            rows = placed.batches.rows_per_step
            self.rows_per_pass(placed.longest)  # held-out rows have the recipe's length
            if placed.phase.lora and self.processes > 1:
                raise ConfigError(
                    f"phases.{placed.index}.lora: one process trains it; omit compute.processes"
                )
            if rows < self.processes:
                raise ConfigError(
                    f"phases.{placed.index}.rows_per_step: {rows} are fewer than the "
                    f"{self.processes} processes that share them; set compute.processes to "
                    f"{rows} or less"
                )

    def reads_back_every(self, device: torch.device) -> int:
        """Return the number of updates between two loss readings on a device."""
        return self.read_back_every or (READ_BACK_EVERY_ON_CUDA if device.type == "cuda" else 1)


def steps_ahead(device: torch.device) -> int:
    """Return the number of steps whose data are prepared ahead while a device computes."""
    # Zero on a CPU, where the step and its data share the cores.
    return AHEAD_ON_CUDA if device.type == "cuda" else 0
