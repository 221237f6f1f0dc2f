"""Merging of a run's weights with those that it had before, against forgetting.

References: see `model/merge.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, NonNegativeInt

from biphasic.data.rows import RowBatch
from biphasic.model.merge import Method, group_members, merge_tensors, shares_of
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.supervision import Supervision, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

Share = Annotated[float, Field(ge=0, le=1)]


def _check_groups(groups: dict[str, float]) -> dict[str, float]:
    for group in groups:
        group_members(group)
    return groups


class Merge(ObjectiveConfig):
    """One step that trains nothing: weights become those between an earlier state and this one."""

    objective: Literal["merge"]  # type: ignore[assignment]
    weight: Share = 0.5
    """Share of the weights after the previous phase; the rest is the earlier state's."""
    method: Method = "linear"
    """`linear`, or `spherical`: along the arc between two tensors."""
    groups: Annotated[dict[str, Share], AfterValidator(_check_groups)] = Field(default_factory=dict)
    """Shares of single groups: a layer as `3`, layers as `0-5`, `embeddings`, or `rest`."""
    before_phase: NonNegativeInt | None = None
    """The earlier state is the one before this phase, counted from 0; by default before the last
    phase. 0 is the model that the run began with."""

    @property
    def directions(self) -> frozenset[bool]:
        """None: it computes no attention."""
        return frozenset()

    @property
    def label_share(self) -> float:
        """None."""
        return 0.0

    @property
    def needs_head(self) -> bool:
        """No: it merges the weights that there are."""
        return False

    def determinants(self, mask_seed: int) -> dict[str, Any]:
        """Return what the weights depend on, besides the two states."""
        del mask_seed
        return {"name": self.objective, **self.settings()}

    def settings(self) -> dict[str, Any]:
        """Return weight and method, and groups if there are any."""
        groups = {"groups": self.groups} if self.groups else {}
        return {"weight": self.weight, "method": self.method, **groups}

    def merges_from(self, index: int) -> int:
        """Return the phase before which its earlier state is."""
        return index - 1 if self.before_phase is None else self.before_phase

    def between(
        self, base: Mapping[str, Tensor], adapted: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the merged weights, by name."""
        shares = shares_of(adapted, self.weight, self.groups)
        return merge_tensors(base, adapted, shares=shares, method=self.method)

    def supervise(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        """Return no inputs: no row is read."""
        del batch, vocabulary, mask_seed
        return ()
