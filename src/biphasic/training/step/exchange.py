"""Tensors divided over ranks, each of them whole on one rank for a moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def change_whole(
    function: Callable[[list[Tensor]], None],
    parts: Sequence[Tensor],
    shape: torch.Size,
    *,
    shards: dist.ProcessGroup,
    copies: dist.ProcessGroup | None,
) -> None:
    """Let `function` change whole tensors of one shape in place, each on one rank."""
    # `parts` are this rank's rows of each tensor, as `torch.chunk` divides them over `shards`, and
    # `copies` are the ranks with the same rows. All ranks call it.
    num_shards = dist.get_world_size(shards)
    num_copies, copy = (
        (1, 0) if copies is None else (dist.get_world_size(copies), dist.get_rank(copies))
    )
    num_owned = -(-len(parts) // (num_copies * num_shards))  # the last ranks own fewer, or none
    length = -(-shape[0] // num_shards)  # the last ranks hold fewer rows, or none
    slots = parts[0].new_zeros(num_copies, num_shards, num_owned, length, *shape[1:])
    flat = slots.view(-1, length, *shape[1:])
    for slot, part in zip(flat, parts, strict=False):
        slot[: len(part)] = part
    whole = _exchanged(slots[copy], shards).transpose(0, 1).flatten(1, 2)  # (owned, rows, ...)
    first = (copy * num_shards + dist.get_rank(shards)) * num_owned
    function([tensor[: shape[0]] for tensor in whole[: max(0, len(parts) - first)]])
    slots[copy] = _exchanged(whole.unflatten(1, (num_shards, length)).transpose(0, 1), shards)
    if copies is not None:
        dist.all_gather([*slots], slots[copy].clone(), group=copies)
    for slot, part in zip(flat, parts, strict=False):
        part.copy_(slot[: len(part)])


def _exchanged(sent: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send `sent[rank]` to each rank, and return what each rank has sent to this one."""
    received = torch.empty_like(sent, memory_format=torch.contiguous_format)
    dist.all_to_all_single(received, sent.contiguous(), group=group)
    return received
