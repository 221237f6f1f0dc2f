"""Parameters that stay as they are while others train, chosen by name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from torch import nn

from biphasic.errors import ConfigError


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Let exactly the parameters train whose names fit none of the patterns.

    AdamW leaves frozen parameters alone: neither their weights nor their moments change.

    Raises:
        ConfigError: A pattern fits no parameter, or nothing is left to train.
    """
    parameters = dict(model.named_parameters())
    frozen = frozen_names(parameters, patterns)
    for name, parameter in parameters.items():
        parameter.requires_grad_(name not in frozen)


def frozen_names(names: Collection[str], patterns: Sequence[str]) -> set[str]:
    """Return the names that fit one of the patterns.

    Raises:
        ConfigError: A pattern fits no name, or all names are taken.
    """
    frozen: set[str] = set()
    for pattern in patterns:
        fitting = {name for name in names if fnmatchcase(name, pattern)}
        if not fitting:
            examples = ", ".join(sorted(names)[:3])
            raise ConfigError(
                f"freeze: no parameter's name fits '{pattern}'; there are {examples}, ..."
            )
        frozen |= fitting
    if len(frozen) == len(names):
        raise ConfigError("freeze: the patterns fit every parameter, so nothing would train")
    return frozen
