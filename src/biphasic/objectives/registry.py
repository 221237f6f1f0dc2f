"""The objectives that phases, alternations and mixtures can use. Add new ones of ours here.

See docs/objectives.md; docs/plugins.md for those of other people.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field

from biphasic.config import Config
from biphasic.objectives.clm import Clm
from biphasic.objectives.diffusion import Diffusion
from biphasic.objectives.mlm import Mlm
from biphasic.objectives.mntp import Mntp
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.plugins import accepting, names_of

OBJECTIVES: tuple[type[ObjectiveConfig], ...] = (Clm, Mlm, Mntp, Diffusion)


def one_of(*kinds: type[ObjectiveConfig], mixin: type[Config] | None = None) -> Any:
    """Return the type of settings of one of these objectives, or of a plugin, with `mixin`."""
    own = Annotated[Union[kinds], Field(discriminator="objective")]  # noqa: UP007
    names = names_of(kinds, "objective")
    return accepting(
        own, names, group="objectives", key="objective", base=ObjectiveConfig, mixin=mixin
    )


if TYPE_CHECKING:
    AnyObjective = ObjectiveConfig
else:
    AnyObjective = one_of(*OBJECTIVES)
