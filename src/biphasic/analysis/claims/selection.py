"""Which cells of a table are meant: factors and their levels."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from biphasic.config import Config

Position = Literal["smallest", "middle", "largest"]
POSITIONS: tuple[str, ...] = get_args(Position)
TEXT_FACTORS = ("size", "objective", "start", "group", "model", "task", "dataset")
NUMBER_FACTORS = ("mask_rate", "steps", "progress", "clm_share", "continued_steps", "extension")
ORDERED_FACTORS = ("size", *NUMBER_FACTORS)
AVERAGE = "average"
EACH = "each"
_BOUNDS = ("at_least", "at_most", "above", "below")
_LEVELS_HELP = (
    "a value, a list of values, one of smallest, middle and largest, {nearest: VALUE}, or bounds "
    "such as {at_least: VALUE, below: VALUE}"
)

NumberFactor = Literal[
    "mask_rate", "steps", "progress", "clm_share", "continued_steps", "extension"
]
OrderedFactor = Literal[
    "size", "mask_rate", "steps", "progress", "clm_share", "continued_steps", "extension"
]
Factor = Literal[
    "size",
    "objective",
    "start",
    "model",
    "task",
    "dataset",
    "mask_rate",
    "steps",
    "progress",
    "clm_share",
    "continued_steps",
    "extension",
]


class Levels(Config):
    """Which values of a factor are meant: in files a value, a list, a position, or bounds."""

    values: tuple[float | str, ...] = ()
    """Exactly these."""
    position: Position | None = None
    """By order among what the table has: of three, one each; of four, the second is the middle."""
    nearest: float | None = None
    """The value of the table that lies closest."""
    within: float | None = Field(default=None, gt=0)
    """How far off the nearest may lie; any distance when left out."""
    at_least: float | None = None
    """Not below this."""
    at_most: float | None = None
    """Not above this."""
    above: float | None = None
    """Strictly above this."""
    below: float | None = None
    """Strictly below this."""

    @model_validator(mode="before")
    @classmethod
    def _from_short_form(cls, raw: Any) -> Any:
        if isinstance(raw, bool) or raw is None:
            raise ValueError(f"expected {_LEVELS_HELP}, not {raw!r}")
        if isinstance(raw, str) and raw in POSITIONS:
            return {"position": raw}
        if isinstance(raw, str | int | float):
            return {"values": (raw,)}
        if isinstance(raw, list | tuple):
            if not raw or not all(isinstance(each, str | int | float) for each in raw):
                raise ValueError(f"expected {_LEVELS_HELP}, not {raw!r}")
            return {"values": tuple(raw)}
        return raw

    @model_validator(mode="after")
    def _is_one_thing(self) -> Levels:
        has_bounds = any(getattr(self, name) is not None for name in _BOUNDS)
        given = (bool(self.values), self.position is not None, self.nearest is not None, has_bounds)
        if sum(given) != 1:
            raise ValueError(f"expected {_LEVELS_HELP}; one of them, not {sum(given)}")
        if self.within is not None and self.nearest is None:
            raise ValueError("'within' goes with 'nearest'")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        """Describe the short forms that files use."""
        record = handler.resolve_ref_schema(handler(core))
        for name in ("values", "position"):
            record["properties"].pop(name, None)
        single = [{"type": "number"}, {"type": "string"}]
        return {
            "description": record.pop("description", ""),
            "anyOf": [*single, {"type": "array", "items": {"anyOf": single}}, record],
        }


class Selection(Config):
    """Cells of the table by factors; what is left out is not narrowed."""

    size: Levels | None = None
    """Name of the architecture's size, such as `610M`; ordered by number of parameters."""
    objective: Levels | None = None
    """`CLM`, `MLM`, `CLM+MLM` or another family; `none` is the untrained encoder."""
    mask_rate: Levels | None = None
    """Share of tokens that MLM masks."""
    steps: Levels | None = None
    """Optimizer steps, those of continued training not counted."""
    progress: Levels | None = None
    """`steps` as a share of the longest finished training in the table."""
    clm_share: Levels | None = None
    """Share of CLM in the steps of CLM and MLM, rounded to 5 %; a mixture is never 0 or 1."""
    continued_steps: Levels | None = None
    """Steps of continued training. Unless a check names them, only models without any count."""
    extension: Levels | None = None
    """`continued_steps` as a share of `steps`."""
    start: Levels | None = None
    """Objective of the finished model that continued training began with."""
    finished: bool | None = None
    """False for states on the way. Unless a check names it, only finished models count."""
    group: Levels | None = None
    """Heading of the study file, or table of the paper."""
    model: Levels | None = None
    """Name of a model."""
    task: Levels | None = None
    """`SC`, `TC`, `QA`, `IR`, ..."""
    dataset: Levels | None = None
    """Names; `each` for all datasets; `average`, the default, for the average over a task's
    datasets, or its only dataset."""

    @model_validator(mode="after")
    def _has_fitting_values(self) -> Selection:
        for name, levels in self.levels().items():
            refuse_misfit(name, levels)
        return self

    def levels(self) -> dict[str, Levels]:
        """Return what is narrowed, `finished` aside."""
        return {
            name: value
            for name in (*TEXT_FACTORS, *NUMBER_FACTORS)
            if (value := getattr(self, name)) is not None
        }

    def named(self) -> set[str]:
        """Return the names of all factors that are narrowed."""
        return set(self.levels()) | ({"finished"} if self.finished is not None else set())


def refuse_misfit(factor: str, levels: Levels) -> None:
    """Refuse levels that a factor cannot have.

    Raises:
        ValueError: They are names where numbers are due, or the other way round.
    """
    if factor in NUMBER_FACTORS:
        if names := [value for value in levels.values if isinstance(value, str)]:
            raise ValueError(f"{factor}: '{names[0]}' is not a number")
        return
    if numbers := [value for value in levels.values if not isinstance(value, str)]:
        raise ValueError(f"{factor}: write {numbers[0]:g} in quotes: names are text")
    if not levels.values and not (factor == "size" and levels.position):
        raise ValueError(f"{factor}: has no order; give a name or a list of names")
