"""Phases: contiguous parts of a run, each with one objective.

A new objective is a file like `clm.py` and one entry here.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from biphasic.objectives.clm import ClmPhase
from biphasic.objectives.mlm import MlmPhase

Phase = Annotated[ClmPhase | MlmPhase, Field(discriminator="objective")]
