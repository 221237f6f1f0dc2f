"""Judged claims as plain texts, for terminals, files and the HTML report."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from biphasic.analysis.claims.answers import Comparison
from biphasic.analysis.claims.language import (
    Check,
    Claim,
    Compare,
    Extreme,
    Trend,
    Varies,
)
from biphasic.analysis.claims.load import paper_claims
from biphasic.analysis.claims.narrow import (
    describe,
    describe_levels,
    factor_name,
    level_text,
)
from biphasic.analysis.claims.rows import REPLICATE, Level
from biphasic.analysis.claims.selection import Selection
from biphasic.analysis.claims.verdict import (
    AnsweredCheck,
    JudgedClaim,
    Tables,
    Verdict,
    judge,
    needed,
)
from biphasic.analysis.estimate import as_convention
from biphasic.analysis.score_table import Scores
from biphasic.analysis.text import listing
from biphasic.records import Convention

_SHOWN = ("task", "dataset", "size", "objective", "start", "mask_rate", "steps", "clm_share")
_SCOPE = {"size": "size", "mask_rate": "masking rate", "steps": "steps", "task": "task"}
_MOST_EXAMPLES = {True: 2, False: 3}


@dataclass(frozen=True)
class ComparisonResult:
    """One comparison."""

    where: str
    """What it is of, such as `SC, 210M`; empty where there is but one."""
    text: str
    """The numbers; a star marks a clear difference, or intervals that do not overlap."""
    holds: bool | None


@dataclass(frozen=True)
class CheckResult:
    """One check of a claim."""

    text: str
    """What was asked."""
    needed: str
    """How many comparisons must hold."""
    holds: bool | None
    comparisons: tuple[ComparisonResult, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class ClaimResult:
    """A claim, its verdict and its numbers; all texts are plain and unescaped."""

    id: str
    text: str
    """The sentence."""
    source: str
    """Where it is said."""
    reading: str
    """How the checks read the sentence, where it can be read in several ways."""
    verdict: Verdict
    numbers: str
    """How many comparisons hold, in one line."""
    support: tuple[str, ...]
    """Comparisons that speak for the claim, a few of them."""
    exceptions: tuple[str, ...]
    """Comparisons that speak against it, a few of them."""
    scope: str
    """Which sizes, rates, steps and tasks the comparisons are of."""
    bound: tuple[str, ...]
    """What relative words of the claim stand for in this table."""
    missing: tuple[str, ...]
    """What it would take to decide, or to decide more surely."""
    checks: tuple[CheckResult, ...]
    weaker: tuple[CheckResult, ...]
    """Decide between partly true and false; without any, one comparison that holds does."""


def claims_report(
    scores: Scores, *, claims: Sequence[Claim] | None = None
) -> tuple[ClaimResult, ...]:
    """Answer claims from a table of scores.

    Args:
        scores: Of a study, of other people's results, or of the paper.
        claims: Those of the paper when left out.
    """
    tables = Tables(scores)
    asked = paper_claims() if claims is None else claims
    return tuple(_result(judge(claim, tables)) for claim in asked)


def restated(scores: Scores, convention: Convention) -> Scores:
    """Return a table of scores with the intervals of another convention."""
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
    """Return the claims whose verdict differs between the conventions: `paper`, `standard`."""
    if not scores.is_published:
        return {}  # tests over seeds are those of Student in either
    paper = claims_report(restated(scores, "paper"), claims=claims)
    standard = claims_report(restated(scores, "standard"), claims=claims)
    return {
        one.id: (one.verdict, other.verdict)
        for one, other in zip(paper, standard, strict=True)
        if one.verdict != other.verdict
    }


def _result(judged: JudgedClaim) -> ClaimResult:
    claim = judged.claim
    answered = (*judged.checks, *judged.weaker)
    return ClaimResult(
        id=claim.id,
        text=claim.text,
        source=claim.source,
        reading=claim.reading,
        verdict=judged.verdict,
        numbers="; ".join(_count(check) for check in judged.checks),
        support=_examples(judged.checks, speak_for=True),
        exceptions=_examples(judged.checks, speak_for=False),
        scope=_scope([c for check in judged.checks for c in check.comparisons]),
        bound=tuple(dict.fromkeys(text for check in answered for text in check.bound)),
        missing=tuple(dict.fromkeys(text for check in answered for text in check.missing)),
        checks=tuple(_check_result(check) for check in judged.checks),
        weaker=tuple(_check_result(check) for check in judged.weaker),
    )


def _check_result(answered: AnsweredCheck) -> CheckResult:
    return CheckResult(
        text=check_text(answered.check),
        needed=_needed(answered),
        holds=answered.holds,
        comparisons=tuple(
            ComparisonResult(where, comparison.text, comparison.holds)
            for where, comparison in zip(
                _places(answered.comparisons), answered.comparisons, strict=True
            )
        ),
        missing=answered.missing,
    )


def _total(answered: AnsweredCheck) -> int:
    return len(answered.comparisons) + answered.num_absent


def _count(answered: AnsweredCheck) -> str:
    """Write `9 of 12 hold (at least 8 needed)`."""
    if not answered.comparisons:
        return "nothing to compare"
    unknown = sum(c.holds is None for c in answered.comparisons) + answered.num_absent
    open_ = f", {unknown} unknown" if unknown else ""
    counted = f"{answered.num_holding} of {_total(answered)} hold{open_} ({_needed(answered)})"
    return f"{counted}: {_winners(answered)}" if answered.check.hold.most_often else counted


def _winners(answered: AnsweredCheck) -> str:
    """Write how often each level was the best, or the worst."""
    question, found = answered.check.question, Counter(c.winner for c in answered.comparisons)
    factor = question.over if isinstance(question, Extreme) else ""
    counts = ", ".join(
        f"{level_text(factor, level)} ({number})"
        for level, number in found.most_common()
        if level is not None
    )
    return f"found were {counts or 'ties'}"


def _needed(answered: AnsweredCheck) -> str:
    hold, total = answered.check.hold, _total(answered)
    if hold.most_often:
        return "more often than any other needed"
    number = needed(hold, total)
    if hold.at_most is not None:
        return f"at most {number} allowed"
    return "all needed" if hold.at_least is None else f"at least {number} needed"


def _examples(checks: Sequence[AnsweredCheck], *, speak_for: bool) -> tuple[str, ...]:
    """Write comparisons that speak for, or against, a claim: of each check the first, and on."""
    columns = []
    for check in checks:
        is_limit = check.check.hold.at_most is not None
        if is_limit and speak_for:
            continue
        # What is allowed at most so often speaks against the claim where it holds.
        places = _places(check.comparisons)
        columns.append(
            [
                f"{where}: {comparison.text}" if where else comparison.text
                for where, comparison in zip(places, check.comparisons, strict=True)
                if comparison.holds is (speak_for or is_limit)
            ]
        )
    rows = zip_longest(*columns)
    found = list(dict.fromkeys(text for row in rows for text in row if text is not None))
    most = _MOST_EXAMPLES[speak_for]
    hidden = len(found) - most
    return (*found[:most], *([f"and {hidden} more"] if hidden > 0 else []))


def _places(comparisons: Sequence[Comparison]) -> list[str]:
    """Write for each comparison the factors by which it can be told from the others."""
    names = [
        factor
        for factor in (*_SHOWN, "continued_steps", REPLICATE)
        if len({comparison.factors.get(factor) for comparison in comparisons}) > 1
        or factor in {"task", "size"}
    ]
    return [
        _place({name: comparison.factors.get(name) for name in names}) for comparison in comparisons
    ]


def _place(factors: Mapping[str, Level | None]) -> str:
    texts = {
        "mask_rate": "masking rate {}",
        "steps": "{} steps",
        "clm_share": "CLM {}",
        "continued_steps": "{} continued steps",
        "start": "from {}",
        REPLICATE: "run {}",
    }
    return ", ".join(
        texts.get(name, "{}").format(level_text(name, level))
        for name, level in factors.items()
        if level is not None and level != ""
    )


def _scope(comparisons: Sequence[Comparison]) -> str:
    compared = [comparison for comparison in comparisons if comparison.holds is not None]
    parts = []
    for factor, name in _SCOPE.items():
        places = [
            factors for c in compared for factors in (c.factors, *(r.factors for r in c.rows))
        ]
        levels = dict.fromkeys(place.get(factor) for place in places)
        numbers = sorted(level for level in levels if isinstance(level, float))
        shown = [level_text(factor, level) for level in numbers or levels if level]
        if shown:
            parts.append(f"{name} {listing(shown)}")
    return "; ".join(parts)


def check_text(check: Check) -> str:
    """Write a check as people read it."""
    where = describe(check.where)
    return f"{where}: {_question(check)}" if where else _question(check)


def _question(check: Check) -> str:
    value, question = _value(check), check.question
    if isinstance(question, Compare):
        first, second = describe(question.first), describe(question.second)
        word = "from" if question.expect.endswith("different") else "than"
        looked_at = f"{value}, " if value else ""
        return f"{looked_at}{first}: {question.expect} {word} {second}"
    if isinstance(question, Trend):
        return f"{value or 'score'} {question.expect} along {factor_name(question.along)}"
    if isinstance(question, Varies):
        over = listing([factor_name(factor) for factor in question.over])
        return f"{value or 'score'} differs over {over}"
    return _extreme(question, value or "score", "highest" if check.best else "lowest")


def _extreme(question: Extreme, value: str, which: str) -> str:
    verb = "is" if question.expect is not None else "is not"
    over, sought = factor_name(question.over), describe_levels(question.sought)
    if question.across is None:
        return f"{over} of the {which} {value} {verb} {sought}"
    best = "best" if which == "highest" else "worst"
    return f"{over} of the {best} {question.by} over {question.across} {verb} {sought}"


def _value(check: Check) -> str:
    if check.value is None:
        return ""
    if check.value.difference is not None:
        difference = check.value.difference
        return f"{_side(difference.of)} minus {_side(difference.minus)}"
    return f"best {factor_name(check.value.best_level or '')}"


def _side(selection: Selection) -> str:
    text = describe(selection) or "any"
    return f"({text})" if ", " in text else text
