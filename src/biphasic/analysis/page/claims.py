"""The reference study's claims, checked on a study."""

from __future__ import annotations

from dataclasses import dataclass

from biphasic.analysis.claims import ClaimResult, changed_verdicts, claims_report
from biphasic.analysis.claims.render import tally
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.text import count

MOST_COMPARISONS = 40
"""Maximum comparisons of one check on the page; `biphasic claims` prints all."""


@dataclass(frozen=True)
class Claims:
    """Claims with comparisons, and those without."""

    spoken: tuple[ClaimResult, ...]
    silent: tuple[ClaimResult, ...]
    otherwise: dict[str, str]
    """Verdicts by the other convention that differ, by the id of the claim."""

    @property
    def hint(self) -> str:
        """Count the verdicts."""
        if not self.spoken:
            return "none of the reference study's claims can be checked on this study"
        parts = [f"{number} {verdict}" for verdict, number in tally(self.spoken).items() if number]
        return f"{count(len(self.spoken), 'claim')} of the reference study: {', '.join(parts)}"


def study_claims(scores: Scores) -> Claims:
    """Check the claims of the reference study on a table of scores."""
    results = claims_report(scores)
    other = "standard" if scores.convention == "paper" else "paper"
    return Claims(
        spoken=tuple(result for result in results if _has_answer(result)),
        silent=tuple(result for result in results if not _has_answer(result)),
        otherwise={
            name: f"{standard if other == 'standard' else paper} by convention '{other}'"
            for name, (paper, standard) in changed_verdicts(scores).items()
        },
    )


def _has_answer(result: ClaimResult) -> bool:
    checks = (*result.checks, *result.weaker)
    return any(one.holds is not None for check in checks for one in check.comparisons)
