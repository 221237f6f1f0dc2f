"""Claims of the paper and of users: Python functions that check a table, and their results.

Results are shown as lines of text, as Markdown and as JSON.
"""

from __future__ import annotations

import re
import runpy
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import resources
from itertools import zip_longest
from pathlib import Path
from typing import Any, get_args

from biphasic.analysis.claims.check import Check, Verdict, verdict_of
from biphasic.analysis.claims.rows import factor_text, level_text
from biphasic.analysis.claims.table import Table
from biphasic.analysis.estimate import METHODS, as_convention
from biphasic.analysis.records import Problem
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.tables.markup import markdown_text
from biphasic.analysis.text import flat, listing
from biphasic.analysis.words import environment, words
from biphasic.config import refuse_repeats
from biphasic.errors import BiphasicError, ConfigError
from biphasic.records import Convention
from biphasic.shown import Shown

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_SCOPE = ("size", "mask_rate", "steps", "continued_steps", "task")
_NEW_FORM = "claims are a Python file with functions under @claim(id, sentence); see docs/claims.md"


@dataclass(frozen=True)
class Claim:
    """A sentence, and the function that yields its checks on a table."""

    id: str
    text: str
    ask: Callable[[Table], Iterable[Check]]
    source: str = ""  # where the paper makes the claim
    reading: str = ""  # how the checks interpret the sentence, if it is ambiguous

    def checks(self, table: Table) -> tuple[Check, ...]:
        """Return the checks on a table; an error names the claim and the line."""
        code = self.ask.__code__
        with _named(Path(code.co_filename), code.co_firstlineno, f"claim '{self.id}': "):
            asked = self.ask(table)
            if not isinstance(asked, Iterable):
                raise ValueError(f"returns {asked!r:.60}; it must yield checks")
            checks = tuple(asked)
            for check in checks:
                if not isinstance(check, Check):
                    raise ValueError(f"yields {check!r}, which is not a check")
            if all(check.weaker for check in checks):
                raise ValueError("yields no check")
        return checks


def claim(
    id: str, text: str, *, source: str = "", reading: str = ""
) -> Callable[[Callable[[Table], Iterable[Check]]], Claim]:
    """Make a claim of the decorated function, which takes a table and yields checks.

    Raises:
        ValueError: The id or the sentence is empty, or the id is not a short name.
    """
    if not _ID.fullmatch(id) or not text:
        raise ValueError(f"@claim: give a short id of letters, digits, '.', '_' and '-' and a "
                         f"sentence, not {id!r}, {text!r}")  # fmt: skip

    def made(ask: Callable[[Table], Iterable[Check]]) -> Claim:
        new = Claim(id, text, ask, source, reading)
        # A list per file, because functions may share a name.
        ask.__globals__.setdefault("__claims__", []).append(new)
        return new

    return made


@lru_cache(maxsize=1)
def paper_claims() -> tuple[Claim, ...]:
    """Return the 28 claims of arXiv:2507.00994 and one of a blog post about it."""
    package = resources.files("biphasic.analysis")
    with resources.as_file(package.joinpath("reference", "claims.py")) as path:
        return load_claims(path)


def load_claims(path: Path) -> tuple[Claim, ...]:
    """Run a Python file and return its claims; an error names the file and the line."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    if path.suffix != ".py":
        raise ConfigError(f"{path}: {_NEW_FORM}")
    with _named(path):
        claims = runpy.run_path(str(path)).get("__claims__", [])
    if not claims:
        raise ConfigError(f"{path}: no claims; {_NEW_FORM}")
    try:
        refuse_repeats("id", [entry.id for entry in claims])
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    return tuple(claims)


@contextmanager
def _named(path: Path, first_line: int | None = None, what: str = "") -> Iterator[None]:
    """Name the file, the line and the error if the user's code fails, even with `exit()`."""
    try:
        yield
    except (BiphasicError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001  # the code is the user's
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        line = lines[-1] if lines else getattr(error, "lineno", first_line)
        place = f"{path}, line {line}" if line else f"{path}"
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ConfigError(f"{place}: {what}{kind}{error}") from None


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
    def provisional(self) -> str:
        """How many comparisons use a score at an end of the learning rates; empty without any."""
        every = [one for check in self.checks for one in check.comparisons]
        return words().at_ends(sum(one.is_provisional for one in every), len(every))

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
