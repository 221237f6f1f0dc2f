"""Results of claims as lines of text, as Markdown and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, get_args

from biphasic.analysis.claims.check import Check, Verdict
from biphasic.analysis.claims.claim import ClaimResult
from biphasic.analysis.estimate import METHODS
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.tables.markup import markdown_text
from biphasic.analysis.text import flat
from biphasic.analysis.words import environment, words

REPORT_FORMAT = "biphasic.claims-report/2"
_ANSWERS = {True: "holds", False: "fails", None: "unknown"}
_MOST = {"for": 2, "against": 3, "open": 2}
_ORDER = {"undecided": 1, "no data": 2}
Changes = Mapping[str, tuple[Verdict, Verdict]]


def claims_json(results: Sequence[ClaimResult], scores: Scores, changes: Changes) -> dict[str, Any]:
    """Return everything as JSON."""
    return {
        "format": REPORT_FORMAT,
        "source": scores.source,
        "convention": scores.convention,
        "counts": tally(results),
        "changes_with_convention": {
            name: {"paper": paper, "standard": standard}
            for name, (paper, standard) in changes.items()
        },
        "claims": [
            {name: getattr(one.claim, name) for name in ("id", "text", "source", "reading")}
            | {
                name: getattr(one, name)
                for name in ("verdict", "numbers", "provisional", "scope", "missing")
            }
            | {"checks": [_record(check) for check in one.checks]}
            for one in results
        ],
    }


def _record(check: Check) -> dict[str, Any]:
    names = ("expected", "needed", "weaker", "holds", "missing")
    return {name: getattr(check, name) for name in names} | {
        "comparisons": [
            {"where": check.where(one), "text": one.text, "holds": one.holds}
            for one in check.comparisons
        ]
    }


def claims_lines(
    results: Sequence[ClaimResult], scores: Scores, changes: Changes, *, with_details: bool
) -> Iterator[str]:
    """Write claims as plain lines, decided ones first."""
    for result in _decided_first(results):
        yield flat(f"{result.claim.id}, {result.verdict}: {result.claim.text}")
        yield from (f"  {line}" for line in body_lines(result, with_details=with_details))
        yield ""
    yield from closing_lines(results, scores, changes)


def body_lines(result: ClaimResult, *, with_details: bool) -> list[str]:
    """Write the numbers of one claim."""
    return words().claim_body(result, with_details, _ANSWERS, _MOST).splitlines()


def closing_lines(results: Sequence[ClaimResult], scores: Scores, changes: Changes) -> list[str]:
    """Write the tally, the effect of the other convention, and how to read both."""
    is_complete = all(score.is_complete for score in scores.cells.values())
    counts = tally(results)
    closing = words().claims_closing(scores, counts, len(results), changes, METHODS, is_complete)
    return closing.splitlines()


def claims_markdown(
    results: Sequence[ClaimResult], scores: Scores, changes: Changes, *, with_details: bool
) -> str:
    """Write claims as a Markdown document with a section for each."""
    made = environment()
    made.filters.update(text=markdown_text)
    return made.get_template("claims.md.j2").render(
        scores=scores,
        results=_decided_first(results),
        body=partial(body_lines, with_details=with_details),
        closing=closing_lines(results, scores, changes),
    )


def tally(results: Sequence[ClaimResult]) -> dict[str, int]:
    """Count verdicts."""
    counts = Counter(result.verdict for result in results)
    return {verdict: counts[verdict] for verdict in get_args(Verdict)}


def _decided_first(results: Sequence[ClaimResult]) -> list[ClaimResult]:
    return sorted(results, key=lambda result: _ORDER.get(result.verdict, 0))
