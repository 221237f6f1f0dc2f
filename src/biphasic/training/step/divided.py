"""Weights that several ranks train together, by PyTorch's FSDP2 (`fully_shard`).

Each rank holds its part of every parameter in fp32, or with `shard: none` all of it. The parameters
of a layer are gathered, in the compute precision, when the layer runs. Gradients are summed over
ranks in fp32. AdamW then updates each part alone, as it treats every number alone. An optimizer of
whole matrices sends each one to a rank and takes its parts back (`DividedWeights.on_whole`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from biphasic.distributed import connecting
from biphasic.errors import ConfigError
from biphasic.model.compute.forward import activation_dtype
from biphasic.model.compute.layers import transformer_layers
from biphasic.training.compute import ComputeConfig
from biphasic.training.step.input import Pass, pass_loss
from biphasic.training.step.weights import MasterWeights


class DividedModel(nn.Module):
    """Computes the loss of a pass with the parameters of all ranks."""

    # FSDP gathers the parameters outside of layers, such as embeddings and head, for this module's
    # forward.

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model, self._dtype = model, activation_dtype(model)

    def forward(self, given: Pass) -> Tensor:
        """Return the summed loss of a pass, as `pass_loss` does."""
        return pass_loss(self.model, given, dtype=self._dtype)

    def is_last_pass(self, is_last: bool) -> None:
        """Sum copies of the gradients only after the last pass of a step; parts after each."""
        cast(FSDPModule, self).set_requires_all_reduce(is_last)

    def settle(self) -> None:
        """Free what a forward pass without a backward pass has gathered."""
        cast(FSDPModule, self).reshard()


class DividedWeights(MasterWeights):
    """A rank's parts of all parameters; the parts are the masters."""

    def __init__(self, model: DividedModel) -> None:
        """Take the parts of a model that `divide` has returned."""
        working = dict(model.model.named_parameters())
        parts = {name: _part(each.detach()) for name, each in working.items()}
        super().__init__(working, parts, model.model.config)
        first = cast(DTensor, next(iter(working.values())))
        self._mesh, self._placements = first.device_mesh, first.placements
        self._host_mesh = self._mesh
        with connecting():
            if self._mesh.device_type != "cpu":
                self._host_mesh = init_device_mesh(
                    "cpu", self._mesh.shape, mesh_dim_names=self._mesh.mesh_dim_names
                )
            self.writers = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))
            """All ranks, for a checkpoint that is written in a thread while training goes on."""
        self._group = self._mesh.get_group("shard")
        self._copies = self._mesh.get_group("replicate") if self._mesh.ndim > 1 else None
        self._host_group = self._host_mesh.get_group("shard")

    def publish(self) -> None:
        """Do nothing: parts are rounded when they are gathered."""

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Return the norm of the whole gradient: the same bits on every rank."""
        # Each rank has the squares of its own part; a root of a sum is no sum of roots.
        square = super().norm(gradients).square()
        dist.all_reduce(square, group=self._group)
        return square.sqrt()

    def norms(self) -> dict[str, float]:
        """Return the norm of each whole gradient, by name."""
        own = super().norms()
        squares = torch.tensor([norm**2 for norm in own.values()], dtype=torch.float64)
        dist.all_reduce(squares, group=self._host_group)
        return dict(zip(own, squares.sqrt().tolist(), strict=True))

    def checksum(self) -> int:
        """Return the checksum of the whole weights, from all parts of this rank's copy."""
        # The checksum of a whole is the sum of those of its parts, in any order.
        total = torch.tensor(super().checksum())
        dist.all_reduce(total, group=self._host_group)
        return int(total) % (1 << 63)

    def part(self, whole: Tensor) -> Tensor:
        """Return this rank's part of a tensor shaped like a parameter; scalars are not divided."""
        if whole.ndim == 0:
            return whole
        rank, parts = dist.get_rank(self._group), whole.chunk(dist.get_world_size(self._group))
        return (parts[rank] if rank < len(parts) else whole[:0]).clone()

    @property
    def num_processes(self) -> int:
        """All ranks."""
        return self._mesh.size()

    def on_whole(self, function: Callable[[list[Tensor]], None], parts: dict[str, Tensor]) -> None:
        """Change tensors; each is gathered on one rank, changed there, and divided again."""
        shape = self.working[next(iter(parts))].shape
        change_whole(function, [*parts.values()], shape, shards=self._group, copies=self._copies)

    def host_copies(self, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors that all ranks' parts make up, as DTensors of copies on the host."""
        copies = super().host_copies(parts)
        return {name: self._joined(name, part, self._host_mesh) for name, part in copies.items()}

    def whole(self, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return whole tensors on the first rank's host; nothing on others."""
        found: dict[str, Tensor] = {}
        for name, part in parts.items():
            joined = self._joined(name, part.detach(), self._mesh)
            tensor = joined.full_tensor() if isinstance(joined, DTensor) else joined
            if dist.get_rank() == 0:
                found[name] = tensor.to("cpu")
        return found

    def _own(self, gradient: Tensor) -> Tensor:
        return _part(gradient)

    def _joined(self, name: str, part: Tensor, mesh: DeviceMesh) -> Tensor:
        if part.ndim == 0:  # AdamW's count of steps
            return part
        parameter = self.working[name if name in self.working else name.rpartition(".")[0]]
        shape, stride = parameter.shape, parameter.stride()
        return DTensor.from_local(
            part, mesh, self._placements, run_check=False, shape=shape, stride=stride
        )


def divide(model: PreTrainedModel, weights: MasterWeights, compute: ComputeConfig) -> DividedModel:
    """Divide a model over the process group, in place; all ranks hold the same whole weights."""
    # Results are those of one process, except for the rounding of sums taken in another order.
    # `weights` are those of `set_precision`; the model keeps its compute precision.
    root = DividedModel(model)
    full = MixedPrecisionPolicy(cast_forward_inputs=False)
    half = full
    if activation_dtype(model) != torch.float32:
        half = MixedPrecisionPolicy(
            activation_dtype(model), torch.float32, cast_forward_inputs=False
        )
    # FSDP divides the masters in fp32 and rounds what it gathers; the policy says to what.
    for name, parameter in weights.working.items():
        parameter.data = weights.masters[name].detach()
    mesh = _mesh(compute, model.device.type)
    for _, layer in transformer_layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=half)
    if half is not full:
        for module in _others_in_half_precision(model):
            fully_shard(module, mesh=mesh, mp_policy=half)
    fully_shard(root, mesh=mesh, mp_policy=full)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            # Losses are divided once, by the labels of all ranks. With another factor than the
            # number of ranks, only forced sums are exact.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return root


def _others_in_half_precision(model: PreTrainedModel) -> Iterable[nn.Module]:
    """Return the modules with parameters of their own outside of layers, children first."""
    # Not those of the embeddings and of the head: their parameters are rounded where they are used.
    kept_modules = [
        model.get_input_embeddings(),
        model.get_output_embeddings(),
        *(layer for _, layer in transformer_layers(model)),
    ]
    kept = {id(parameter) for module in kept_modules for parameter in module.parameters()}
    for module in reversed(list(model.modules())):
        own = list(module.parameters(recurse=False))
        if own and kept.isdisjoint(map(id, own)):
            yield module


def _mesh(compute: ComputeConfig, device_type: str) -> DeviceMesh:
    """Return the ranks in rows: each row holds one copy of the weights."""
    size = dist.get_world_size()
    if compute.shard == "full":
        with connecting():
            return init_device_mesh(device_type, (size,), mesh_dim_names=("shard",))
    per_copy = 1
    if compute.shard == "hybrid":
        per_copy = compute.shard_size or int(os.environ["LOCAL_WORLD_SIZE"])
    if size % per_copy:
        raise ConfigError(
            f"shard_size: {per_copy} processes do not divide the {size} of compute.processes; "
            "set a divisor"
        )
    shape = (size // per_copy, per_copy)
    with connecting():
        return init_device_mesh(device_type, shape, mesh_dim_names=("replicate", "shard"))


def _part(tensor: Tensor) -> Tensor:
    """Return a rank's own part of a divided tensor."""
    return cast(DTensor, tensor).to_local()


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
