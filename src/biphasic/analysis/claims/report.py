"""Results of claims as plain texts, for terminals, files and the HTML report."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

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
    """A claim, its verdict and its numbers; all texts are unescaped."""

    id: str
    text: str
    """The sentence."""
    source: str
    """Where the paper makes the claim."""
    reading: str
    """How the checks interpret the sentence, if it is ambiguous."""
    verdict: Verdict
    numbers: str
    """How many comparisons hold, in one line."""
    support: tuple[str, ...]
    """A few comparisons that support the claim."""
    exceptions: tuple[str, ...]
    """A few comparisons that contradict it."""
    scope: str
    """Sizes, rates, steps and tasks of the comparisons."""
    bound: tuple[str, ...]
    """Levels that the claim's relative words mean in this table."""
    missing: tuple[str, ...]
    """What is needed for a verdict, or for a more certain one."""
    checks: tuple[Check, ...]
    weaker: tuple[Check, ...]
    """Checks that decide between partly true and false; without any, one comparison does."""


def claims_report(
    scores: Scores, *, claims: Sequence[Claim] | None = None
) -> tuple[ClaimResult, ...]:
    """Check claims on a table of scores.

    The default claims are the paper's.

    Raises:
        ConfigError: The function of a claim fails.
    """
    table = Table(scores)
    return tuple(_result(claim, table) for claim in (paper_claims() if claims is None else claims))


def restated(scores: Scores, convention: Convention) -> Scores:
    """Return a table of scores with intervals of another convention."""
    cells = {
        key: dataclasses.replace(
            score,
            estimate=score.estimate
            and as_convention(score.estimate, source=scores.convention, target=convention),
        )
        for key, score in scores.cells.items()
    }
    return dataclasses.replace(scores, cells=cells, convention=convention)


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
    answered = [
        dataclasses.replace(check, comparisons=_placed(check.comparisons))
        for check in claim.checks(table)
    ]
    checks = tuple(check for check in answered if not check.is_weaker)
    weaker = tuple(check for check in answered if check.is_weaker)
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
        bound=tuple(dict.fromkeys(text for c in (*checks, *weaker) for text in c.bound)),
        missing=tuple(dict.fromkeys(text for c in (*checks, *weaker) for text in c.missing)),
        checks=checks,
        weaker=weaker,
    )


def _placed(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return comparisons with the factors that distinguish each from the others."""
    names = [
        factor
        for factor in _PLACES
        if len({comparison.factors.get(factor) for comparison in comparisons}) > 1
        or factor in {"task", "size"}
    ]
    return tuple(
        comparison if comparison.where else dataclasses.replace(comparison, where=", ".join(
            _PLACES[name].format(level_text(name, level))
            for name in names
            if (level := comparison.factors.get(name)) is not None and level != ""
        ))
        for comparison in comparisons
    )  # fmt: skip


def _examples(checks: Sequence[Check], *, speak_for: bool) -> tuple[str, ...]:
    """Return comparisons for or against a claim: first one of each check, then the rest."""
    columns = [
        [
            f"{comparison.where}: {comparison.text}" if comparison.where else comparison.text
            for comparison in check.comparisons
            # With a maximum, a comparison that holds speaks against the claim.
            if comparison.holds is (speak_for or check.at_most is not None)
        ]
        for check in checks
        if not (speak_for and check.at_most is not None)
    ]
    rows = zip_longest(*columns)
    texts = list(dict.fromkeys(text for row in rows for text in row if text is not None))
    most = _MOST_EXAMPLES[speak_for]
    hidden = len(texts) - most
    return (*texts[:most], *([f"and {hidden} more"] if hidden > 0 else []))


def _scope(comparisons: Sequence[Comparison]) -> str:
    parts = []
    for factor, name in _SCOPE.items():
        levels = dict.fromkeys(
            level
            for comparison in comparisons
            if comparison.holds is not None
            for level in (
                comparison.factors.get(factor), *(getattr(row, factor) for row in comparison.rows)
            )
        )  # fmt: skip
        numbers = sorted(level for level in levels if isinstance(level, float))
        if shown := [level_text(factor, level) for level in numbers or levels if level]:
            parts.append(f"{name} {listing(shown)}")
    return "; ".join(parts)
