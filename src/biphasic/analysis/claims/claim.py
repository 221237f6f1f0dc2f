"""Claims of the paper and of users: Python functions that check a table."""

from __future__ import annotations

import re
import runpy
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.analysis.claims.check import Check
from biphasic.analysis.claims.derived import at_equal_flops, mask_rate_spreads, rate_spreads
from biphasic.analysis.claims.differences import Differences
from biphasic.analysis.claims.questions import (
    COURSES,
    OUTCOMES,
    Asked,
    Comparison,
    Extreme,
    compare,
    trend,
    varies,
)
from biphasic.analysis.claims.table import (
    AVERAGE,
    FACTORS,
    ORDERED_FACTORS,
    POSITIONS,
    Rows,
    Selection,
    describe,
    factor_name,
    known,
    level_text,
    levels,
    rows_of,
    size_order,
    tidy,
)
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.text import listing
from biphasic.config import refuse_repeats
from biphasic.errors import BiphasicError, ConfigError
from biphasic.facts import facts_of

if TYPE_CHECKING:
    from pandas import DataFrame

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_NEW_FORM = "claims are a Python file with functions under @claim(id, sentence); see docs/claims.md"


class Table:
    """A table of scores, and the questions that claims can ask.

    Every question also takes these options:

    - Levels of factors, such as `steps="largest"`. A factor that a model does not have (CLM has no
      masking rate) does not exclude it.
    - `gap=(OF, MINUS)`, two selections: use one score minus another instead of the score.
    - `best_level=FACTOR`: use the level at which the score is highest.
    - `needs={FACTOR: NUMBER}`: leave the check open with fewer levels of a factor.
    - `at_least`, `at_most`: how many comparisons must, or may, hold: a number or a share.
    - `weaker=True`: the check decides between partly and false, not about true.

    They raise ValueError for invalid questions.
    """

    def __init__(self, scores: Scores, *, what: str = "") -> None:
        self._scores, self._what = scores, what
        self._sizes = size_order(scores.models)
        self._tests = None if scores.is_published else Differences(scores)
        self._rows_of: dict[tuple[str, ...], Rows] = {}

    @cached_property
    def rate_spreads(self) -> Table:
        """The spread of scores over learning rates of fine-tuning, in place of scores."""
        return Table(rate_spreads(self._scores), what="spread over learning rates")

    @cached_property
    def mask_rate_spreads(self) -> Table:
        """The spread of scores over masking rates, in place of scores."""
        return Table(mask_rate_spreads(self._scores), what="spread over masking rates")

    @cached_property
    def at_equal_flops(self) -> Table:
        """Intermediate states of CLM, and of MLM interpolated at their FLOPs."""
        return Table(at_equal_flops(self._scores), what="at equal FLOPs")

    def frame(self, *groups: str) -> DataFrame:
        """Return the scores of models under some headings, or of all; see `rows_of`."""
        return tidy(rows_of(self._scores, groups))

    def compare(self, first: Selection, second: Selection, expect: str, **options: Any) -> Check:
        """Compare every value of `first` with its counterparts in `second`.

        Scores of single seeds are tested, so a difference must be clear. In a published table, a
        difference is significant if the intervals do not overlap.
        """
        _refuse_significance(known(expect, OUTCOMES, "outcome"), options)
        ask = partial(compare, first=first, second=second, expect=expect)
        value, word = _value(options, ""), "from" if expect.endswith("different") else "than"
        text = f"{value and f'{value}, '}{describe(first)}: {expect} {word} {describe(second)}"
        return self._check(ask, text, sides=[first, second], **options)

    def trend(self, along: str, expect: str, **options: Any) -> Check:
        """Check the trend of values along a factor, from its smallest level to its largest."""
        _refuse_significance(known(expect, COURSES, "course"), options)
        ask = partial(trend, along=known(along, ORDERED_FACTORS), expect=expect)
        text = f"{_value(options)} {expect} along {factor_name(along)}"
        return self._check(ask, text, over=along, **options)

    def varies(self, *over: str, **options: Any) -> Check:
        """Check whether values differ at all along factors."""
        names = listing([factor_name(known(factor, FACTORS)) for factor in over])
        return self._check(
            partial(varies, over=over), f"{_value(options)} differs over {names}", **options
        )

    def best(self, over: str, sought: Any, **options: Any) -> Check:
        """Check whether the sought level, or levels, of a factor have the highest value.

        Args:
            over: The factor.
            sought: The levels.
            options: Also `is_not=True` (others must have it), `across=FACTOR` (aggregate over its
                levels, `by="mean"` or `by="mean rank"`) and `most_often=True` (the sought level
                must have it more often than any other).
        """
        return self._extreme(over, sought, is_best=True, **options)

    def worst(self, over: str, sought: Any, **options: Any) -> Check:
        """Check whether the sought levels of a factor have the lowest value; see `best`."""
        return self._extreme(over, sought, is_best=False, **options)

    def _extreme(
        self,
        over: str,
        sought: Any,
        *,
        is_best: bool,
        is_not: bool = False,
        across: str = "",
        by: str = "mean",
        most_often: bool = False,
        **options: Any,
    ) -> Check:
        sought_levels = levels(over, sought)
        if across in {over, "group"} or (by != "mean" and (by != "mean rank" or not across)):
            raise ValueError("give across=, another factor, and by='mean' or by='mean rank'")
        if "best_level" in options:
            raise ValueError("best and worst take scores or gaps, not best_level")
        which = f"{'highest' if is_best else 'lowest'} {_value(options)}"
        if across:
            which = f"{'best' if is_best else 'worst'} {by} over {known(across, FACTORS)}"
        verb = "is not" if is_not else "is"
        text = f"{factor_name(over)} of the {which} {verb} {sought_levels.text}"
        ask = Extreme(over, sought_levels, is_best, is_not, across, by == "mean rank")
        most = over if most_often else ""
        return self._check(ask, text, over=over, most_often=most, **options)

    def _check(
        self,
        ask: Callable[[Rows, Asked], Iterable[Comparison]],
        text: str,
        *,
        over: str = "",
        sides: Sequence[Selection] = (),
        gap: tuple[Selection, Selection] | None = None,
        best_level: str = "",
        needs: Mapping[str, int] | None = None,
        at_least: float | None = None,
        at_most: float | None = None,
        most_often: str = "",
        weaker: bool = False,
        **where: Any,
    ) -> Check:
        asked = Asked(self._sizes, self._tests)
        inner = {factor for side in (*sides, *(gap or ())) for factor in side}
        if misplaced := inner & {"group", "dataset"}:
            raise ValueError(f"{misplaced.pop()}: name it as an option of the question")
        rows = self._rows(where, inner, over, asked)
        if self._lacks_levels(rows, where, needs or {}, asked):
            rows = []
        else:
            rows = asked.narrow(rows, where, is_lenient=True)
            if gap is not None:
                rows, asked.kind = asked.gap(rows, *gap), "difference"
            elif best_level:
                rows, asked.kind = asked.best_level(rows, best_level), "level"
        comparisons = tuple(ask(rows, asked)) if rows else ()
        missing = [*asked.missing, *(source.missing for source in comparisons or rows)]
        missing = [*dict.fromkeys(filter(None, missing))]
        if not comparisons and not missing:
            missing = ["no model matches the check"]
        return Check(
            ": ".join(filter(None, [self._what, describe(where), text])),
            comparisons,
            at_least,
            at_most,
            most_often,
            weaker,
            num_absent=len(asked.missing),
            bound=tuple(asked.bound),
            missing=tuple(missing),
        )

    def _rows(self, where: Selection, inner: set[str], over: str, asked: Asked) -> Rows:
        """Omit rows that must be selected explicitly: intermediate states, zero-shot tasks."""
        groups, datasets = _listed(where.get("group", ())), _listed(where.get("dataset", AVERAGE))
        if groups not in self._rows_of:
            self._rows_of[groups] = rows_of(self._scores, groups)
        rows = self._rows_of[groups]
        if datasets != ("each",):
            there = {row.dataset for row in rows}
            for name in [name for name in datasets if name not in there]:
                asked.lack(f"no dataset {name}")
        named = {*where, *inner}
        is_continued = bool((named | {over}) & {"continued_steps", "extension"})
        return [
            row
            for row in rows
            if (row.dataset != AVERAGE if datasets == ("each",) else row.dataset in datasets)
            and ("task" in named or facts_of(row.task).is_trained)  # the best one names none
            and ("finished" in named or row.finished)
            and (is_continued or not row.continued_steps)
        ]

    def _lacks_levels(
        self, rows: Rows, where: Selection, needs: Mapping[str, int], asked: Asked
    ) -> bool:
        firm = {f: w for f, w in where.items() if not (isinstance(w, str) and w in POSITIONS)}
        for factor, number in needs.items():
            matching = Asked(self._sizes, None).narrow(rows, firm, is_lenient=True)
            available = asked.levels_of(known(factor, ORDERED_FACTORS), matching)
            if len(available) < number:
                has = ", ".join(level_text(factor, level) for level in available) or "none"
                name = factor_name(factor)
                asked.lack(f"needs {number} levels of {name} or more; available: {has}")
                return True
        return False


def _value(options: Mapping[str, Any], usual: str = "score") -> str:
    """Return the name of the compared value."""
    if sides := options.get("gap"):
        texts = [describe(side) or "any" for side in sides]
        return " minus ".join(f"({text})" if ", " in text else text for text in texts)
    return f"best {factor_name(options['best_level'])}" if "best_level" in options else usual


def _refuse_significance(expect: str, options: Mapping[str, Any]) -> None:
    if "significantly" in expect and {"gap", "best_level"} & {*options}:
        raise ValueError(f"'{expect}': only scores have intervals; omit 'significantly'")


def _listed(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


@dataclass(frozen=True)
class Claim:
    """A sentence, and the function that yields its checks on a table."""

    id: str
    text: str
    ask: Callable[[Table], Iterable[Check]]
    source: str = ""
    """Where the paper makes the claim."""
    reading: str = ""
    """How the checks interpret the sentence, if it is ambiguous."""

    def checks(self, table: Table) -> tuple[Check, ...]:
        """Return the checks on a table.

        Raises:
            ConfigError: The function fails; the message names the claim, the line and the error.
        """
        try:
            checks = tuple(self.ask(table))
            for check in checks:
                if not isinstance(check, Check):
                    raise ValueError(f"yields {check!r}, which is not a check")
            if all(check.is_weaker for check in checks):
                raise ValueError("yields no check")
        except BiphasicError:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # the function is the user's, `exit()` too
            code = self.ask.__code__
            path, line = Path(code.co_filename), code.co_firstlineno
            raise _failed(path, error, line=line, what=f"claim '{self.id}': ") from None
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
    """Run a Python file and return its claims.

    Raises:
        ConfigError: It is missing, is not a Python file, fails, or has no claims.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    if path.suffix != ".py":
        raise ConfigError(f"{path}: {_NEW_FORM}")
    try:
        claims = runpy.run_path(str(path)).get("__claims__", [])
    except BiphasicError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # the file is the user's, with `exit()` too
        raise _failed(path, error) from None
    if not claims:
        raise ConfigError(f"{path}: no claims; {_NEW_FORM}")
    try:
        refuse_repeats("id", [entry.id for entry in claims])
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    return tuple(claims)


def _failed(
    path: Path, error: BaseException, *, line: int | None = None, what: str = ""
) -> ConfigError:
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    line = lines[-1] if lines else getattr(error, "lineno", line)
    place = f"{path}, line {line}" if line else f"{path}"
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return ConfigError(f"{place}: {what}{kind}{error}")
