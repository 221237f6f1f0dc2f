"""Verdicts of claims, from the number of comparisons that hold.

A comparison holds, fails or is unknown, and so does a check: `at least 8 of 12` holds if eight hold
whatever the rest, fails if five fail, and is unknown in between. A verdict is given only if unknown
comparisons cannot change it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

from biphasic.analysis.claims.rows import Rows, level_text
from biphasic.analysis.words import words

# `undecided`: there are comparisons, but too few are decided; `no data`: there are none.
Verdict = Literal["true", "partly", "false", "undecided", "no data"]
_PLACES = {
    "task": "{}", "dataset": "{}", "size": "{}", "objective": "{}", "start": "from {}",
    "mask_rate": "masking rate {}", "steps": "{} steps", "clm_share": "CLM share {}",
    "continued_steps": "{} continued steps", "optimizer": "{}", "replicate": "run {}",
}  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """One comparison with its numbers."""

    text: str  # the numbers; a star marks a clear difference, or separate intervals
    holds: bool | None  # None if the table cannot decide
    factors: Mapping[str, Any] = field(default_factory=dict)  # of the compared models
    rows: Rows = ()
    winner: Any = None  # for `best` and `worst`: the level found

    def __post_init__(self) -> None:
        if self.holds is not None:  # what numpy compares is no `bool`
            object.__setattr__(self, "holds", bool(self.holds))

    @property
    def has_numbers(self) -> bool:
        """Whether it compares scores, even if these do not decide it."""
        return self.holds is not None or sum(row.is_scored for row in self.rows) > 1

    @property
    def is_provisional(self) -> bool:
        """Whether it is decided by a score at an end of the learning rates tried."""
        return self.holds is not None and any(row.is_at_end for row in self.rows)


@dataclass(frozen=True)
class Check:
    """Comparisons, and how many of them must hold; by default all."""

    comparisons: tuple[Comparison, ...]
    expected: str = ""  # what each comparison should show, such as `significantly higher`
    at_least: float | None = None  # a number, or a share such as 8/12, rounded up
    at_most: float | None = None  # shares are rounded down
    most_often: str = ""  # a factor: the expected level must win more often than any other
    weaker: bool = False  # decides between partly and false instead
    absent: tuple[str, ...] = ()  # what the table lacks; each counts as an unknown comparison
    value: str = "number"  # what models are compared by, such as `spread over learning rates`

    def __post_init__(self) -> None:
        numbers = [number for number in (self.at_least, self.at_most) if number is not None]
        if len(numbers) + bool(self.most_often) > 1:
            raise ValueError("give one of at_least, at_most and most_often")
        if any(n < 0 or (isinstance(n, float) and n > 1) for n in numbers) or self.at_least == 0:
            raise ValueError(f"{numbers[0]}: expected a positive integer or a share up to 1.0")

    @property
    def answers(self) -> list[bool | None]:
        """Whether each comparison holds; impossible ones are unknown."""
        return [*(one.holds for one in self.comparisons), *([None] * len(self.absent))]

    @property
    def number(self) -> int:
        """How many comparisons must hold, or may hold at most."""
        share = self.at_least if self.at_most is None else self.at_most
        if share is None or isinstance(share, int):
            return len(self.answers) if share is None else share
        # A float is rounded: 7/25 of 25 is a little more than 7, of which `ceil` would make 8.
        exact = Fraction(share).limit_denominator(1000) * len(self.answers)
        return math.ceil(exact) if self.at_most is None else math.floor(exact)

    @property
    def holds(self) -> bool | None:
        """Whether enough comparisons hold; None if it depends on unknown ones."""
        held, unknown = self.answers.count(True), self.answers.count(None)
        if not self.comparisons:
            return None
        if self.at_most is not None:
            # Unknown comparisons can still exceed a maximum, never take back that it is exceeded.
            return False if held > self.number else None if held + unknown > self.number else True
        least, most = self.number, self.number - 1
        if self.most_often:
            lost = Counter(c.winner for c in self.comparisons if c.holds is False)
            most = max((n for winner, n in lost.items() if winner is not None), default=0)
            # It must lead even if the runner-up wins all unknown comparisons.
            least = most + unknown + 1
        return True if held >= least else False if held + unknown <= most else None

    @property
    def needed(self) -> str:
        """How many comparisons must hold, as text."""
        return words().needed(self)

    @property
    def count(self) -> str:
        """How many hold: `9 of 12 hold (at least 8 needed)`."""
        winners = Counter(c.winner for c in self.comparisons if c.winner is not None)
        found = [f"{level_text(self.most_often, w)} ({n})" for w, n in winners.most_common()]
        return words().holding(self, self.answers.count(None), found)

    @property
    def missing(self) -> tuple[str, ...]:
        """What the table lacks: models, scores, or something to compare with."""
        reasons = [*self.absent]
        for one in self.comparisons:
            lacking = [row for row in one.rows if math.isnan(row.mean)]
            reasons += [f"no {self.value} for {row.name}" for row in lacking]
            if one.holds is None and not one.rows:
                reasons.append(one.text)
        return tuple(dict.fromkeys(reasons))

    def side(self, comparison: Comparison) -> str:
        """Return `for`, `against`, or `open` if the numbers do not decide; else nothing."""
        if comparison.holds is None:
            return "open" if comparison.has_numbers else ""
        if self.at_most is not None:  # one that fails says nothing for the claim
            return "against" if comparison.holds else ""
        return "for" if comparison.holds else "against"

    def line(self, comparison: Comparison) -> str:
        """Write a comparison with its place: `SC, 210M: ...`."""
        where = self.where(comparison)
        text = comparison.text + " (provisional)" * comparison.is_provisional
        return f"{where}: {text}" if where else text

    def where(self, comparison: Comparison) -> str:
        """Write the factors that distinguish a comparison from the others; empty without any."""
        levels = [(name, comparison.factors.get(name)) for name in self._distinguishing]
        return ", ".join(
            _PLACES[name].format(level_text(name, level))
            for name, level in levels
            if level not in {None, ""}
        )

    @cached_property
    def _distinguishing(self) -> list[str]:
        every = [comparison.factors for comparison in self.comparisons]
        return [
            factor
            for factor in _PLACES
            if factor in {"task", "size"} or len({factors.get(factor) for factors in every}) > 1
        ]


def all_hold(answers: Iterable[bool | None]) -> bool | None:
    """Return whether all answers are yes; None if it depends on unknown ones."""
    distinct = {*answers}
    return False if False in distinct else None if None in distinct else True


def any_holds(answers: Iterable[bool | None]) -> bool | None:
    """Return whether any answer is yes; None if it depends on unknown ones."""
    distinct = {*answers}
    return True if True in distinct else None if None in distinct or not distinct else False


def verdict_of(every: Sequence[Check]) -> Verdict:
    """Return true if all checks hold, and partly if those of the weaker form do."""
    # Without a weaker form, a single comparison that holds makes a claim partly true.
    checks = [check for check in every if not check.weaker]
    weaker = [check.holds for check in every if check.weaker]
    strong = all_hold(check.holds for check in checks)
    if strong is True:
        return "true"
    if weaker:
        weak = all_hold(weaker)
    elif positive := [check for check in checks if check.at_most is None]:
        weak = any_holds(answer for check in positive for answer in check.answers)
    else:  # a check with a maximum also holds in an empty table, so others precede it
        weak = any_holds(check.holds for check in checks)
    if strong is False and weak is not None:
        return "partly" if weak else "false"
    # A failing weaker form does not make a claim false while the stronger form is open.
    has_data = any(comparison.has_numbers for check in every for comparison in check.comparisons)
    return "undecided" if has_data else "no data"
