"""Phases, contiguous parts of a run, and the objectives that they can use.

Add new objectives of ours to `OBJECTIVES`; docs/plugins.md is about those of other people. Some are
made of others: several per step, each on its share of the rows, or in turn.

References: Charpentier and Samuel 2024 (GPT-BERT), arXiv:2410.24159, section 2: masked next-token
prediction and causal language modelling, at 15 rows to 1 in their released settings. Yu et al. 2024
(AntLM), arXiv:2412.03275, section 3: alternating epochs of causal and masked language modelling.
The study (arXiv 2507.00994) names it as future work. Turns are counted in steps here; an objective
listed twice has turns twice as long.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union

from pydantic import Field, PositiveFloat, PositiveInt, create_model, model_validator

from biphasic.amounts import percent_number
from biphasic.config import Config
from biphasic.data.building.config import PhaseCorpus
from biphasic.data.rows import RowBatch
from biphasic.errors import ConfigError, DataError
from biphasic.facts import LOSS_UNITS, only
from biphasic.model.shape import Lora
from biphasic.objectives.clm import Clm
from biphasic.objectives.contrastive import Contrastive, Distill, MarginMse
from biphasic.objectives.lr import LearningRateConfig
from biphasic.objectives.masking import Diffusion, Mlm, Mntp
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.supervision import Supervision, Vocabulary
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
        """True if one of the objectives predicts them."""
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
        """Held-out losses of all objectives by their shares of the rows; empty if one has none."""
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
    # Whole rows, and as many in each step: rounding each quota by itself could give one row too
    # many.
    rows = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(shares)), key=lambda index: rows[index] - quotas[index])
    for index in by_remainder[: num_rows - sum(rows)]:
        rows[index] += 1
    return rows


_ASK_FIRST = "the current objective depends on the step of the phase: call `at` first"

if TYPE_CHECKING:
    _InTurn = ObjectiveConfig
else:
    _InTurn = one_of(*OBJECTIVES, Mix)


class Alternate(SeveralObjectives):
    """Alternating objectives."""

    objective: Literal["alternate"]  # type: ignore[assignment]
    every: PositiveInt
    """Optimizer steps per turn."""
    objectives: tuple[_InTurn, ...]
    """The objectives in order, repeated; any except `alternate`, without phase settings. A schedule
    of an objective covers the whole phase, not its turns."""

    @model_validator(mode="after")
    def _check_objectives(self) -> Self:
        if all(objective == self.objectives[0] for objective in self.objectives):
            raise ValueError("objectives: give two or more that differ, or use one without turns")
        return self

    @property
    def weighted(self) -> tuple[tuple[float, ObjectiveConfig], ...]:
        """The objectives with equal shares: each has a turn in every round."""
        return tuple((1 / len(self.objectives), objective) for objective in self.objectives)

    @property
    def name_in_arms(self) -> str:
        """Its name, the steps of a turn, and the name of each objective."""
        return ".".join(
            [f"alt{self.every}", *(objective.name_in_arms for objective in self.objectives)]
        )

    @property
    def turns(self) -> tuple[ObjectiveConfig, ...]:
        """Turns of all objectives, in their order."""
        return tuple(turn for objective in self.objectives for turn in objective.turns)

    @property
    def parts(self) -> tuple[tuple[float, ObjectiveConfig], ...]:
        """Not callable: only the current objective has parts."""
        raise RuntimeError(_ASK_FIRST)

    def at(self, step: int, *, num_steps: int) -> ObjectiveConfig:
        """Return the current objective."""
        # From the step alone, so a resumed run needs no memory of turns.
        turn = step // self.every % len(self.objectives)
        return self.objectives[turn].at(step, num_steps=num_steps)

    def check(self, *, num_steps: int, rows_per_step: int) -> None:
        """Raise an error if an objective never gets a turn, or refuses the phase itself."""
        needed = self.every * (len(self.objectives) - 1) + 1
        if num_steps < needed:
            raise ConfigError(
                f"alternate: {num_steps} steps end before every objective had a turn of "
                f"{self.every}; use {needed} steps or more, or shorter turns"
            )
        for objective in self.objectives:
            objective.check(num_steps=num_steps, rows_per_step=rows_per_step)

    def determinants(self, mask_seed: int) -> dict[str, Any]:
        """Not callable: only the current objective determines a step."""
        raise RuntimeError(_ASK_FIRST)

    def supervise(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        """Not callable: the current objective supervises."""
        raise RuntimeError(_ASK_FIRST)


_MOST_STEPS = 10_000_000
"""Each update gets a hash; a mistyped number should not keep a planner busy for days."""
MOST_TOKENS = 1 << 20  # maximum row length; no encoder reads more
MOST_TOKENS_PER_STEP = 1 << 28  # a hundred times the study's; its rows are planned in memory


class PhaseConfig(Config):
    """A contiguous part of a run."""

    steps: Annotated[int, Field(gt=0, le=_MOST_STEPS)]
    """Optimizer steps."""
    learning_rate: LearningRateConfig | None = None
    """Starts a new schedule, which lasts until another phase starts one."""
    learning_rate_scale: PositiveFloat = 1.0
    """Factor on the schedule during this phase."""
    optimizer_state: Literal["keep", "reset"] = "keep"
    """The optimizer's moments are kept, or reset at the start of the phase."""
    freeze: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Parameters frozen in this phase, by name; `*` matches anything. A tied head is frozen with
    the embeddings."""
    lora: Annotated[Lora | None, Field(exclude_if=lambda lora: lora is None)] = None
    """Trains low-rank additions and the mask token's embedding, and no other weight. They are
    merged when the phase ends; the next phase with `lora` begins new ones."""
    corpus: PhaseCorpus | None = None
    """Settings of the run's corpus that differ in this phase, or the folder of a finished corpus
    with the same tokenizer; by default the run's own."""
    max_seqlen: Annotated[int, Field(gt=0, le=MOST_TOKENS)] | None = None
    """Row length in this phase, in tokens; by default the run's."""
    rows_per_step: PositiveInt | None = None
    """Rows per global batch in this phase; by default the run's."""
    rope_theta: PositiveFloat | None = None
    """Base of the rotary frequencies from this phase on."""


PHASE_OBJECTIVES = (*OBJECTIVES, Alternate, Mix, Contrastive, Distill, MarginMse)

if TYPE_CHECKING:

    class Phase(PhaseConfig, ObjectiveConfig):
        """A contiguous part of a run, with its objective."""

else:
    _KINDS = tuple(
        create_model(f"{kind.__name__}Phase", __base__=(PhaseConfig, kind), __doc__=kind.__doc__)
        for kind in PHASE_OBJECTIVES
    )
    Phase = one_of(*_KINDS, mixin=PhaseConfig)


def loss_units(phases: Iterable[ObjectiveConfig]) -> dict[str, str]:
    """Return units of logged losses by name, where they are not those of `LOSS_UNITS`."""
    units: dict[str, str] = {}
    for phase in phases:
        units[phase.short_name] = phase.unit_of_loss
        for part in (part for turn in phase.turns for _, part in turn.parts):
            units |= {name: own.unit_of_loss for name, (own, _) in part.heldout_measures.items()}
    return {name: unit for name, unit in units.items() if unit != LOSS_UNITS.get(name, "")}


def uses_of_head(phases: Iterable[ObjectiveConfig]) -> tuple[str, ...]:
    """Return the names of the objectives that need a language-model head, once each."""
    return tuple(dict.fromkeys(phase.short_name for phase in phases if phase.needs_head))
