"""Verdicts of claims, from the number of comparisons that hold.

A comparison holds, fails or is unknown, and so does a check: `at least 8 of 12` holds if eight hold
whatever the rest, fails if five fail, and is unknown in between. A verdict is given only if unknown
comparisons cannot change it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from biphasic.analysis.claims.questions import Comparison, all_hold, any_holds
from biphasic.analysis.claims.table import level_text

Verdict = Literal["true", "partly", "false", "undecided", "no data"]
"""`undecided`: there are comparisons, but too few are decided; `no data`: there are none."""


@dataclass(frozen=True)
class Check:
    """A question with its comparisons, and how many of them must hold; by default all."""

    text: str
    """The question as text."""
    comparisons: tuple[Comparison, ...]
    at_least: float | None = None
    """Minimum that must hold: an integer, or a share such as 8/12, rounded up."""
    at_most: float | None = None
    """Maximum that may hold; shares are rounded down."""
    most_often: str = ""
    """A factor: the expected level must win more often than any other level of it."""
    is_weaker: bool = False
    """Whether it decides between partly and false instead."""
    num_absent: int = 0
    """Number of comparisons that are impossible because the table lacks the named models."""
    bound: tuple[str, ...] = ()
    """Levels that relative words were resolved to, such as `largest steps: 800`."""
    missing: tuple[str, ...] = ()
    """What the table lacks."""

    def __post_init__(self) -> None:
        numbers = [number for number in (self.at_least, self.at_most) if number is not None]
        if len(numbers) + bool(self.most_often) > 1:
            raise ValueError("give one of at_least, at_most and most_often")
        if any(n < 0 or (isinstance(n, float) and n > 1) for n in numbers) or self.at_least == 0:
            raise ValueError(f"{numbers[0]}: expected a positive integer or a share up to 1.0")

    @property
    def total(self) -> int:
        """Number of comparisons, with impossible ones."""
        return len(self.comparisons) + self.num_absent

    @property
    def number(self) -> int:
        """How many comparisons must hold, or may hold at most."""
        share = self.at_least if self.at_most is None else self.at_most
        if share is None or isinstance(share, int):
            return self.total if share is None else share
        exact = Fraction(share).limit_denominator(1000) * self.total
        return math.ceil(exact) if self.at_most is None else math.floor(exact)

    @property
    def answers(self) -> list[bool | None]:
        """Whether each comparison holds; impossible ones are unknown."""
        return [*(one.holds for one in self.comparisons), *([None] * self.num_absent)]

    @property
    def holds(self) -> bool | None:
        """Whether enough comparisons hold; None if it depends on unknown ones."""
        held, unknown = self.answers.count(True), self.answers.count(None)
        if not self.comparisons:
            return None
        if self.at_most is not None:
            return False if held > self.number else None if held + unknown > self.number else True
        least, most = self.number, self.number - 1
        if self.most_often:
            lost = Counter(c.winner for c in self.comparisons if c.holds is False)
            most = max((n for winner, n in lost.items() if winner is not None), default=0)
            least = most + unknown + 1
        return True if held >= least else False if held + unknown <= most else None

    @property
    def needed(self) -> str:
        """How many comparisons must hold, as text."""
        if self.most_often:
            return "more often than any other needed"
        if self.at_most is not None:
            return f"at most {self.number} allowed"
        return "all needed" if self.at_least is None else f"at least {self.number} needed"

    @property
    def count(self) -> str:
        """How many hold: `9 of 12 hold (at least 8 needed)`."""
        if not self.comparisons:
            return "nothing to compare"
        unknown = self.answers.count(None)
        open_ = f", {unknown} unknown" if unknown else ""
        counted = f"{self.answers.count(True)} of {self.total} hold{open_} ({self.needed})"
        if not self.most_often:
            return counted
        winners = Counter(c.winner for c in self.comparisons if c.winner is not None)
        counts = [f"{level_text(self.most_often, w)} ({n})" for w, n in winners.most_common()]
        return f"{counted}: found were {', '.join(counts) or 'ties'}"


def verdict_of(checks: Sequence[Check], weaker: Sequence[Check]) -> Verdict:
    """Return true if all checks hold, and partly if those of the weaker form do.

    Without a weaker form, a single comparison that holds makes a claim partly true.
    """
    strong = all_hold(check.holds for check in checks)
    if strong is True:
        return "true"
    weak = all_hold(check.holds for check in weaker) if weaker else _some(checks)
    if strong is False and weak is not None:
        return "partly" if weak else "false"
    # A failing weaker form does not make a claim false while the stronger form is open.
    has_data = any(one.has_numbers for check in (*checks, *weaker) for one in check.comparisons)
    return "undecided" if has_data else "no data"


def _some(checks: Sequence[Check]) -> bool | None:
    """Return whether any expected comparison holds.

    A check with a maximum also holds in an empty table, so it counts only if there are no others.
    """
    positive = [check for check in checks if check.at_most is None]
    answers = [answer for check in positive for answer in check.answers]
    return any_holds(answers if positive else [check.holds for check in checks])
