"""The objectives that phases, alternations and mixtures can use. Add new ones here.

See docs/objectives.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from biphasic.objectives.clm import Clm
from biphasic.objectives.mlm import Mlm
from biphasic.objectives.mntp import Mntp
from biphasic.objectives.objective import ObjectiveConfig

OBJECTIVES: tuple[type[ObjectiveConfig], ...] = (Clm, Mlm, Mntp)

if TYPE_CHECKING:
    AnyObjective = ObjectiveConfig
else:
    AnyObjective = Annotated[Union[OBJECTIVES], Field(discriminator="objective")]  # noqa: UP007
