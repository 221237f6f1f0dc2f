"""Results of claims as lines of text, as Markdown and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from biphasic.analysis.claims.check import Check, Verdict
from biphasic.analysis.claims.claim import ClaimResult
from biphasic.analysis.estimate import METHODS
from biphasic.analysis.records import Problem
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.tables.markup import markdown_text
from biphasic.analysis.text import flat
from biphasic.analysis.words import environment, words
from biphasic.shown import Shown

REPORT_FORMAT = "biphasic.claims-report/2"
_ANSWERS = {True: "holds", False: "fails", None: "unknown"}
_MOST = {"for": 2, "against": 3, "open": 2}
_ORDER = {"undecided": 1, "no data": 2}
Changes = Mapping[str, tuple[Verdict, Verdict]]


def _record(check: Check) -> dict[str, Any]:
    names = ("expected", "needed", "weaker", "holds", "missing")
    return {name: getattr(check, name) for name in names} | {
        "comparisons": [
            {"where": check.where(one), "text": one.text, "holds": one.holds}
            for one in check.comparisons
        ]
    }


def body_lines(result: ClaimResult, *, with_details: bool) -> list[str]:
    """Write the numbers of one claim."""
    return words().claim_body(result, with_details, _ANSWERS, _MOST).splitlines()


def closing_lines(results: Sequence[ClaimResult], scores: Scores, changes: Changes) -> list[str]:
    """Write the tally, the effect of the other convention, and how to read both."""
    is_complete = all(score.is_complete for score in scores.cells.values())
    counts = tally(results)
    closing = words().claims_closing(scores, counts, len(results), changes, METHODS, is_complete)
    return closing.splitlines()


def tally(results: Sequence[ClaimResult]) -> dict[str, int]:
    """Count verdicts."""
    counts = Counter(result.verdict for result in results)
    return {verdict: counts[verdict] for verdict in get_args(Verdict)}


def _decided_first(results: Sequence[ClaimResult]) -> list[ClaimResult]:
    return sorted(results, key=lambda result: _ORDER.get(result.verdict, 0))


@dataclass(frozen=True, repr=False)
class CheckedClaims(Shown):
    """What `claims` returns: claims and their verdicts.

    Attributes:
        results: Each claim with its checks.
        scores: The table of scores they were checked on.
        changes: Verdicts that depend on the convention: by `paper` and by `standard`.
        problems: Problems of the records.
    """

    results: tuple[ClaimResult, ...]
    scores: Scores
    changes: Changes
    problems: tuple[Problem, ...]

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each claim."""
        return [
            {
                "id": one.claim.id,
                "verdict": one.verdict,
                "claim": one.claim.text,
                "numbers": one.numbers,
                "missing": one.missing,
            }
            for one in self.results
        ]

    def to_json(self) -> dict[str, Any]:
        """Return everything, as `--json` prints it."""
        changes = self.changes.items()
        return {
            "format": REPORT_FORMAT,
            "source": self.scores.source,
            "convention": self.scores.convention,
            "counts": tally(self.results),
            "changes_with_convention": {
                name: {"paper": paper, "standard": standard} for name, (paper, standard) in changes
            },
            "claims": [
                {name: getattr(one.claim, name) for name in ("id", "text", "source", "reading")}
                | {
                    name: getattr(one, name)
                    for name in ("verdict", "numbers", "provisional", "scope", "missing")
                }
                | {"checks": [_record(check) for check in one.checks]}
                for one in self.results
            ],
        }

    def to_markdown(self, *, details: bool = False) -> str:
        """Return a page in Markdown, with a section for each claim."""
        made = environment()
        made.filters.update(text=markdown_text)
        return made.get_template("claims.md.j2").render(
            scores=self.scores,
            results=_decided_first(self.results),
            body=partial(body_lines, with_details=details),
            closing=closing_lines(self.results, self.scores, self.changes),
        )

    def lines(self, *, details: bool = False) -> Iterator[str]:
        """Return the claims as plain lines, decided ones first."""
        for result in _decided_first(self.results):
            yield flat(f"{result.claim.id}, {result.verdict}: {result.claim.text}")
            yield from (f"  {line}" for line in body_lines(result, with_details=details))
            yield ""
        yield from closing_lines(self.results, self.scores, self.changes)
