"""The reference study's claims, checked on a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from biphasic.analysis.claims import ClaimResult, changed_verdicts, claims_report
from biphasic.analysis.claims.check import Check
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.text import count

MOST_COMPARISONS = 40
"""Maximum comparisons of one check on the page; `biphasic claims` prints all."""


@dataclass(frozen=True)
class ClaimRow:
    """A claim that the study has data for."""

    id: str
    text: str
    source: str
    reading: str
    verdict: str
    otherwise: str
    """Verdict by the other convention, if it differs."""
    numbers: str
    scope: str
    checks: tuple[Check, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Claims:
    """Claims with comparisons, and those without."""

    spoken: tuple[ClaimRow, ...]
    silent: tuple[ClaimResult, ...]

    @property
    def hint(self) -> str:
        """Count the verdicts."""
        if not self.spoken:
            return "none of the reference study's claims can be checked on this study"
        verdicts = [row.verdict for row in self.spoken]
        parts = [f"{verdicts.count(v)} {v}" for v in ("true", "partly", "false", "undecided")
                 if v in verdicts]  # fmt: skip
        return f"{count(len(verdicts), 'claim')} of the reference study: {', '.join(parts)}"


def study_claims(scores: Scores) -> Claims:
    """Check the claims of the reference study on a table of scores."""
    results = claims_report(scores)
    changed = changed_verdicts(scores)
    spoken = [result for result in results if _has_answer(result)]
    return Claims(
        spoken=tuple(_row(result, scores, changed) for result in spoken),
        silent=tuple(result for result in results if not _has_answer(result)),
    )


def _has_answer(result: ClaimResult) -> bool:
    checks = (*result.checks, *result.weaker)
    return any(one.holds is not None for check in checks for one in check.comparisons)


def _row(result: ClaimResult, scores: Scores, changed: Mapping[str, tuple[str, str]]) -> ClaimRow:
    otherwise = ""
    if result.id in changed:
        other = "standard" if scores.convention == "paper" else "paper"
        verdict = dict(zip(("paper", "standard"), changed[result.id], strict=True))[other]
        otherwise = f"{verdict} by convention '{other}'"
    return ClaimRow(
        id=result.id,
        text=result.text,
        source=result.source,
        reading=result.reading,
        verdict=result.verdict,
        otherwise=otherwise,
        numbers=result.numbers,
        scope="; ".join(part for part in (result.scope, *result.bound) if part),
        checks=result.checks,
        missing=result.missing,
    )
