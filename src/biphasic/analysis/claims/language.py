"""What a claims file may say: a small vocabulary, checked when the file is read.

A claim is a sentence with checks. A check narrows the table (`where`), says what is looked at
(`value`: a score unless it says otherwise), asks one question of it (`compare`, `trend`, `best`,
`worst` or `varies`) and says how often the answer must be yes (`hold`). What a question does not
name is held equal: models are only ever compared that agree in all other factors.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from biphasic.analysis.claims.selection import (
    Factor,
    Levels,
    NumberFactor,
    OrderedFactor,
    Selection,
    refuse_misfit,
)
from biphasic.config import Config, refuse_repeats

FORMAT = "biphasic.claims/1"
Outcome = Literal[
    "higher",
    "lower",
    "not higher",
    "not lower",
    "significantly higher",
    "significantly lower",
    "significantly different",
    "not significantly higher",
    "not significantly lower",
    "not significantly different",
]
Course = Literal[
    "increases",
    "decreases",
    "never increases",
    "never decreases",
    "never significantly increases",
    "never significantly decreases",
    "dips in the middle",
    "peaks in the middle",
]


EntryT = TypeVar("EntryT")


_WHOLE = re.compile("[0-9]{1,9}")


def _refuse_empty(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise ValueError("give one at least")
    return values


# A bound of pydantic's own would also complain of every wrong entry that there are too few.
NotEmpty = Annotated[tuple[EntryT, ...], AfterValidator(_refuse_empty)]


class Difference(Config):
    """One score minus another."""

    of: Selection
    """The score to begin with."""
    minus: Selection
    """The score to take away."""


class Value(Config):
    """What is looked at instead of a score; one of two."""

    difference: Difference | None = None
    """A difference of two scores."""
    best_level: NumberFactor | None = None
    """The level of a factor at which the score is highest; the smaller of two that tie."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> Value:
        if (self.difference is None) == (self.best_level is None):
            raise ValueError("give one of 'difference' and 'best_level'")
        return self


class Compare(Config):
    """Every value of `first` beside its counterparts in `second`; each pair is a comparison."""

    first: Selection
    """What the sentence speaks of."""
    second: Selection
    """What it is compared with."""
    expect: Outcome
    """What the first must be. Scores of single seeds are tested, so that any difference must be
    clear. Of a published table, a difference is significant where the intervals do not overlap."""


class Trend(Config):
    """How values run along a factor; each run is a comparison."""

    along: OrderedFactor
    """The factor, from its smallest level to its largest."""
    expect: Course
    """What the values must do. In the middle they dip where both ends are above all between."""


class Extreme(Config):
    """Which level of a factor has the best, or the worst, value; each group is a comparison."""

    over: Factor
    """The factor."""
    expect: Levels | None = None
    """The level that must be it."""
    expect_not: Levels | None = None
    """The level that must not be it."""
    across: Literal["task", "dataset", "size"] | None = None
    """Take the values of all levels of another factor together."""
    by: Literal["mean", "mean rank"] = "mean"
    """How: their mean, or the mean of the ranks that each gives."""

    @model_validator(mode="after")
    def _expects_one_thing(self) -> Extreme:
        if (self.expect is None) == (self.expect_not is None):
            raise ValueError("give one of 'expect' and 'expect_not'")
        refuse_misfit(self.over, self.sought)
        if self.across == self.over:
            raise ValueError(f"across: '{self.across}' is what levels are sought of")
        if self.by != "mean" and self.across is None:
            raise ValueError("'by' goes with 'across'")
        return self

    @property
    def sought(self) -> Levels:
        """The levels that are expected, or not."""
        return self.expect or self.expect_not or Levels(position="largest")


class Varies(Config):
    """Whether values differ at all within a group; each group is a comparison."""

    over: NotEmpty[Factor]
    """The factors along which they may differ."""


class Hold(Config):
    """How many of the comparisons must hold: in files `all`, `most often`, or one of these."""

    at_least: int | str | None = None
    """A number, or a share of those that there are such as `8/12`, rounded up."""
    at_most: int | str | None = None
    """A number, or a share, rounded down."""
    most_often: bool = False
    """Of `best` and `worst`: the expected level must be it more often than any other."""

    @model_validator(mode="before")
    @classmethod
    def _from_words(cls, raw: Any) -> Any:
        words = {"all": {}, "most often": {"most_often": True}}
        if isinstance(raw, str):
            if raw not in words:
                raise ValueError(
                    f"expected all, most often, {{at_least: N}} or {{at_most: N}}, not '{raw}'"
                )
            return words[raw]
        return raw

    @model_validator(mode="after")
    def _is_one_thing(self) -> Hold:
        given = (self.at_least is not None, self.at_most is not None, self.most_often)
        if sum(given) > 1:
            raise ValueError("give one of 'at_least', 'at_most' and 'most often'")
        for name, number in (("at_least", self.at_least), ("at_most", self.at_most)):
            if isinstance(number, str):
                share_of(number, where=name)
            elif isinstance(number, int) and number < (name == "at_least"):
                raise ValueError(f"{name}: {number} comparisons decide nothing; give more")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        """Describe the words that files use."""
        record = handler.resolve_ref_schema(handler(core))
        record["properties"].pop("most_often", None)
        return {
            "description": record.pop("description", ""),
            "anyOf": [{"enum": ["all", "most often"]}, record],
        }


def share_of(text: str, *, where: str) -> tuple[int, int]:
    """Return numerator and denominator of a share such as `8/12`.

    Raises:
        ValueError: It is not written so, or is no share.
    """
    top, separator, bottom = text.partition("/")
    if not (separator and _WHOLE.fullmatch(top.strip()) and _WHOLE.fullmatch(bottom.strip())):
        raise ValueError(f"{where}: write a number or a share such as 8/12, not '{text}'")
    share = int(top), int(bottom)
    if share[1] == 0 or share[0] > share[1]:
        raise ValueError(f"{where}: {text} is no share of the comparisons")
    return share


Question = Compare | Trend | Extreme | Varies


class Check(Config):
    """One question to the table."""

    where: Selection = Selection()
    """What the question is about. A factor that a model has not (CLM has no masking rate) does not
    exclude it here."""
    needs: dict[OrderedFactor, PositiveInt] = Field(default_factory=dict)
    """Least number of levels of a factor without which the question makes no sense."""
    value: Value | None = None
    """What is looked at; the score when left out."""
    compare: Compare | None = None
    """Pairs."""
    trend: Trend | None = None
    """Runs along a factor."""
    best: Extreme | None = None
    """Highest value."""
    worst: Extreme | None = None
    """Lowest value."""
    varies: Varies | None = None
    """Difference at all."""
    hold: Hold = Hold()
    """How many of the comparisons must hold; all when left out."""

    @model_validator(mode="after")
    def _asks_one_thing(self) -> Check:
        names = ("compare", "trend", "best", "worst", "varies")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of {', '.join(names)}" + (f", not {given}" * bool(given)))
        if self.hold.most_often and given[0] not in {"best", "worst"}:
            raise ValueError("hold: 'most often' goes with 'best' and 'worst'")
        for selection in self.inner_selections():
            if selection.group is not None:
                raise ValueError("group: give it in 'where'")
        if self.value is not None and "significantly" in self._expected():
            raise ValueError(
                f"{given[0]}.expect: only scores have intervals; leave out 'significantly', or "
                "'value'"
            )
        if self.value is not None and self.value.best_level and given[0] in {"best", "worst"}:
            raise ValueError(f"{given[0]}: looks at scores or differences, not at a best level")
        return self

    def _expected(self) -> str:
        question = self.compare or self.trend
        return question.expect if question else ""

    @property
    def question(self) -> Question:
        """Whichever of the questions is asked."""
        return self.compare or self.trend or self.best or self.worst or self.varies  # type: ignore[return-value]

    def inner_selections(self) -> tuple[Selection, ...]:
        """Return the selections inside the value and the question."""
        found: tuple[Selection, ...] = ()
        if self.value is not None and self.value.difference is not None:
            found += (self.value.difference.of, self.value.difference.minus)
        if self.compare is not None:
            found += (self.compare.first, self.compare.second)
        return found


class Claim(Config):
    """A sentence and how the table answers it.

    True where all checks hold; partly where those of `weaker` do or, without any, where some
    comparison does; otherwise false. Undecided where cells that could turn the answer are missing.
    """

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")]
    """Short and unique."""
    text: Annotated[str, Field(min_length=1)]
    """The sentence."""
    source: str = ""
    """Where it is said."""
    reading: str = ""
    """How the checks read the sentence, where it can be read in several ways."""
    checks: NotEmpty[Check]
    """All must hold for the claim to be true."""
    weaker: tuple[Check, ...] = ()
    """All must hold for it to be partly true."""


class ClaimsFile(Config):
    """A list of claims."""

    format: Literal["biphasic.claims/1"]
    """Version of this vocabulary."""
    claims: NotEmpty[Claim]
    """In the order of the report."""

    @model_validator(mode="after")
    def _has_unique_ids(self) -> ClaimsFile:
        refuse_repeats("id", [claim.id for claim in self.claims])
        return self
