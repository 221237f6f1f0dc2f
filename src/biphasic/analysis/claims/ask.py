"""The questions that claims can ask of a table of scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

from biphasic.analysis.claims.check import Check
from biphasic.analysis.claims.derived import at_equal_flops, mask_rate_spreads, rate_spreads
from biphasic.analysis.claims.differences import Differences
from biphasic.analysis.claims.extreme import Extreme
from biphasic.analysis.claims.questions import COURSES, OUTCOMES, Comparison, Question
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
)
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.text import listing
from biphasic.facts import facts_of


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
        self._rows = cache(lambda groups: rows_of(scores, groups))

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

    def rows(self, *groups: str) -> Rows:
        """Return the scores of models under some headings, or of all; see `rows_of`."""
        return self._rows(groups)

    def compare(self, first: Selection, second: Selection, expect: str, **options: Any) -> Check:
        """Compare every value of `first` with its counterparts in `second`.

        Scores of single seeds are tested, so a difference must be clear. In a published table, a
        difference is significant if the intervals do not overlap.
        """
        _refuse_significance(known(expect, OUTCOMES, "outcome"), options)
        value, word = _value(options, ""), "from" if expect.endswith("different") else "than"
        text = f"{value and f'{value}, '}{describe(first)}: {expect} {word} {describe(second)}"
        return self._check(
            text, lambda asked: asked.compare(first, second, expect), (first, second), **options
        )

    def trend(self, along: str, expect: str, **options: Any) -> Check:
        """Check the trend of values along a factor, from its smallest level to its largest."""
        _refuse_significance(known(expect, COURSES, "course"), options)
        text = f"{_value(options)} {expect} along {factor_name(known(along, ORDERED_FACTORS))}"
        return self._check(text, lambda asked: asked.trend(along, expect), over=along, **options)

    def varies(self, *over: str, **options: Any) -> Check:
        """Check whether values differ at all along factors."""
        names = listing([factor_name(known(factor, FACTORS)) for factor in over])
        text = f"{_value(options)} differs over {names}"
        return self._check(text, lambda asked: asked.varies(over), **options)

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
        chosen = levels(over, sought)
        if across in {over, "group"} or (by != "mean" and (by != "mean rank" or not across)):
            raise ValueError("give across=, another factor, and by='mean' or by='mean rank'")
        if "best_level" in options:
            raise ValueError("best and worst take scores or gaps, not best_level")
        which = f"{'highest' if is_best else 'lowest'} {_value(options)}"
        if across:
            which = f"{'best' if is_best else 'worst'} {by} over {known(across, FACTORS)}"
        return self._check(
            f"{factor_name(over)} of the {which} {'is not' if is_not else 'is'} {chosen.text}",
            Extreme(over, chosen, is_best, is_not, across, by == "mean rank"),
            over=over,
            most_often=over if most_often else "",
            **options,
        )

    def _check(
        self,
        text: str,
        ask: Callable[[Question], Iterator[Comparison]],
        sides: Sequence[Selection] = (),
        *,
        over: str = "",
        gap: tuple[Selection, Selection] | None = None,
        best_level: str = "",
        needs: Mapping[str, int] | None = None,
        at_least: float | None = None,
        at_most: float | None = None,
        most_often: str = "",
        weaker: bool = False,
        **where: Any,
    ) -> Check:
        inner = {factor for side in (*sides, *(gap or ())) for factor in side}
        if misplaced := inner & {"group", "dataset"}:
            raise ValueError(f"{misplaced.pop()}: name it as an option of the question")
        asked = Question(self._sizes, self._tests)
        asked.rows = self._among(asked, where, {*where, *inner}, over)
        if _lacks_levels(asked, where, needs or {}):
            asked.rows = []
        else:
            asked.rows = asked.narrow(where, is_lenient=True)
            if gap is not None:
                asked.use_gap(*gap)
            elif best_level:
                asked.use_best_level(best_level)
        comparisons = tuple(ask(asked)) if asked.rows else ()
        missing = [*asked.missing, *(source.missing for source in comparisons or asked.rows)]
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

    def _among(self, asked: Question, where: Selection, named: set[str], over: str) -> Rows:
        """Omit rows that must be selected explicitly: intermediate states, zero-shot tasks."""
        rows, datasets = self._rows(_listed(where.get("group", ()))), where.get("dataset", AVERAGE)
        datasets, there = _listed(datasets), {row.dataset for row in rows}
        is_each = datasets == ("each",)
        for name in datasets:
            if not is_each and name not in there:
                asked.lack(f"no dataset {name}")
        is_continued = bool({*named, over} & {"continued_steps", "extension"})
        return [
            row
            for row in rows
            if (row.dataset != AVERAGE if is_each else row.dataset in datasets)
            and ("task" in named or facts_of(row.task).is_trained)  # the best one names none
            and ("finished" in named or row.finished)
            and (is_continued or not row.continued_steps)
        ]


def _lacks_levels(asked: Question, where: Selection, needs: Mapping[str, int]) -> bool:
    firm = {f: w for f, w in where.items() if not (isinstance(w, str) and w in POSITIONS)}
    for factor, number in needs.items():
        matching = Question(asked.sizes, None, asked.rows).narrow(firm, is_lenient=True)
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
