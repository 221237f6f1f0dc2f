"""Results of claims as lines of text, as Markdown and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from biphasic.analysis.claims.check import Check, Verdict
from biphasic.analysis.claims.report import ClaimResult
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.tables.markup import markdown_text
from biphasic.analysis.text import count, flat, listing

REPORT_FORMAT = "biphasic.claims-report/1"
_INTERVALS = {
    "paper": "1.96 standard errors (convention 'paper')",
    "standard": "Student's t (convention 'standard')",
}
_TESTED = (
    "A star marks a clear difference: a paired test over seeds, and over test examples if known, "
    "corrected for all pairs of models on the dataset, as in the report. Claims stay undecided "
    "where the tests do not decide."
)
_PUBLISHED = (
    "A star marks intervals that do not overlap, the paper's rule for significance: only means and "
    "half-widths are known. There is no correction for the number of comparisons."
)
_NO_EVIDENCE = (
    "A claim of no significant difference can be true because intervals are wide; that is no "
    "evidence of equality."
)
_ONE_RUN = (
    "Intervals are over fine-tuning seeds of one pretraining run per model, so verdicts on recipes "
    "are less certain than they look."
)
_ANSWERS = {True: "holds", False: "fails", None: "unknown"}
_MOST_MISSING = 3
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
        "claims": [_record(result) for result in results],
    }


def _record(result: ClaimResult) -> dict[str, Any]:
    return vars(result) | {
        form: [
            {
                "text": check.text,
                "needed": check.needed,
                "holds": check.holds,
                "comparisons": [
                    {"where": comparison.where, "text": comparison.text, "holds": comparison.holds}
                    for comparison in check.comparisons
                ],
                "missing": check.missing,
            }
            for check in checks
        ]
        for form, checks in (("checks", result.checks), ("weaker", result.weaker))
    }


def claims_lines(
    results: Sequence[ClaimResult], scores: Scores, changes: Changes, *, with_details: bool
) -> Iterator[str]:
    """Write claims as plain lines, decided ones first."""
    for result in _decided_first(results):
        yield flat(f"{result.id}, {result.verdict}: {result.text}")
        for line in body_lines(result, with_details=with_details):
            yield f"  {flat(line)}"
        yield ""
    for line in closing_lines(results, scores, changes):
        yield flat(line)


def body_lines(result: ClaimResult, *, with_details: bool) -> Iterator[str]:
    """Write the numbers of one claim."""
    if result.reading:
        yield f"reading: {result.reading}"
    if result.scope:
        yield f"{result.numbers}; {result.scope}"
    if result.bound:
        yield f"read as {'; '.join(result.bound)}"
    if with_details:
        for check in (*result.checks, *result.weaker):
            yield from _check_lines(check)
    else:
        for text in result.support:
            yield f"for: {text}"
        for text in result.exceptions:
            yield f"against: {text}"
    shown = result.missing if with_details else result.missing[:_MOST_MISSING]
    for text in shown:
        yield f"missing: {text}"
    if len(shown) < len(result.missing):
        yield f"missing: and {len(result.missing) - len(shown)} more"


def _check_lines(check: Check) -> Iterator[str]:
    form = "weaker form, " if check.is_weaker else ""
    yield f"{form}{check.text} ({check.needed}): {_ANSWERS[check.holds]}"
    for comparison in check.comparisons:
        where = f"{comparison.where}: " if comparison.where else ""
        yield f"- {_ANSWERS[comparison.holds]}: {where}{comparison.text}"


def closing_lines(
    results: Sequence[ClaimResult], scores: Scores, changes: Changes
) -> Iterator[str]:
    """Write the tally, the effect of the other convention, and how to read both."""
    counts = [f"{number} {verdict}" for verdict, number in tally(results).items() if number]
    texts = [
        f"{name} is {paper} by 1.96 standard errors and {standard} by Student's t"
        for name, (paper, standard) in changes.items()
    ]
    changed = "No verdict changes with the other convention."
    if texts:
        changed = f"Verdicts that depend on the convention: {listing(texts)}."
    yield f"{scores.source}: {count(len(results), 'claim')}, {listing(counts)}."
    yield f"Intervals are 95 % with {_INTERVALS[scores.convention]}. {changed}"
    if not scores.is_published:
        yield _TESTED
    else:
        yield _PUBLISHED
        if any("not significantly" in check.text for one in results for check in one.checks):
            yield _NO_EVIDENCE
    if scores.num_pretraining_runs == 1:
        yield _ONE_RUN


def claims_markdown(
    results: Sequence[ClaimResult], scores: Scores, changes: Changes, *, with_details: bool
) -> str:
    """Write claims as a Markdown document with one table."""
    lines = [
        f"# Claims: {markdown_text(scores.source)}",
        "",
        "| Claim | Verdict | Sentence | Numbers |",
        "|:--|:--|:--|:--|",
    ]
    for result in _decided_first(results):
        numbers = [*body_lines(result, with_details=False)]
        cells = (result.id, result.verdict, result.text)
        shown = [markdown_text(text) for text in cells]
        lines.append(f"| {' | '.join([*shown, '<br>'.join(map(markdown_text, numbers))])} |")
    if with_details:
        for result in results:
            lines += ["", f"## {markdown_text(result.id)}: {result.verdict}", ""]
            lines += [f"{markdown_text(result.text)} ({markdown_text(result.source)})", ""]
            for check in (*result.checks, *result.weaker):
                texts = [*_check_lines(check)]
                lines.append(f"- {markdown_text(texts[0])}")
                lines += [f"  - {markdown_text(text.removeprefix('- '))}" for text in texts[1:]]
    closing = [markdown_text(line) for line in closing_lines(results, scores, changes)]
    return "\n".join([*lines, "", "\n\n".join(closing)]) + "\n"


def tally(results: Sequence[ClaimResult]) -> dict[str, int]:
    """Count verdicts."""
    counts = Counter(result.verdict for result in results)
    return {verdict: counts[verdict] for verdict in get_args(Verdict)}


def _decided_first(results: Sequence[ClaimResult]) -> list[ClaimResult]:
    return sorted(results, key=lambda result: _ORDER.get(result.verdict, 0))
