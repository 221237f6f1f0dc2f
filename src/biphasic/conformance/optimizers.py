"""The rules of optimizers, on the weights of a small model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from biphasic.conformance.golden import Output, differences
from biphasic.conformance.rules import Rule, check_rules, variants
from biphasic.files import canonical_json
from biphasic.seeds import stream, uniforms
from biphasic.training.optimizers.optimizer import OptimizerConfig
from biphasic.training.step.optimizer import MasterWeights, Optimizer

_SHAPES = {"embedding": (12, 8), "layer.up": (16, 8), "layer.down": (8, 16), "norm": (8,)}
_MATRICES = ("layer.up", "layer.down")
_RATE = 1e-2
_STEPS = 4


@dataclass
class Case:
    """An optimizer of a few weights, in a run of a few steps."""

    settings: OptimizerConfig
    weights: dict[str, nn.Parameter] = field(
        default_factory=lambda: _first_weights()  # noqa: PLW0108 - it is defined below
    )

    def __post_init__(self) -> None:
        given = MasterWeights(self.weights, dict(self.weights))
        again = type(self.settings).model_validate_json(self.settings.model_dump_json())
        self.optimizer = Optimizer(given, again, layer_matrices=_MATRICES)

    def fresh(self) -> Case:
        """Return the optimizer before its first step."""
        return Case(self.settings)

    def run(self, steps: range, *, rate: float = _RATE, factor: float = 1.0) -> Case:
        """Update by the gradients of some steps."""
        for step in steps:
            for name, gradient in _drawn(step).items():
                self.weights[name].grad = gradient * factor
            self.optimizer.update(rate)
        return self

    def moments(self) -> dict[str, Tensor]:
        """Return copies of the moments."""
        tensors = self.optimizer.state_tensors()
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def values(self) -> dict[str, Tensor]:
        """Return copies of weights and moments."""
        weights = {name: weight.detach().clone() for name, weight in self.weights.items()}
        return {**weights, **self.moments()}


def check_optimizer(settings: OptimizerConfig) -> None:
    """Check that an optimizer keeps all rules.

    Raises:
        ConfigError: It breaks a rule, which the message names.

    Example:
        >>> from biphasic.training.optimizers.adamw import AdamW
        >>> check_optimizer(AdamW())
    """
    check_rules(Case(settings), RULES, where=settings.short_name)


def _updates(case: Case) -> Iterator[str]:
    """Every weight with a gradient is updated, and stays finite."""
    after = case.fresh().run(range(_STEPS)).values()
    for name, before in _first_weights().items():
        if not after[name].isfinite().all():
            yield f"{name} is not finite after {_STEPS} steps"
        if torch.equal(after[name], before):
            yield f"{name} is not updated"


def _rate(case: Case) -> Iterator[str]:
    """At a learning rate of 0, which a schedule may have, weights stay as they are."""
    after = case.fresh().run(range(_STEPS), rate=0.0).values()
    for name, before in _first_weights().items():
        if not torch.equal(after[name], before):
            yield f"{name} changes at a learning rate of 0; use group['lr']"


def _pure(case: Case) -> Iterator[str]:
    """The same gradients give the same weights, whatever was drawn before."""
    first = case.fresh().run(range(_STEPS)).values()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    for name, value in case.fresh().run(range(_STEPS)).values().items():
        if not torch.equal(value, first[name]):
            yield f"{name} differs in a second run; draw no random numbers"


def _moments(case: Case) -> Iterator[str]:
    """Tensors in `state` are as many as `num_moments`, shaped like their weight, or scalar."""
    case = case.fresh().run(range(_STEPS))
    moments = case.moments()
    for name, weight in case.weights.items():
        own = {key: value for key, value in moments.items() if key.rpartition(".")[0] == name}
        shaped = [key for key, value in own.items() if value.ndim]
        for key in shaped:
            if own[key].shape != weight.shape:
                yield f"{key} has the shape {tuple(own[key].shape)}, its weight another"
        expected = case.settings.num_moments(is_layer_matrix=name in _MATRICES)
        if len(shaped) != expected:
            yield f"{name} has {len(shaped)} tensors in state, num_moments says {expected}"


def _resume(case: Case) -> Iterator[str]:
    """A run that continues from saved weights and moments equals one that was not interrupted."""
    whole = case.fresh().run(range(_STEPS)).values()
    half = case.fresh().run(range(_STEPS // 2))
    weights = {name: nn.Parameter(value.detach().clone()) for name, value in half.weights.items()}
    resumed = Case(case.settings, weights)
    resumed.optimizer.load_state_tensors(half.moments())
    for name, value in resumed.run(range(_STEPS // 2, _STEPS)).values().items():
        if not torch.equal(value, whole[name]):
            yield f"{name} differs after a resume; keep all that decides updates in state[weight]"


def _skips(case: Case) -> Iterator[str]:
    """A step whose gradient is not finite (`found_inf` is 1) changes nothing."""
    case = case.fresh().run(range(2))
    before = case.values()
    case.run(range(2, 3), factor=float("nan"))
    for name, value in case.values().items():
        if not torch.equal(value, before[name]):
            yield f"{name} changes at a gradient that is not finite; use found_inf"


def _determinants(case: Case) -> Iterator[str]:
    """Settings that change updates also change the identity."""
    before, identity = case.fresh().run(range(_STEPS)).values(), case.settings.identity()
    fields = type(case.settings).model_fields.keys() - {"name"}
    for change, other in variants(case.settings, sorted(fields)):
        if not isinstance(other, OptimizerConfig):
            continue
        after = Case(other).run(range(_STEPS)).values()
        is_same = all(torch.equal(after[name], before[name]) for name in _SHAPES)
        if not is_same and canonical_json(other.identity()) == canonical_json(identity):
            yield f"{change} gives other weights, but the same identity"


def output(settings: OptimizerConfig) -> Output:
    """Return a number that follows from all updates."""
    after, before = Case(settings).run(range(_STEPS)).values(), _first_weights()
    moves = {name: (after[name] - weight.detach()).flatten() for name, weight in before.items()}
    return "", sum(float(move @ torch.arange(1.0, len(move) + 1)) for move in moves.values())


def golden(case: Case) -> Iterator[str]:
    """A class that declares a version gives its golden output."""
    return differences(
        case.settings, output, own=type(case.settings).model_fields.keys() - {"name"}
    )


RULES: dict[str, Rule[Case]] = {
    "updates": _updates,
    "rate": _rate,
    "pure": _pure,
    "moments": _moments,
    "resume": _resume,
    "skips": _skips,
    "determinants": _determinants,
    "golden": golden,
}
"""The rules by name, in the order of their checks."""


def _first_weights() -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(tensor.clone()) for name, tensor in _drawn(_STEPS).items()}


@cache
def _drawn(step: int) -> dict[str, Tensor]:
    """Return numbers from -0.5 to 0.5, shaped like the weights."""
    tensors: dict[str, Tensor] = {}
    for number, (name, shape) in enumerate(_SHAPES.items()):
        draws = uniforms(stream("conformance", 1, step, number), int(np.prod(shape)))
        tensors[name] = torch.from_numpy(draws - 0.5).float().reshape(shape)
    return tensors
