"""Updates of fp32 master weights, by AdamW or another optimizer.

bf16 weights at 1e-5 barely change: an update below 2**-9 of a weight is rounded away. The model
therefore computes with working copies, and gradients are accumulated, clipped and applied in fp32.

The model's embeddings stay in fp32 as well: on a CPU their gradient is summed token by token in the
weight's own precision, and bf16 sums stall.

The reference study fine-tuned without master weights: weights, gradients and moments in bf16. That
is the precision `paper`, for fine-tuning only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from biphasic.errors import ConfigError, DivergedError
from biphasic.model.compute.layers import transformer_layers
from biphasic.training.optimizers.optimizer import OptimizerConfig
from biphasic.training.recipe import FinetunePrecision
from biphasic.training.step.weights import MasterWeights


class Optimizer:
    """Updates of all weights, with gradient clipping, by the optimizer that settings describe."""

    def __init__(
        self,
        weights: MasterWeights,
        settings: OptimizerConfig,
        *,
        layer_matrices: Collection[str] = (),
    ) -> None:
        """Start with empty moments."""
        self.weights, self._settings = weights, settings
        self.decay = 1.0
        """Factor that weight decay alone has applied to a matrix."""
        self._is_finite: Tensor | None = None
        self._parts = settings.build(weights, layer_matrices=layer_matrices)
        self._check_parts()

    def step(self, learning_rate: float) -> float:
        """Apply the accumulated gradients, clear them, and return their norm before clipping."""
        decay = self.decay
        norm = float(self.update(learning_rate))
        if not math.isfinite(norm):
            self.decay = decay
            raise DivergedError("the gradient is not finite; lower the learning rate")
        return norm

    def update(self, learning_rate: float, *, loss: Tensor | None = None) -> Tensor:
        """Do the same as `step` without waiting for the device; return the norm, which is on it."""
        # If the norm or the loss, a scalar on the device, is not finite, weights and moments are
        # unchanged, and later calls change nothing either: the caller may read the numbers back
        # later, and finds the last good weights.
        masters = [m for m in self.weights.masters.values() if m.grad is not None]
        gradients = [m.grad for m in masters if m.grad is not None]
        norm = self.weights.norm(gradients)
        if self._settings.max_gradient_norm is not None:
            most = self._settings.max_gradient_norm
            torch.nn.utils.clip_grads_with_norm_(masters, most, norm)
        is_finite = norm.isfinite() if loss is None else norm.isfinite() & loss.isfinite()
        self._is_finite = is_finite if self._is_finite is None else self._is_finite & is_finite
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = learning_rate
            # The switch of torch's fused kernels, made for gradient scalers: 1 skips the update.
            part.found_inf = (~self._is_finite).float()  # type: ignore[attr-defined]
            part.step()
            part.zero_grad(set_to_none=True)
        self.decay *= 1 - learning_rate * self._settings.weight_decay
        self.weights.publish()
        return norm

    def forget(self) -> None:
        """Reset the moments."""
        for part in self._parts:
            part.state.clear()

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the moments by name, for checkpoints."""
        tensors = {
            f"{name}.{key}": value
            for name, master in self.weights.masters.items()
            for part in self._parts
            for key, value in part.state.get(master, {}).items()
        }
        for name, value in tensors.items():
            if not isinstance(value, Tensor):
                raise self._error(f"keeps a {type(value).__name__} as {name}; keep a tensor")
        return tensors

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Continue from the moments that `state_tensors` returned."""
        owners = {
            id(master): part
            for part in self._parts
            for group in part.param_groups
            for master in group["params"]
        }
        for full_name, tensor in tensors.items():
            name, _, key = full_name.rpartition(".")
            master = self.weights.masters[name]
            moment = self.weights.part(tensor).to(master.device)
            owners[id(master)].state[master][key] = moment

    def _check_parts(self) -> None:
        """Check that a list of optimizers updates each weight once."""
        is_list = isinstance(self._parts, list)
        if not is_list or not all(isinstance(p, torch.optim.Optimizer) for p in self._parts):
            raise self._error("build must return a list of torch optimizers")
        groups = [group for part in self._parts for group in part.param_groups]
        times = Counter(id(weight) for group in groups for weight in group["params"])
        for name, master in self.weights.masters.items():
            if times[id(master)] != 1:
                raise self._error(f"updates {name} {times[id(master)]} times in a step, not once")

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(problem, about=f"optimizer {self._settings.short_name}")


def set_precision(model: PreTrainedModel, precision: FinetunePrecision) -> MasterWeights:
    """Make a model built in fp32 compute in `precision`; return its master weights."""
    # They are in fp32, except for `paper`: there each weight is rounded and is its own master.
    working = dict(model.named_parameters())
    if precision == "paper":
        for parameter in working.values():
            parameter.data = parameter.data.to(torch.bfloat16)
    if precision != "bf16":
        return MasterWeights(working, dict(working.items()), model.config)
    embeddings = model.get_input_embeddings()
    kept = {id(parameter) for parameter in embeddings.parameters()}
    masters: dict[str, Tensor] = {}
    for name, parameter in working.items():
        masters[name] = parameter
        if id(parameter) not in kept:
            # One parameter at a time: `model.to` would round the rotary frequencies too.
            masters[name] = parameter.data
            parameter.data = parameter.data.to(torch.bfloat16)
    embeddings.register_forward_hook(lambda _, __, output: output.to(torch.bfloat16))
    return MasterWeights(working, masters, model.config)


def set_head_precision(head: nn.Module, precision: FinetunePrecision) -> None:
    """Set the precision of a new head's weights; its inputs and outputs stay fp32."""
    # Unless the precision is `paper`, heads are small enough to stay in fp32.
    if precision == "paper" and any(True for _ in head.parameters()):
        head.to(torch.bfloat16)
        head.register_forward_pre_hook(lambda _, inputs: inputs[0].to(torch.bfloat16))
        head.register_forward_hook(lambda _, __, output: output.float())


def layer_matrices(model: PreTrainedModel) -> set[str]:
    """Return the names of two-dimensional weights in a model's layers, except for embeddings."""
    matrices = {
        id(weight)
        for _, layer in transformer_layers(model)
        for module in layer.modules()
        for weight in module.parameters(recurse=False)
        if weight.ndim == 2 and not isinstance(module, nn.Embedding)
    }
    return {name for name, weight in model.named_parameters() if id(weight) in matrices}


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Make trainable exactly the parameters whose names match none of the patterns."""
    # Optimizers ignore frozen parameters: their weights and moments do not change.
    parameters = dict(model.named_parameters())
    frozen = frozen_names(parameters, patterns)
    for name, parameter in parameters.items():
        parameter.requires_grad_(name not in frozen)


def frozen_names(names: Collection[str], patterns: Sequence[str]) -> set[str]:
    """Return the names that match one of the patterns."""
    frozen: set[str] = set()
    for pattern in patterns:
        fitting = {name for name in names if fnmatchcase(name, pattern)}
        if not fitting:
            examples = ", ".join(sorted(names)[:3])
            raise ConfigError(
                f"freeze: no parameter's name matches '{pattern}'; names are {examples}, ..."
            )
        frozen |= fitting
    if len(frozen) == len(names):
        raise ConfigError("freeze: the patterns match every parameter, so nothing would train")
    return frozen
