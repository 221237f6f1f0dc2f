"""fp32 master weights, and embedding tables reduced to a few tokens while only these are trained.

A step of AdamW takes as long for a row that no sequence reads as for any other, and the table is
often half of a small encoder: 11.7 of MiniLM's 22.6 million parameters. The gradient of an unread
row is zero, so its moments stay zero and only weight decay changes it. Training therefore uses a
table of the rows that it reads, and the others decay all at once afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PretrainedConfig

from biphasic.distributed import checksum
from biphasic.errors import ModelError
from biphasic.model.shape import fused_rows


class MasterWeights:
    """The optimized weights, and the working copies that a module computes with."""

    def __init__(
        self,
        working: dict[str, nn.Parameter],
        masters: dict[str, Tensor],
        config: PretrainedConfig | None = None,
    ) -> None:
        """Pair working parameters with their masters by name; a parameter may be its own master."""
        self.working, self.masters = working, masters
        rows = fused_rows(config) if config else {}
        modules = {name: name.removesuffix(".weight").rpartition(".")[2] for name in working}
        self.fused = {name: rows[module] for name, module in modules.items() if module in rows}
        """Rows of the matrices that one weight holds, in order (`fused_rows`)."""

    def gather_gradients(self) -> None:
        """Add the working gradients to the masters', in fp32, and clear them."""
        # Call it after every backward pass; several passes may form one global batch.
        for name, parameter in self.working.items():
            master = self.masters[name]
            if parameter.grad is None or master is parameter:
                continue
            gradient = self._own(parameter.grad)
            if master.grad is None:
                master.grad = gradient.float()
            else:
                master.grad += gradient
            parameter.grad = None

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Return the norm of the masters' gradients: a scalar on the device."""
        return torch.nn.utils.get_total_norm(gradients)

    def norms(self) -> dict[str, float]:
        """Return the norm of each master's gradient, by name, for those that have one."""
        return {
            name: float(torch.linalg.vector_norm(master.grad))
            for name, master in self.masters.items()
            if master.grad is not None
        }

    def forget_gradients(self) -> None:
        """Clear the masters' gradients."""
        for master in self.masters.values():
            master.grad = None

    def whole(self, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors, named as weights or moments `WEIGHT.NAME`, of the whole model."""
        return parts

    def host_copies(self, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return copies of such tensors in the memory of the host."""
        return {name: part.detach().to("cpu", copy=True) for name, part in parts.items()}

    def part(self, whole: Tensor) -> Tensor:
        """Return the part of a tensor shaped like a parameter that this process holds."""
        return whole

    @property
    def num_processes(self) -> int:
        """Processes that `on_whole` divides tensors over."""
        return 1

    def on_whole(self, function: Callable[[list[Tensor]], None], parts: dict[str, Tensor]) -> None:
        """Change tensors of one shape, by the name of the parameter that each is shaped like."""
        # `function` changes whole tensors in place. Each is passed to it on one process only. All
        # processes call this with parts of the same tensors.
        function([*parts.values()])

    def checksum(self) -> int:
        """Return a number of 63 bits that follows from the bits of all weights, in any order."""
        return checksum(self.masters.values())

    def _own(self, gradient: Tensor) -> Tensor:
        """Return the part of a working parameter's gradient that belongs to its master."""
        return gradient

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the working copies."""
        for name, parameter in self.working.items():
            if self.masters[name] is not parameter and parameter.requires_grad:  # others are equal
                parameter.copy_(self.masters[name])


@dataclass
class ShortTable:
    """A model's weights, with an embedding table of only some tokens' rows."""

    weights: MasterWeights  # the weights to train
    # Factor that weight decay applies to the other rows; set before the table is restored.
    decay: float = 1.0
    was_read: bool = False  # whether the model has looked up any embedding


@contextmanager
def short_table(
    embedding: nn.Embedding, weights: MasterWeights, token_ids: NDArray[np.int64]
) -> Iterator[ShortTable]:
    """Reduce an embedding to the rows of some tokens; other tokens cannot be read."""
    # The layer's weight must be its own fp32 master. `token_ids` are distinct, int64 [num_tokens];
    # a padding token is added.
    table, padding_idx = embedding.weight, embedding.padding_idx
    if padding_idx is not None:
        token_ids = np.union1d(token_ids, padding_idx)
    rows = torch.from_numpy(token_ids).to(table.device)
    places = torch.full((len(table),), -1, device=table.device)
    places[rows] = torch.arange(len(rows), device=table.device)
    short = nn.Parameter(table.detach()[rows])
    replaced = {name: short for name, weight in weights.working.items() if weight is table}
    kept = ShortTable(
        MasterWeights({**weights.working, **replaced}, {**weights.masters, **replaced})
    )

    def look_up(_module: nn.Module, inputs: tuple[Tensor]) -> Tensor:
        kept.was_read = True
        return places[inputs[0]]

    hook = embedding.register_forward_pre_hook(look_up)
    embedding.weight = short
    if padding_idx is not None:
        embedding.padding_idx = int(places[padding_idx])
    try:
        yield kept
    finally:
        hook.remove()
        embedding.weight, embedding.padding_idx = table, padding_idx
        with torch.no_grad():
            table.mul_(kept.decay)
            table[rows] = short
    if not kept.was_read:
        raise ModelError("the model does not read its embeddings through their layer")
