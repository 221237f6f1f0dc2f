"""From comparisons to a verdict, where what is missing may leave it open.

A comparison holds, fails or is unknown, and so does a check: `at least 8 of 12` holds with eight
that hold whatever the rest, fails with five that fail, and is unknown in between. A verdict is
given only where no unknown comparison can turn it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from biphasic.analysis.claims.answers import (
    Comparison,
    all_hold,
    answer_compare,
    answer_extreme,
    answer_trend,
    answer_varies,
)
from biphasic.analysis.claims.differences import Differences
from biphasic.analysis.claims.language import (
    Check,
    Claim,
    Compare,
    Hold,
    Trend,
    Varies,
    share_of,
)
from biphasic.analysis.claims.narrow import Notes
from biphasic.analysis.claims.rows import Row, Table, table_of
from biphasic.analysis.claims.values import rows_of
from biphasic.analysis.score_table import Scores

Verdict = Literal["true", "partly", "false", "undecided"]


@dataclass(frozen=True)
class AnsweredCheck:
    """One check, answered."""

    check: Check
    comparisons: tuple[Comparison, ...]
    num_absent: int
    """Comparisons that were not even possible, since the table lacks what a check names."""
    holds: bool | None
    bound: tuple[str, ...]
    """What relative words stood for."""
    missing: tuple[str, ...]
    """What the table lacks."""

    @property
    def num_holding(self) -> int:
        """Comparisons that hold."""
        return sum(comparison.holds is True for comparison in self.comparisons)


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with its verdict and the numbers behind it."""

    claim: Claim
    verdict: Verdict
    checks: tuple[AnsweredCheck, ...]
    weaker: tuple[AnsweredCheck, ...]

    @property
    def id(self) -> str:
        """Of the claim."""
        return self.claim.id


class Tables:
    """The rows of a table of scores, made once for each choice of headings."""

    def __init__(self, scores: Scores) -> None:
        self._scores = scores
        self._differences = None if scores.is_published else Differences(scores)
        self._tables: dict[tuple[str, ...], Table] = {}

    def under(self, groups: tuple[str, ...]) -> Table:
        """Return the rows of models under some headings; under any where none is given."""
        if groups not in self._tables:
            self._tables[groups] = table_of(
                self._scores, groups=groups or None, differences=self._differences
            )
        return self._tables[groups]


def judge(claim: Claim, tables: Tables) -> JudgedClaim:
    """Answer a claim from a table of scores, and from nothing else."""
    checks = tuple(answer(check, tables) for check in claim.checks)
    weaker = tuple(answer(check, tables) for check in claim.weaker)
    strong = all_hold([check.holds for check in checks])
    if strong is True:
        return JudgedClaim(claim, "true", checks, weaker)
    weak = all_hold([check.holds for check in weaker]) if weaker else _some(checks)
    if strong is False and weak is not None:
        return JudgedClaim(claim, "partly" if weak else "false", checks, weaker)
    # A weaker form that fails does not make a claim false whose stronger form is open.
    return JudgedClaim(claim, "undecided", checks, weaker)


def answer(check: Check, tables: Tables) -> AnsweredCheck:
    """Answer one check."""
    groups = check.where.group.values if check.where.group else ()
    table, notes = tables.under(tuple(str(group) for group in groups)), Notes()
    rows = rows_of(check, table, notes)
    comparisons = tuple(_ask(check, rows, table, notes)) if rows else ()
    absent = len(notes.missing)
    reasons = [c.missing for c in comparisons] or [row.missing for row in rows]
    missing = [*notes.missing, *filter(None, reasons)]
    if not comparisons and not missing:
        missing.append("no model that the check is about")
    return AnsweredCheck(
        check=check,
        comparisons=comparisons,
        num_absent=absent,
        holds=holds(check.hold, comparisons, absent),
        bound=tuple(notes.bound),
        missing=tuple(dict.fromkeys(missing)),
    )


def _ask(check: Check, rows: Sequence[Row], table: Table, notes: Notes) -> list[Comparison]:
    question = check.question
    if isinstance(question, Compare):
        return answer_compare(question, rows, table, notes)
    if isinstance(question, Trend):
        return answer_trend(question, rows, table, notes)
    if isinstance(question, Varies):
        return answer_varies(question, rows, table, notes)
    return answer_extreme(question, rows, table, notes, is_best=check.best is not None)


def holds(hold: Hold, comparisons: Sequence[Comparison], absent: int) -> bool | None:
    """Tell whether enough comparisons hold; None where unknown ones decide."""
    if not comparisons:
        return None
    held = sum(comparison.holds is True for comparison in comparisons)
    unknown = sum(comparison.holds is None for comparison in comparisons) + absent
    if hold.most_often:
        return _most_often(comparisons, held, unknown)
    total = len(comparisons) + absent
    if hold.at_most is not None:
        most = needed(hold, total)
        if held > most:
            return False
        return True if held + unknown <= most else None
    least = needed(hold, total)
    if held >= least:
        return True
    return False if held + unknown < least else None


def needed(hold: Hold, total: int) -> int:
    """Return how many comparisons must hold, or may at most."""
    number = hold.at_least if hold.at_most is None else hold.at_most
    if number is None:
        return total
    if isinstance(number, int):
        return number
    top, bottom = share_of(number, where="hold")
    return top * total // bottom if hold.at_most is not None else -(-top * total // bottom)


def _most_often(comparisons: Sequence[Comparison], held: int, unknown: int) -> bool | None:
    others = Counter(
        comparison.winner
        for comparison in comparisons
        if comparison.holds is False and comparison.winner is not None
    )
    rival = max(others.values(), default=0)
    if held > rival + unknown:
        return True
    return False if held + unknown <= rival else None


def _some(checks: Sequence[AnsweredCheck]) -> bool | None:
    """Tell whether any comparison holds that should.

    A check that allows a number at most holds in an empty table too: it counts only where there
    are no others.
    """
    positive = [check for check in checks if check.check.hold.at_most is None]
    found = [comparison.holds for check in positive for comparison in check.comparisons]
    found += [None for check in positive for _ in range(check.num_absent)]
    if not positive:
        found = [check.holds for check in checks]
    if True in found:
        return True
    return None if None in found or not found else False
