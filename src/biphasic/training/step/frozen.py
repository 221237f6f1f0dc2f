"""Freezing of parameters by name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from torch import nn

from biphasic.errors import ConfigError


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Make trainable exactly the parameters whose names match none of the patterns.

    AdamW ignores frozen parameters: their weights and moments do not change.

    Raises:
        ConfigError: A pattern matches no parameter, or nothing is left to train.
    """
    parameters = dict(model.named_parameters())
    frozen = frozen_names(parameters, patterns)
    for name, parameter in parameters.items():
        parameter.requires_grad_(name not in frozen)


def frozen_names(names: Collection[str], patterns: Sequence[str]) -> set[str]:
    """Return the names that match one of the patterns.

    Raises:
        ConfigError: A pattern matches no name, or every name is matched.
    """
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
