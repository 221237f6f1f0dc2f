"""The optimizers that recipes can use. Add new ones of ours here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import Discriminator, Tag

from biphasic.plugins import accepting, names_of
from biphasic.training.optimizers.adamw import AdamW
from biphasic.training.optimizers.muon import Muon
from biphasic.training.optimizers.optimizer import OptimizerConfig

OPTIMIZERS: tuple[type[OptimizerConfig], ...] = (AdamW, Muon)


def name(settings: Any) -> str:
    """Return the name in settings of any optimizer; those without one are AdamW's.

    Error messages show this function's name as the key.
    """
    if isinstance(settings, Mapping):
        return str(settings.get("name", "adamw"))
    return getattr(settings, "name", "adamw")


if TYPE_CHECKING:
    AnyOptimizer = OptimizerConfig
    OptimizerName = str
else:
    _NAMES = names_of(OPTIMIZERS, "name")
    _TAGGED = tuple(
        Annotated[kind, Tag(each)] for kind, each in zip(OPTIMIZERS, _NAMES, strict=True)
    )
    OptimizerName = Literal[_NAMES]
    AnyOptimizer = accepting(
        Annotated[Union[_TAGGED], Discriminator(name)],  # noqa: UP007
        _NAMES,
        group="optimizers",
        key="name",
        base=OptimizerConfig,
    )
