"""Several objectives per step, each on its share of the rows.

Reference: Charpentier and Samuel 2024 (GPT-BERT), arXiv:2410.24159, section 2: masked next-token
prediction and causal language modelling, at 15 rows to 1 in their released settings.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from biphasic.amounts import percent_number
from biphasic.data.rows import RowBatch
from biphasic.errors import ConfigError, DataError
from biphasic.facts import only
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.registry import AnyObjective
from biphasic.objectives.supervision import Supervision, Vocabulary

_LEAST_SHARE = 1e-6  # no step has a million rows
_MOST_TRIED = 10_000


class SeveralObjectives(ObjectiveConfig):
    """An objective made of others, which have no phase settings."""

    objectives: tuple[ObjectiveConfig, ...]

    @property
    def directions(self) -> frozenset[bool]:
        """Directions of all objectives."""
        return frozenset().union(*(objective.directions for objective in self.objectives))

    @property
    def predicts_specials(self) -> bool:
        """Whether one of the objectives predicts them."""
        return any(objective.predicts_specials for objective in self.objectives)

    @property
    def most_labels(self) -> float:
        """The most of any of the objectives."""
        return max(objective.most_labels for objective in self.objectives)

    @property
    def unit_of_loss(self) -> str:
        """Unit of all losses; empty if they differ."""
        return only({objective.unit_of_loss for objective in self.objectives})

    @property
    @abstractmethod
    def weighted(self) -> tuple[tuple[float, ObjectiveConfig], ...]:
        """The objectives with their shares of all rows."""

    @property
    def heldout_weights(self) -> dict[str, float]:
        """Those of all objectives by their shares of the rows; empty if one has none."""
        weights: dict[str, float] = {}
        for share, part in self.weighted:
            if not part.heldout_weights:
                return {}
            for name, weight in part.heldout_weights.items():
                weights[name] = weights.get(name, 0.0) + share * weight
        return dict(sorted(weights.items()))

    def check_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Raise an error if an objective does not support the vocabulary."""
        for objective in self.objectives:
            objective.check_vocabulary(vocabulary)


class Mix(SeveralObjectives):
    """Objectives by shares of the rows."""

    objective: Literal["mix"]  # type: ignore[assignment]
    objectives: tuple[AnyObjective, ...]
    """The mixed objectives, without phase settings."""
    shares: tuple[Annotated[float, Field(gt=0, lt=1)], ...]
    """Share of each objective in the rows of a step; the shares sum to 1."""

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        if all(objective == self.objectives[0] for objective in self.objectives):
            raise ValueError("objectives: give two or more that differ, or use one without shares")
        if len(self.shares) != len(self.objectives):
            raise ValueError(
                f"shares: {len(self.shares)} given for {len(self.objectives)} objectives"
            )
        if min(self.shares) < _LEAST_SHARE:
            raise ValueError(f"shares: {min(self.shares):g} is less than one row in a million")
        if not math.isclose(sum(self.shares), 1, abs_tol=1e-6):
            raise ValueError(f"shares: the sum is {sum(self.shares):g}, not 1")
        return self

    @property
    def weighted(self) -> tuple[tuple[float, ObjectiveConfig], ...]:
        """The objectives with their shares."""
        return tuple(zip(self.shares, self.objectives, strict=True))

    @property
    def parts(self) -> tuple[tuple[float, ObjectiveConfig], ...]:
        """The objectives with their shares."""
        return self.weighted

    @property
    def name_in_arms(self) -> str:
        """Its name, and the share and name of each objective."""
        parts = (f"{percent_number(share)}.{part.name_in_arms}" for share, part in self.weighted)
        return ".".join(["mix", *parts])

    def at(self, step: int, *, num_steps: int) -> Self:
        """Return the mixture at one step of a phase."""
        concrete = tuple(objective.at(step, num_steps=num_steps) for objective in self.objectives)
        return self.model_copy(update={"objectives": concrete})

    def check(self, *, num_steps: int, rows_per_step: int) -> None:
        """Raise an error if an objective gets no row, or refuses the phase itself."""
        for objective, rows in zip(self.objectives, self._rows_of_each(rows_per_step), strict=True):
            objective.check(num_steps=num_steps, rows_per_step=rows)

    def determinants(self, mask_seed: int) -> dict[str, Any]:
        """Return everything that determines inputs and labels, given the rows."""
        parts = [objective.identity(mask_seed) for objective in self.objectives]
        return {"name": "mix", "objectives": parts, "shares": list(self.shares)}

    def supervise(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        """Let each objective supervise its rows: the first objective the first rows, and so on."""
        # Rows are in seeded order, so no objective gets a special kind of rows.
        borders = accumulate(self._rows_of_each(batch.packed.num_rows), initial=0)
        parts: list[Supervision] = []
        errors: list[DataError] = []
        for objective, (start, end) in zip(self.objectives, pairwise(borders), strict=True):
            try:
                parts += objective.checked_parts(
                    batch.part(start, end), vocabulary, mask_seed=mask_seed
                )
            except DataError as error:
                errors.append(error)
        parts = [part for part in parts if len(part.labels)]
        if not parts and errors:
            raise errors[0]
        return tuple(parts)

    def checked_parts(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        """Return the parts, which each objective has checked."""
        return self.supervise(batch, vocabulary, mask_seed=mask_seed)

    def _rows_of_each(self, num_rows: int) -> list[int]:
        rows = divide_rows(num_rows, self.shares)
        if 0 in rows:
            without = rows.index(0)
            needed = _rows_needed(num_rows, self.shares)
            raise ConfigError(
                f"mix: of {num_rows} rows per step, objectives.{without} "
                f"({self.objectives[without].short_name}, share {self.shares[without]:g}) gets "
                f"none; set rows_per_step to {needed} or more, or use a larger share"
            )
        return rows


def _rows_needed(num_rows: int, shares: Sequence[float]) -> int:
    """Return the least number of rows that gives each share a row, if it is found quickly."""
    enough = math.ceil(1 / min(shares))
    # A remainder below 1 / len(shares) gets no row.
    least = max(num_rows, math.floor(1 / (len(shares) * min(shares))))
    tried = range(least, min(enough, least + _MOST_TRIED))
    return next((rows for rows in tried if 0 not in divide_rows(rows, shares)), enough)


def divide_rows(num_rows: int, shares: Sequence[float]) -> list[int]:
    """Divide rows by shares that sum to 1, by largest remainder (Hamilton); ties: the first."""
    quotas = [share * num_rows for share in shares]
    rows = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(shares)), key=lambda index: rows[index] - quotas[index])
    for index in by_remainder[: num_rows - sum(rows)]:
        rows[index] += 1
    return rows
