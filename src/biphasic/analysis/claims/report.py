"""Results of claims as plain texts, for terminals, files and the HTML report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from biphasic.analysis.claims.ask import Table
from biphasic.analysis.claims.check import Check, Verdict, verdict_of
from biphasic.analysis.claims.claim import Claim, paper_claims
from biphasic.analysis.claims.questions import Comparison
from biphasic.analysis.claims.table import level_text
from biphasic.analysis.estimate import as_convention
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.text import listing
from biphasic.records import Convention

_PLACES = {
    "task": "{}", "dataset": "{}", "size": "{}", "objective": "{}", "start": "from {}",
    "mask_rate": "masking rate {}", "steps": "{} steps", "clm_share": "CLM {}",
    "continued_steps": "{} continued steps", "replicate": "run {}",
}  # fmt: skip
_SCOPE = {"size": "size", "mask_rate": "masking rate", "steps": "steps", "task": "task"}
_MOST_EXAMPLES = {True: 2, False: 3}


@dataclass(frozen=True)
class ClaimResult:
    """A claim, its verdict and its numbers; all texts are unescaped.

    Attributes:
        numbers: How many comparisons hold, in one line.
        support: A few comparisons that support the claim; `exceptions` contradict it.
        scope: Sizes, rates, steps and tasks of the comparisons.
        bound: Levels that the claim's relative words mean in this table.
        missing: What is needed for a verdict, or for a more certain one.
        weaker: Checks that decide between partly and false; without any, one comparison does.
    """

    id: str
    text: str
    source: str
    reading: str
    verdict: Verdict
    numbers: str
    support: tuple[str, ...]
    exceptions: tuple[str, ...]
    scope: str
    bound: tuple[str, ...]
    missing: tuple[str, ...]
    checks: tuple[Check, ...]
    weaker: tuple[Check, ...]


def claims_report(
    scores: Scores, *, claims: Sequence[Claim] | None = None
) -> tuple[ClaimResult, ...]:
    """Check claims, by default the paper's, on a table of scores."""
    table = Table(scores)
    return tuple(_result(claim, table) for claim in (paper_claims() if claims is None else claims))


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
        one.id: (one.verdict, other.verdict)
        for one, other in zip(paper, standard, strict=True)
        if one.verdict != other.verdict
    }


def _result(claim: Claim, table: Table) -> ClaimResult:
    every = [_placed(check) for check in claim.checks(table)]
    checks, weaker = (tuple(c for c in every if c.is_weaker is form) for form in (False, True))
    every = [*checks, *weaker]
    return ClaimResult(
        id=claim.id,
        text=claim.text,
        source=claim.source,
        reading=claim.reading,
        verdict=verdict_of(checks, weaker),
        numbers="; ".join(check.count for check in checks),
        support=_examples(checks, speak_for=True),
        exceptions=_examples(checks, speak_for=False),
        scope=_scope([comparison for check in checks for comparison in check.comparisons]),
        bound=tuple(dict.fromkeys(text for check in every for text in check.bound)),
        missing=tuple(dict.fromkeys(text for check in every for text in check.missing)),
        checks=checks,
        weaker=weaker,
    )


def _placed(check: Check) -> Check:
    """Add to comparisons the factors that distinguish each from the others, as text."""
    every = [comparison.factors for comparison in check.comparisons]
    names = [
        factor
        for factor in _PLACES
        if factor in {"task", "size"} or len({factors.get(factor) for factors in every}) > 1
    ]

    def where(factors: Mapping[str, Any]) -> str:
        levels = [(name, factors.get(name)) for name in names]
        return ", ".join(
            _PLACES[name].format(level_text(name, level))
            for name, level in levels
            if level not in {None, ""}
        )

    placed = (replace(one, where=one.where or where(one.factors)) for one in check.comparisons)
    return replace(check, comparisons=tuple(placed))


def _examples(checks: Sequence[Check], *, speak_for: bool) -> tuple[str, ...]:
    """Return comparisons for or against a claim: first one of each check, then the rest."""
    # With a maximum, a comparison that holds speaks against the claim.
    columns = [
        [
            f"{one.where}: {one.text}" if one.where else one.text
            for one in check.comparisons
            if one.holds is (speak_for or check.at_most is not None)
        ]
        for check in checks
        if not (speak_for and check.at_most is not None)
    ]
    every = [text for row in zip_longest(*columns) for text in row if text is not None]
    texts, most = [*dict.fromkeys(every)], _MOST_EXAMPLES[speak_for]
    hidden = len(texts) - most
    return (*texts[:most], *([f"and {hidden} more"] if hidden > 0 else []))


def _scope(comparisons: Sequence[Comparison]) -> str:
    parts, decided = [], [one for one in comparisons if one.holds is not None]
    for factor, name in _SCOPE.items():
        places = [(one.factors.get(factor), *(getattr(r, factor) for r in one.rows))
                  for one in decided]  # fmt: skip
        levels = dict.fromkeys(level for place in places for level in place)
        numbers = sorted(level for level in levels if isinstance(level, float))
        if shown := [level_text(factor, level) for level in numbers or levels if level]:
            parts.append(f"{name} {listing(shown)}")
    return "; ".join(parts)
