"""The optimizers that recipes can use. Add new ones of ours here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import Discriminator, Tag, WrapValidator

from biphasic.plugins import accepting, is_plugin, names_of
from biphasic.training.optimizers.adamw import AdamW
from biphasic.training.optimizers.muon import Muon
from biphasic.training.optimizers.optimizer import OptimizerConfig

OPTIMIZERS: tuple[type[OptimizerConfig], ...] = (AdamW, Muon)


def name(settings: Any) -> str:
    """Return the name in settings of any optimizer; those without one are AdamW's."""
    # Error messages show this function's name as the key.
    if isinstance(settings, Mapping):
        return str(settings.get("name", "adamw"))
    return getattr(settings, "name", "adamw")


def _plugin_or_ours(given: Any, ours: Callable[[Any], Any]) -> Any:
    is_named = isinstance(given, str) and is_plugin("optimizers", given)
    return given if is_named else ours(given)


if TYPE_CHECKING:
    AnyOptimizer = OptimizerConfig
    OptimizerName = str
else:
    _NAMES = names_of(OPTIMIZERS, "name")
    _TAGGED = tuple(
        Annotated[kind, Tag(each)] for kind, each in zip(OPTIMIZERS, _NAMES, strict=True)
    )
    OptimizerName = Annotated[Literal[_NAMES], WrapValidator(_plugin_or_ours)]
    AnyOptimizer = accepting(
        Annotated[Union[_TAGGED], Discriminator(name)],  # noqa: UP007
        _NAMES,
        group="optimizers",
        key="name",
        base=OptimizerConfig,
    )
