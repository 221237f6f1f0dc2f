"""The optimizers that recipes can use. Add new ones here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args

from pydantic import Discriminator, Tag

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
    _NAMES = {kind: get_args(kind.model_fields["name"].annotation)[0] for kind in OPTIMIZERS}
    _TAGGED = tuple(Annotated[kind, Tag(name)] for kind, name in _NAMES.items())
    OptimizerName = Literal[tuple(_NAMES.values())]
    AnyOptimizer = Annotated[Union[_TAGGED], Discriminator(name)]  # noqa: UP007
