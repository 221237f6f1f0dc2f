"""The questions that claims can ask of a table of scores.

Each of a question's comparisons holds (True), fails (False), or is unknown (None). Factors that a
question does not name are held equal: only models that agree in all other factors are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from itertools import combinations, pairwise
from typing import Any

from biphasic.analysis.claims.check import Check, Comparison, all_hold, any_holds
from biphasic.analysis.claims.derived import at_equal_flops, mask_rate_spreads, rate_spreads
from biphasic.analysis.claims.extreme import extremes
from biphasic.analysis.claims.levels import Selection, known, levels, selected
from biphasic.analysis.claims.question import Question, held_between
from biphasic.analysis.claims.rows import (
    AVERAGE,
    FACTORS,
    ORDERED_FACTORS,
    Rows,
    factor_text,
    grouped,
    held_factors,
    merged,
    rows_of,
    size_order,
)
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.statistics.compare import family_of

_OUTCOMES = tuple(
    f"{negation}{sign}{direction}"
    for negation in ("", "not ")
    for sign in ("", "significantly ")
    for direction in ("higher", "lower", "different")
)
_COURSES = (
    *(f"{never}{course}s" for never in ("", "never ") for course in ("increase", "decrease")),
    *(f"never significantly {course}" for course in ("increases", "decreases")),
    *(f"{course} in the middle" for course in ("dips", "peaks")),
)


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

    def __init__(self, scores: Scores, value: str = "number", lacks: str = "no models") -> None:
        # `value` names what the scores are; `lacks` is what a table without models lacks.
        self._scores, self._value, self._lacks = scores, value, lacks
        self._sizes = size_order(scores.models)
        self._family = cache(partial(family_of, scores))
        self._rows = cache(lambda groups: rows_of(scores, groups))

    @cached_property
    def rate_spreads(self) -> Table:
        """The spread of scores over learning rates of fine-tuning, in place of scores."""
        return Table(rate_spreads(self._scores), "spread over learning rates")

    @cached_property
    def mask_rate_spreads(self) -> Table:
        """The spread of scores over masking rates, in place of scores."""
        lacks = "no two masking rates of MLM and of CLM+MLM, of one size and length"
        return Table(mask_rate_spreads(self._scores), "spread over masking rates", lacks)

    @cached_property
    def at_equal_flops(self) -> Table:
        """Intermediate states of CLM, and of MLM interpolated at their FLOPs."""
        lacks = "no intermediate models of CLM with known FLOPs"
        return Table(at_equal_flops(self._scores), "score at equal FLOPs", lacks)

    def rows(self, *groups: str) -> Rows:
        """Return the scores of models under some headings, or of all; see `rows_of`."""
        return self._rows(groups)

    def compare(self, first: Selection, second: Selection, expect: str, **options: Any) -> Check:
        """Compare every value of `first` with its counterparts in `second`.

        Scores of single seeds are tested, so a difference must be clear. In a published table, a
        difference is significant if the intervals do not overlap.
        """
        _refuse_significance(known(expect, _OUTCOMES, "outcome"), options)
        asked, held = self._ask((first, second), **options), held_between(first, second)
        pairs, comparisons = asked.pairs(first, second), []
        asked.num_comparisons = len(pairs)
        for pair in pairs:
            sides = ", ".join(f"{row.name} {asked.text(row)}" for row in pair)
            difference = pair[0].mean - pair[1].mean
            text = f"{sides}: {difference:+z.2f}{'*' if asked.are_apart(*pair) else ''}"
            text = "no number" if math.isnan(difference) else text
            shared = merged(*pair, held)
            comparisons.append(asked.answer(text, all_hold, [(*pair, expect)], shared, pair))
        return asked.check(expect, comparisons)

    def trend(self, along: str, expect: str, **options: Any) -> Check:
        """Check the trend of values along a factor, from its smallest level to its largest."""
        _refuse_significance(known(expect, _COURSES, "course"), options)
        asked = self._ask(over=known(along, ORDERED_FACTORS), **options)
        runs = () if asked.is_unordered(along) else _trends(asked, along, expect)
        return asked.check(f"{expect} along {factor_text(along)}", runs)

    def varies(self, *over: str, **options: Any) -> Check:
        """Check whether values differ at all along factors."""
        for factor in over:
            known(factor, FACTORS)
        asked, comparisons = self._ask(**options), []
        for shared, group in grouped(asked.rows, held_factors(over)):
            if len(group) > 1:
                asked.num_comparisons = math.comb(len(group), 2)
                steps = [(*pair, "different") for pair in combinations(group, 2)]
                text = asked.listed(group, over)
                comparisons.append(asked.answer(text, any_holds, steps, shared, group))
        named = " and ".join(map(factor_text, over))
        if not comparisons:
            asked.lack(f"no models or tasks that differ only in {named}")
        return asked.check(f"differs over {named}", comparisons)

    def best(self, over: str, sought: Any, **options: Any) -> Check:
        """Check whether the sought level, or levels, of a factor have the highest value.

        Args:
            over: The factor.
            sought: The levels.
            options: Also `is_not=True` (others must have it), `across=FACTOR` (aggregate over its
                levels, `by="mean"` or `by="mean rank"`) and `most_often=True` (the sought level
                must have it more often than any other).
        """
        return self._extreme(over, sought, "higher", **options)

    def worst(self, over: str, sought: Any, **options: Any) -> Check:
        """Check whether the sought levels of a factor have the lowest value; see `best`."""
        return self._extreme(over, sought, "lower", **options)

    def _extreme(
        self,
        over: str,
        sought: Any,
        word: str,
        *,
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
        factors = (over, known(across, FACTORS)) if across else (over,)
        asked = self._ask(over=over, most_often=over if most_often else "", **options)
        is_rank = by == "mean rank"
        where = "best" if word == "higher" else "worst"
        where += f" {by} over {factor_text(across)}" if across else ""
        return asked.check(
            f"{where} at {'other ' if is_not else ''}{factor_text(over)} {chosen.text}",
            extremes(asked, factors, chosen, word, is_not=is_not, is_rank=is_rank),
        )

    def _ask(
        self,
        sides: Sequence[Selection] = (),
        over: str = "",
        *,
        gap: tuple[Selection, Selection] | None = None,
        best_level: str = "",
        needs: Mapping[str, int] | None = None,
        at_least: float | None = None,
        at_most: float | None = None,
        most_often: str = "",
        weaker: bool = False,
        **where: Any,
    ) -> Question:
        for selection in (*sides, *(gap or ()), where):
            selected(selection)  # refuses what makes no sense, whatever the table has
        inner = {factor for side in (*sides, *(gap or ())) for factor in side}
        if misplaced := inner & {"group", "dataset"}:
            raise ValueError(f"{misplaced.pop()}: name it as an option of the question")
        how_many = {"at_least": at_least, "at_most": at_most, "most_often": most_often}
        of_check = how_many | {"weaker": weaker, "value": self._value}
        asked = Question(self._scores, self._family, self._sizes, of_check)
        groups = _names(where.get("group", ()))
        asked.rows = self._rows(groups)
        if not asked.rows:
            lacks = f"no group {' or '.join(groups)}" if groups and self._rows(()) else self._lacks
            asked.absent[lacks] = None
        asked.rows = _among(asked, where, {*where, *inner}, over)
        asked.rows = asked.rows if asked.has_levels(where, needs or {}) else ()
        asked.rows = asked.narrow(where, is_lenient=True)
        if gap is not None:
            asked.use_gap(*gap)
        elif best_level:
            asked.use_best_level(best_level)
        return asked


def _among(asked: Question, where: Selection, named: set[str], over: str) -> Rows:
    """Omit rows that must be selected explicitly: intermediate states, zero-shot tasks."""
    datasets, there = _names(where.get("dataset", AVERAGE)), {row.dataset for row in asked.rows}
    is_each = datasets == ("each",)
    for name in datasets:
        if not is_each and name not in there:
            asked.lack(f"no dataset {name}")
    is_continued = bool({*named, over} & {"continued_steps", "extension"})
    # Of other tools' results nothing is known of training.
    known = () if asked.scores.is_by_example else asked.scores.datasets
    untrained = {dataset.task for dataset in known if dataset.is_zero_shot}
    rows = [r for r in asked.rows if (r.dataset != AVERAGE if is_each else r.dataset in datasets)]
    if "task" not in named:  # the best one names none
        rows = _kept(asked, rows, lambda row: row.task not in untrained, "tasks with fine-tuning")
    if "finished" not in named:
        rows = _kept(asked, rows, lambda row: row.finished, "finished models")
    if not is_continued:
        rows = _kept(asked, rows, lambda row: not row.continued_steps, "models from scratch")
    return rows


def _kept(asked: Question, rows: Rows, is_kept: Callable[[Any], bool], what: str) -> Rows:
    kept = [row for row in rows if is_kept(row)]
    if rows and not kept:
        asked.lack(f"no {what}")
    return kept


def _trends(asked: Question, along: str, expect: str) -> Iterator[Comparison]:
    least, order, runs = 3 if "middle" in expect else 2, asked.levels_of(along, asked.rows), []
    for shared, group in grouped(asked.rows, held_factors({along})):
        run = [row for row in group if getattr(row, along) is not None]
        if len(run) >= least:
            runs.append((shared, sorted(run, key=lambda row: order.index(getattr(row, along)))))
    asked.num_comparisons = sum(math.comb(len(run), 2) for _, run in runs)
    for shared, run in runs:
        text = asked.listed(run, [along])
        if len({getattr(row, along) for row in run}) < len(run):  # several values at one level
            yield Comparison(text, None, shared, run)
        else:
            yield asked.answer(text, all_hold, _steps(run, expect), shared, run)
    if not runs:
        asked.lack(f"no models that differ only in {factor_text(along)} ({least} levels or more)")


def _steps(run: Rows, expect: str) -> list[tuple[Any, Any, str]]:
    """Return the relations between rows that make up a trend."""
    if "middle" in expect:  # a dip: both ends are above all values in between
        relation = "higher" if expect.startswith("dips") else "lower"
        return [(end, inner, relation) for end in (run[0], run[-1]) for inner in run[1:-1]]
    if expect.startswith("never "):
        relation = "not significantly " if "significantly" in expect else "not "
        relation += "higher" if expect.endswith("decreases") else "lower"
        return [(*pair, relation) for pair in combinations(run, 2)]
    relation = "lower" if expect == "increases" else "higher"
    return [(*pair, relation) for pair in pairwise(run)]


def _refuse_significance(expect: str, options: Mapping[str, Any]) -> None:
    if "significantly" in expect and {"gap", "best_level"} & {*options}:
        raise ValueError(f"'{expect}': only scores have intervals; omit 'significantly'")


def _names(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
