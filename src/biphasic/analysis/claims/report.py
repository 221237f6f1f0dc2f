"""Claims checked on a table of scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from biphasic.analysis.claims.check import Check, Verdict, verdict_of
from biphasic.analysis.claims.claim import Claim, paper_claims
from biphasic.analysis.claims.rows import factor_text, level_text
from biphasic.analysis.claims.table import Table
from biphasic.analysis.estimate import as_convention
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.text import listing
from biphasic.records import Convention

_SCOPE = ("size", "mask_rate", "steps", "continued_steps", "task")


@dataclass(frozen=True)
class ClaimResult:
    """A claim with its checks on a table; all texts are unescaped."""

    claim: Claim
    checks: tuple[Check, ...]  # first those of the claim itself, then those of its weaker form

    @property
    def verdict(self) -> Verdict:
        """What the checks say about the claim."""
        return verdict_of(self.checks)

    @property
    def strong(self) -> list[Check]:
        """The checks of the claim itself."""
        return [check for check in self.checks if not check.weaker]

    @property
    def numbers(self) -> str:
        """How many comparisons hold, in one line."""
        return "; ".join(check.count for check in self.strong)

    @property
    def missing(self) -> str:
        """What the table lacks for a verdict, or for a more certain one: the first reason."""
        reasons = dict.fromkeys(text for check in self.checks for text in check.missing)
        more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        return next(iter(reasons), "") + more

    @property
    def scope(self) -> str:
        """Sizes, rates, steps and tasks of the comparisons that are decided."""
        decided = [c for check in self.strong for c in check.comparisons if c.holds is not None]
        parts = []
        for factor in _SCOPE:
            levels = dict.fromkeys(
                level
                for one in decided
                for level in (one.factors.get(factor), *(getattr(row, factor) for row in one.rows))
            )
            numbers = sorted(level for level in levels if isinstance(level, float))
            if shown := [level_text(factor, level) for level in numbers or levels if level]:
                parts.append(f"{factor_text(factor)} {listing(shown)}")
        return "; ".join(parts)

    def lines(self, side: str) -> list[str]:
        """Return the comparisons on a side, as `Check.side`: first one of each check."""
        columns = [
            [check.line(one) for one in check.comparisons if check.side(one) == side]
            for check in self.strong
        ]
        return [*dict.fromkeys(text for row in zip_longest(*columns) for text in row if text)]


def claims_report(
    scores: Scores, *, claims: Sequence[Claim] | None = None
) -> tuple[ClaimResult, ...]:
    """Check claims, by default the paper's, on a table of scores."""
    table = Table(scores)
    return tuple(
        ClaimResult(claim, tuple(sorted(claim.checks(table), key=lambda check: check.weaker)))
        for claim in (paper_claims() if claims is None else claims)
    )


def restated(scores: Scores, convention: Convention) -> Scores:
    """Return a table of scores with intervals of another convention."""
    cells = {
        key: replace(
            score,
            estimate=score.estimate
            and as_convention(score.estimate, source=scores.convention, target=convention),
        )
        for key, score in scores.cells.items()
    }
    return replace(scores, cells=cells, convention=convention)


def changed_verdicts(
    scores: Scores, *, claims: Sequence[Claim] | None = None
) -> dict[str, tuple[Verdict, Verdict]]:
    """Return the claims whose verdict depends on the convention: `paper`, `standard`."""
    if not scores.is_published:
        return {}  # tests over seeds use Student's t with either convention
    paper = claims_report(restated(scores, "paper"), claims=claims)
    standard = claims_report(restated(scores, "standard"), claims=claims)
    return {
        one.claim.id: (one.verdict, other.verdict)
        for one, other in zip(paper, standard, strict=True)
        if one.verdict != other.verdict
    }
