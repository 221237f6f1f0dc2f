"""How a step is computed: by how many processes, in how many passes, by which code.

Nothing here is part of what a state is. Losses and weights are the same whatever is set, up to the
rounding of sums that are taken in another order; so identities leave it out, and a state names it
beside the hardware.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import PositiveInt

from biphasic.config import Config
from biphasic.errors import ConfigError
from biphasic.training.timeline import PlacedPhase

if TYPE_CHECKING:
    import torch

READ_BACK_EVERY_ON_CUDA = 10
"""Updates between two readings of losses where waiting for the device would cost time."""
AHEAD_ON_CUDA = 2
"""Steps whose data are made ready while the device computes an earlier one."""


class ComputeConfig(Config):
    """How steps are computed; what they compute does not depend on it."""

    processes: PositiveInt = 1
    """Processes that train one model together, each on a device or on cores of its own: every step
    each takes a part of the same rows, and gradients are summed."""
    max_tokens_per_pass: PositiveInt | None = None
    """Tokens that one forward and backward pass may hold, padding included; a step that reads more
    takes several passes, whose losses are summed and divided once. Set it where memory does not
    suffice; one pass when not given. Of several processes each holds as many."""
    activation_checkpointing: bool = False
    """Whether layers compute their activations a second time in the backward pass instead of
    keeping them: about a quarter more time, for memory that no longer grows with the activations
    inside of layers. Exact."""
    compile: bool = False
    """Whether the model's layers are compiled by torch: minutes at the start, faster steps after.
    Sums are taken in another order."""
    read_back_every: PositiveInt | None = None
    """Updates between two readings of losses from the device; when not given every update on a
    CPU, where it costs nothing, and every tenth on CUDA. Always read before anything is saved."""

    def rows_per_pass(self, row_length: int) -> int | None:
        """Return how many rows a pass may hold; None for all.

        Args:
            row_length: Capacity of a row in tokens.

        Raises:
            ConfigError: A pass cannot hold a single row.
        """
        if self.max_tokens_per_pass is None:
            return None
        if self.max_tokens_per_pass < row_length:
            raise ConfigError(
                f"max_tokens_per_pass: {self.max_tokens_per_pass} tokens are less than a row of "
                f"{row_length} (max_seqlen); set {row_length} or more"
            )
        return self.max_tokens_per_pass // row_length

    def check_rows(self, phases: Iterable[PlacedPhase]) -> None:
        """Refuse more processes than a step has rows.

        Raises:
            ConfigError: A phase has fewer; it is named.
        """
        for placed in phases:
            rows = placed.batches.rows_per_step
            if rows < self.processes:
                raise ConfigError(
                    f"phases.{placed.index}.rows_per_step: {rows} are fewer than the "
                    f"{self.processes} processes that are to share them; set compute.processes to "
                    f"{rows} or less"
                )

    def reads_back_every(self, device: torch.device) -> int:
        """Return the updates between two readings on a device."""
        return self.read_back_every or (READ_BACK_EVERY_ON_CUDA if device.type == "cuda" else 1)


def steps_ahead(device: torch.device) -> int:
    """Return for how many later steps data are made ready while a device computes.

    None on a CPU: there the step and its data share the cores.
    """
    return AHEAD_ON_CUDA if device.type == "cuda" else 0
