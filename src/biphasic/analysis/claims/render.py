"""Results of claims as lines of text, as Markdown and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from biphasic.analysis.claims.check import Check, Verdict
from biphasic.analysis.claims.claim import ClaimResult
from biphasic.analysis.estimate import METHODS
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.tables.markup import markdown_text
from biphasic.analysis.text import count, flat, listing

REPORT_FORMAT = "biphasic.claims-report/2"
_TESTED = (
    "A star marks a clear difference: a paired test over seeds, and over test examples if known, "
    "corrected for all pairs of models on the dataset, as in the report. Claims stay undecided "
    "where the tests do not decide."
)
_BY_EXAMPLE = (
    "A star marks a clear difference: a paired test over test examples, corrected for all pairs of "
    "models on the dataset. Claims stay undecided where the tests do not decide."
)
_PUBLISHED = (
    "A star marks intervals that do not overlap, the paper's rule for significance: only means and "
    "half-widths are known. There is no correction for the number of comparisons. A claim of no "
    "significant difference can be true because intervals are wide; that is no evidence of "
    "equality."
)
_INCOMPLETE = "Some runs are missing or diverged, so verdicts may change."
_ONE_RUN = (
    "Intervals are over fine-tuning seeds of one pretraining run per model, so verdicts on recipes "
    "are less certain than they look."
)
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
        for line in body_lines(result, with_details=with_details):
            yield f"  {flat(line)}"
        yield ""
    for line in closing_lines(results, scores, changes):
        yield flat(line)


def body_lines(result: ClaimResult, *, with_details: bool) -> Iterator[str]:
    """Write the numbers of one claim."""
    if result.claim.reading:
        yield f"reading: {result.claim.reading}"
    if result.scope:
        yield f"{result.numbers}; {result.scope}"
    if result.provisional:
        yield f"provisional: {result.provisional}"
    if with_details:
        for check in result.checks:
            form = "weaker form: " if check.weaker else ""
            yield f"{form}{check.expected}: {check.count}: {_ANSWERS[check.holds]}"
            for one in check.comparisons:
                yield f"- {_ANSWERS[one.holds]}: {check.line(one)}"
    else:
        for side, most in _MOST.items():
            lines = result.lines(side)
            hidden = [f"and {len(lines) - most} more"] if len(lines) > most else []
            yield from (f"{side}: {text}" for text in (*lines[:most], *hidden))
    if result.missing:
        yield f"missing: {result.missing}"


def closing_lines(
    results: Sequence[ClaimResult], scores: Scores, changes: Changes
) -> Iterator[str]:
    """Write the tally, the effect of the other convention, and how to read both."""
    counts = [f"{number} {verdict}" for verdict, number in tally(results).items() if number]
    texts = [
        f"{name} is {paper} by {METHODS['paper']} and {standard} by {METHODS['standard']}"
        for name, (paper, standard) in changes.items()
    ]
    changed = "No verdict changes with the other convention."
    if texts:
        changed = f"Verdicts that depend on the convention: {listing(texts)}."
    yield f"{scores.source}: {count(len(results), 'claim')}, {listing(counts)}."
    if scores.is_by_example:
        yield _BY_EXAMPLE
        return
    how = f"{METHODS[scores.convention]} (convention '{scores.convention}')"
    yield f"Intervals are 95 % with {how}. {changed}"
    yield _PUBLISHED if scores.is_published else _TESTED
    if not all(score.is_complete for score in scores.cells.values()):
        yield _INCOMPLETE
    if not scores.is_replicated and scores.is_finetuned:
        yield _ONE_RUN


def claims_markdown(
    results: Sequence[ClaimResult], scores: Scores, changes: Changes, *, with_details: bool
) -> str:
    """Write claims as a Markdown document with a section for each."""
    lines = [f"# Claims: {markdown_text(scores.source)}"]
    for result in _decided_first(results):
        lines += ["", f"## {markdown_text(result.claim.id)}: {result.verdict}", ""]
        lines += [f"{markdown_text(result.claim.text)} ({markdown_text(result.claim.source)})", ""]
        body = body_lines(result, with_details=with_details)
        lines += [f"- {markdown_text(text.removeprefix('- '))}" for text in body]
    for line in closing_lines(results, scores, changes):
        lines += ["", markdown_text(line)]
    return "\n".join(lines) + "\n"


def tally(results: Sequence[ClaimResult]) -> dict[str, int]:
    """Count verdicts."""
    counts = Counter(result.verdict for result in results)
    return {verdict: counts[verdict] for verdict in get_args(Verdict)}


def _decided_first(results: Sequence[ClaimResult]) -> list[ClaimResult]:
    return sorted(results, key=lambda result: _ORDER.get(result.verdict, 0))
