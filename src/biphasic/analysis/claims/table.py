"""The questions that claims can ask of a table of scores.

Each of a question's comparisons holds (True), fails (False), or is unknown (None). Factors that a
question does not name are held equal: only models that agree in all other factors are compared.

Two models on one dataset get the verdict of the report: the same test, corrected for all pairs of
models there. Values computed from several scores, such as differences between models, are tested
the same way and corrected for the comparisons of the question. In a published table, only means and
intervals are compared.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import combinations, pairwise
from statistics import fmean
from typing import Any

from biphasic.analysis.claims.check import Check, Comparison, all_hold, any_holds
from biphasic.analysis.claims.rows import (
    AVERAGE,
    CLOSE,
    FACTORS,
    NUMBER_FACTORS,
    ORDERED_FACTORS,
    POSITIONS,
    Levels,
    Row,
    Rows,
    Selection,
    at_equal_flops,
    factor_text,
    grouped,
    held_factors,
    known,
    level_text,
    levels,
    mask_rate_spreads,
    merged,
    rate_spreads,
    rows_of,
    selected,
    size_order,
    weighted,
)
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.statistics.compare import family_of
from biphasic.analysis.statistics.contrast import blocks_for, contrast
from biphasic.analysis.text import listing

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
        self._rows = cache(partial(rows_of, scores))

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
        asked, held = _Question(self, (first, second), **options), _held_between(first, second)
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
        asked = _Question(self, over=known(along, ORDERED_FACTORS), **options)
        runs = () if asked.is_unordered(along) else _trends(asked, along, expect)
        return asked.check(f"{expect} along {factor_text(along)}", runs)

    def varies(self, *over: str, **options: Any) -> Check:
        """Check whether values differ at all along factors."""
        for factor in over:
            known(factor, FACTORS)
        asked, comparisons = _Question(self, **options), []
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

    def best(
        self,
        over: str,
        sought: Any,
        *,
        is_not: bool = False,
        across: str = "",
        by: str = "mean",
        most_often: bool = False,
        _word: str = "higher",
        **options: Any,
    ) -> Check:
        """Check whether the sought level, or levels, of a factor have the highest value.

        Args:
            over: The factor.
            sought: The levels.
            is_not: Others must have it.
            across: Aggregate over the levels of this factor, `by` their "mean" or "mean rank".
            by: See `across`.
            most_often: The sought level must have it more often than any other.
            options: Those of every question.
        """
        chosen = levels(over, sought)
        if across in {over, "group"} or (by != "mean" and (by != "mean rank" or not across)):
            raise ValueError("give across=, another factor, and by='mean' or by='mean rank'")
        if "best_level" in options:
            raise ValueError("best and worst take scores or gaps, not best_level")
        factors = (over, known(across, FACTORS)) if across else (over,)
        asked = _Question(self, over=over, most_often=over if most_often else "", **options)
        values = _by_rank if by == "mean rank" else _by_mean if across else _by_best
        where = "best" if _word == "higher" else "worst"
        where += f" {by} over {factor_text(across)}" if across else ""
        return asked.check(
            f"{where} at {'other ' if is_not else ''}{factor_text(over)} {chosen.text}",
            _extremes(asked, factors, chosen, _word, values, is_not=is_not),
        )

    def worst(self, over: str, sought: Any, **options: Any) -> Check:
        """Check whether the sought levels of a factor have the lowest value; see `best`."""
        return self.best(over, sought, _word="lower", **options)


class _Question:
    """The rows of a question, how they relate to each other, and what the table lacks."""

    def __init__(
        self,
        table: Table,
        sides: Sequence[Selection] = (),
        over: str = "",
        *,
        gap: tuple[Selection, Selection] | None = None,
        best_level: str = "",
        needs: Mapping[str, int] | None = None,
        **where: Any,
    ) -> None:
        of_check = {"at_least", "at_most", "most_often", "weaker"} & where.keys()
        self.options: dict[str, Any] = {"value": table._value}
        self.options |= {name: where.pop(name) for name in of_check}
        for selection in (*sides, *(gap or ()), where):
            selected(selection)  # refuses what makes no sense, whatever the table has
        inner = {factor for side in (*sides, *(gap or ())) for factor in side}
        if misplaced := inner & {"group", "dataset"}:
            raise ValueError(f"{misplaced.pop()}: name it as an option of the question")
        self.scores, self.family, self.sizes = table._scores, table._family, table._sizes
        self.kind = "score"  # of the values: `score`, `difference` or `level`
        self.num_comparisons = 0
        self.absent: dict[str, None] = {}  # what the table lacks, in order
        groups = _names(where.get("group", ()))
        self.rows = table.rows(*groups)
        if not self.rows:
            has_rows = groups and table.rows()
            self.absent[f"no group {' or '.join(groups)}" if has_rows else table._lacks] = None
        self.rows = self._among(where, {*where, *inner}, over)
        self.rows = self.rows if self._has_levels(where, needs or {}) else ()
        self.rows = self.narrow(where, is_lenient=True)
        if gap is not None:
            self._use_gap(*gap)
        elif best_level:
            self._use_best_level(best_level)

    def check(self, expected: str, comparisons: Iterable[Comparison]) -> Check:
        """Return the check of these comparisons."""
        every = tuple(comparisons)  # may add to what the table lacks
        return Check(every, expected, **self.options, absent=tuple(self.absent))

    def lack(self, text: str) -> None:
        """Record something that the table lacks; without rows, what matters is recorded already."""
        if self.rows:
            self.absent[text] = None

    def levels_of(self, factor: str, rows: Rows) -> list[Any]:
        """Return the levels of a factor, ordered by size or number if possible."""
        every = dict.fromkeys(getattr(row, factor) for row in rows)
        present = [level for level in every if level is not None]
        if factor == "size":
            return sorted(present, key=self.sizes.__getitem__) if self.sizes else present
        return sorted(present) if factor in NUMBER_FACTORS else present

    def is_unordered(self, factor: str) -> bool:
        """Return and record whether a factor has no order: sizes without parameter counts."""
        if factor != "size" or self.sizes is not None:
            return False
        self.lack("sizes have no order: numbers of parameters are unknown")
        return True

    def narrow(self, selection: Selection, *, is_lenient: bool = False) -> Rows:
        """Return the rows of a selection; if lenient, also those without the factors at all."""
        # Positions and nearest levels are resolved among the rows that match everything else.
        rows = self.rows
        if "finished" in selection:
            rows = [row for row in rows if row.finished == selection["finished"]]
            if not rows:
                self.lack(f"no {'finished' if selection['finished'] else 'intermediate'} models")
        by_factor = {f: w for f, w in selected(selection).items() if f not in {"dataset", "group"}}
        for factor, chosen in sorted(by_factor.items(), key=lambda item: item[1].is_relative):
            if not rows:
                break
            available, picked = self.levels_of(factor, rows), []
            if not (chosen.is_relative and self.is_unordered(factor)):
                picked = chosen.pick(available)
                lacking = [v for v in chosen.values if not levels(factor, v).pick(available)]
                for value in lacking:
                    likely = [x for x in available if str(x).lower() == str(value).lower()]
                    meant = f" (did you mean '{likely[0]}'?)" if likely else ""
                    self.lack(f"no {factor_text(factor)} {level_text(factor, value)}{meant}")
                if not picked and not lacking:
                    self.lack(f"no {factor_text(factor)} {chosen.text}")
            kept = {*picked, *([None] if is_lenient else [])}
            rows = [row for row in rows if getattr(row, factor) in kept]
        return rows

    def pairs(self, first: Selection, second: Selection) -> list[tuple[Any, Any]]:
        """Return every row of one selection with each counterpart in the other."""
        # Values that only the second selection lacks are not recorded; a row without a counterpart
        # gets a placeholder that names it.
        num_absent = len(self.absent)
        ones = self.narrow(first)
        if not ones and len(self.absent) == num_absent:
            self.lack("no model of the first selection")
        noted = dict(self.absent)
        others = self.narrow(second)
        self.absent = noted
        held, pairs = _held_between(first, second), []
        wanted = listing([f"{factor_text(f)} {one.text}" for f, one in selected(second).items()])
        for one in ones:
            mine = [other for other in others if _do_agree(one, other, held)]
            if not mine or any(other.name == one.name for other in mine):
                name = f"a counterpart of {one.name}{wanted and f' with {wanted}'}"
                mine = [one._replace(name=name, mean=math.nan, terms=(), is_scored=False)]
            pairs += [(one, other) for other in mine]
        return pairs

    def text(self, row: Any) -> str:
        """Format the number: `87.85 (0.13)`; a difference with its sign."""
        if math.isnan(row.mean):
            return "?"
        if self.kind != "score":
            return f"{row.mean:+z.2f}" if self.kind == "difference" else f"{row.mean:g}"
        interval = "" if math.isnan(row.half_width) else f" ({row.half_width:.2f})"
        return f"{row.mean:z.2f}{interval}"

    def listed(self, rows: Rows, over: Iterable[str]) -> str:
        """Format each number with its position."""
        return ", ".join(
            f"{self.text(row)} at {' '.join(level_text(f, getattr(row, f)) for f in over)}"
            for row in rows
        )

    def answer(
        self,
        text: str,
        decide: Callable[[Iterable[bool | None]], bool | None],
        steps: Iterable[tuple[Any, Any, str]],
        factors: Mapping[str, Any],
        rows: Rows,
    ) -> Comparison:
        """Return whether all, or any, of some relations between rows hold."""
        holds = decide([self._is_met(*step) for step in steps])
        if any(math.isnan(row.mean) for row in rows):
            holds = holds or None  # nothing is said to fail while a score is missing
        return Comparison(text, holds, factors, rows)

    def are_tested(self, rows: Rows) -> bool:
        """Return whether values have scores by seed, so that every comparison is a test."""
        return not self.scores.is_published and all(row.terms for row in rows)

    def relation(self, row: Any, other: Any) -> str | None:
        """Return `higher`, `lower` or, without tests, `equal`; None if the data do not decide."""
        if math.isnan(row.mean - other.mean):
            return None
        if not self.are_tested([row]):
            return _by_means(row, other)
        keys = [*row.terms, *other.terms]
        if (
            len(row.terms) == len(other.terms) == 1 and keys[0][1] == keys[1][1]
        ):  # two models on one dataset
            pair = self.family(keys[0][1]).compare(keys[0][0], keys[1][0])
            return pair.verdict if pair is not None and pair.is_clear else None
        weights = weighted((1, row), (-1, other))
        one = contrast(self.scores, weights, blocks=blocks_for(self.scores, weights))
        if one is None or one.p_value is None:
            return None
        one = replace(one, p_adjusted=one.p_corrected(one.p_value * self.num_comparisons))
        return one.verdict if one.is_clear else None

    def are_apart(self, row: Any, other: Any) -> bool | None:
        """Return whether two values differ significantly; None without the needed intervals."""
        if self.are_tested([row]):
            return self.relation(row, other) is not None
        width = row.half_width + other.half_width
        return None if math.isnan(width) else abs(row.mean - other.mean) > width + CLOSE

    def _is_met(self, row: Any, other: Any, expect: str) -> bool | None:
        """Return whether one value relates to another as expected; None if unknown."""
        relation = self.relation(row, other)
        if relation is None:
            return None
        direction = expect.rsplit(maxsplit=1)[-1]
        holds = relation == direction or (direction == "different" and relation != "equal")
        # Without the right direction there is no significant difference either.
        if holds and "significantly" in expect:
            holds = self.are_apart(row, other)
        return None if holds is None else holds != expect.startswith("not ")

    def _among(self, where: Selection, named: set[str], over: str) -> Rows:
        """Omit rows that must be selected explicitly: intermediate states, zero-shot tasks."""
        datasets, there = _names(where.get("dataset", AVERAGE)), {row.dataset for row in self.rows}
        is_each = datasets == ("each",)
        for name in datasets:
            if not is_each and name not in there:
                self.lack(f"no dataset {name}")
        is_continued = bool({*named, over} & {"continued_steps", "extension"})
        # Of other tools' results nothing is known of training.
        datasets_known = () if self.scores.is_by_example else self.scores.datasets
        zero_shot = {dataset.task for dataset in datasets_known if dataset.is_zero_shot}
        rows = [
            row
            for row in self.rows
            if (row.dataset != AVERAGE if is_each else row.dataset in datasets)
        ]
        for what, is_left, is_kept in (
            # The best task names none.
            ("tasks with fine-tuning", "task" in named, lambda row: row.task not in zero_shot),
            ("finished models", "finished" in named, lambda row: row.finished),
            ("models from scratch", is_continued, lambda row: not row.continued_steps),
        ):
            kept = rows if is_left else [row for row in rows if is_kept(row)]
            if rows and not kept:
                self.lack(f"no {what}")
            rows = kept
        return rows

    def _has_levels(self, where: Selection, needs: Mapping[str, int]) -> bool:
        """Return and record whether the table has the needed numbers of levels of factors."""
        firm = {f: w for f, w in where.items() if not (isinstance(w, str) and w in POSITIONS)}
        noted = dict(self.absent)
        rows = self.narrow(firm, is_lenient=True) if needs else ()
        if needs and not rows:  # what is absent is recorded, or there were no rows before
            return False
        self.absent = noted
        for factor, number in needs.items():
            if len(self.levels_of(known(factor, ORDERED_FACTORS), rows)) < number:
                self.lack(f"fewer than {number} levels of {factor_text(factor)}")
                return False
        return True

    def _use_gap(self, of: Selection, minus: Selection) -> None:
        """Replace scores by one score minus another, for every pair of rows."""
        held, gaps = _held_between(of, minus), []
        for row, partner in self.pairs(of, minus):
            mean = row.mean - partner.mean
            is_scored = not math.isnan(mean)
            gaps.append(Row(
                **merged(row, partner, held), name=f"{row.name} - {partner.name}", mean=mean,
                terms=weighted((1, row), (-1, partner)) if is_scored else {}, is_scored=is_scored,
                is_at_end=row.is_at_end or partner.is_at_end,
            ))  # fmt: skip
        self.rows, self.kind = gaps, "difference"

    def _use_best_level(self, factor: str) -> None:
        """Replace scores by the level at which each group scores highest, the smaller on a tie."""
        best_rows = []
        for shared, every in grouped(self.rows, held_factors({known(factor, NUMBER_FACTORS)})):
            group = [row for row in every if getattr(row, factor) is not None]
            if len({getattr(row, factor) for row in group}) < 2:
                continue
            best = max(group, key=lambda row: (row.mean, -getattr(row, factor)))
            self.num_comparisons = len(group)
            is_known = not any(math.isnan(row.mean) for row in group) and (
                not self.are_tested(group)
                or all(self.relation(best, one) == "higher" for one in group if one is not best)
            )
            best_rows.append(Row(
                **shared, is_scored=all(row.is_scored for row in group),
                is_at_end=any(row.is_at_end for row in group),
                name=best.name if is_known else f"the best {factor_text(factor)}",
                mean=getattr(best, factor) if is_known else math.nan,
            ))  # fmt: skip
        if not best_rows:
            self.lack(f"no models that differ only in {factor_text(factor)}")
        self.rows, self.kind = best_rows, "level"


def _by_means(row: Any, other: Any) -> str:
    """Return whether a mean is `higher` than another, `lower` or `equal`."""
    if abs(row.mean - other.mean) <= CLOSE:
        return "equal"
    return "higher" if row.mean > other.mean else "lower"


def _held_between(first: Selection, second: Selection) -> list[str]:
    """Return the factors that must be equal between two selections."""
    # A factor that both name alike is held, too: models of the longest continued training of each
    # start are compared only if they are equally long.
    texts = [{name: one.text for name, one in selected(side).items()} for side in (first, second)]
    alike = {name for name, text in texts[0].items() if text == texts[1].get(name)}
    return held_factors({*first, *second} - alike)


def _do_agree(one: Any, other: Any, held: Iterable[str]) -> bool:
    return all(
        getattr(one, factor) == getattr(other, factor)
        or (factor == "mask_rate" and None in {one.mask_rate, other.mask_rate})
        for factor in held
    )


def _trends(asked: _Question, along: str, expect: str) -> Iterator[Comparison]:
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


# The value of each level, and whether one level is ahead of another.
_Ordered = tuple[dict[Any, float], Callable[[Any, Any], bool]]


def _extremes(
    asked: _Question,
    factors: Sequence[str],
    sought: Levels,
    word: str,
    order: Callable[[_Question, Rows, Sequence[str], str], _Ordered],
    *,
    is_not: bool,
) -> Iterator[Comparison]:
    """Yield for each group of models whether the sought levels are `higher` or `lower`."""
    # `factors` are the factor of the levels and, optionally, another one, over whose levels values
    # are aggregated.
    over, groups = factors[0], []
    for shared, every in grouped(asked.rows, held_factors(factors)):
        group = [row for row in every if all(getattr(row, f) is not None for f in factors)]
        available = asked.levels_of(over, group)
        if chosen := {*sought.pick(available)}:
            groups.append((shared, group, available, chosen))
    asked.num_comparisons = sum(math.comb(len(available), 2) for _, _, available, _ in groups)
    for shared, group, available, chosen in groups:
        rows = group if len(chosen) < len(available) else ()
        # A row for every combination of levels.
        cells = {tuple(getattr(row, factor) for factor in factors) for row in rows}
        is_full = len(cells) == math.prod(len({*every}) for every in zip(*cells, strict=True))
        if not rows or any(math.isnan(row.mean) for row in rows) or not is_full:
            text = "no number" if rows else f"no other {factor_text(over)}"
            yield Comparison(text, None, shared, rows)
            continue
        values, is_ahead = order(asked, rows, factors, word)
        text = ", ".join(f"{values[x]:z.2f} at {level_text(over, x)}" for x in available)
        leaders = _leaders(available, chosen, is_ahead)
        holds = (leaders <= chosen) != is_not if leaders else None
        if not leaders and not asked.are_tested(rows):
            holds = False  # a tie
        winner = next(iter(leaders)) if len(leaders) == 1 else None
        yield Comparison(text, holds, shared, rows, winner)
    if not groups:
        asked.lack(f"no {factor_text(over)} {sought.text} to compare with others")


def _by_best(asked: _Question, rows: Rows, factors: Sequence[str], word: str) -> _Ordered:
    best: dict[Any, Any] = {}
    for row in sorted(rows, key=lambda row: -row.mean):
        best.setdefault(getattr(row, factors[0]), row)
    values = {level: row.mean for level, row in best.items()}
    return values, lambda one, other: asked.relation(best[one], best[other]) == word


def _by_mean(asked: _Question, rows: Rows, factors: Sequence[str], word: str) -> _Ordered:
    means = []
    for level in dict.fromkeys(getattr(row, factors[0]) for row in rows):
        there = [row for row in rows if getattr(row, factors[0]) == level]
        terms = weighted(*((1 / len(there), row) for row in there))
        means.append(Row(**{factors[0]: level}, mean=fmean(r.mean for r in there), terms=terms))
    return _by_best(asked, means, factors, word)


def _by_rank(asked: _Question, rows: Rows, factors: Sequence[str], word: str) -> _Ordered:
    ranks = _mean_ranks(rows, factors, asked.relation, word)
    shown = _mean_ranks(rows, factors, _by_means, "higher")
    values = {level: low for level, (low, _) in shown.items()}
    return values, lambda one, other: ranks[one][1] < ranks[other][0] - CLOSE


def _mean_ranks(
    rows: Rows, factors: Sequence[str], relation: Callable[[Any, Any], str | None], word: str
) -> dict[Any, tuple[float, float]]:
    """Return the lowest and highest mean rank of each level; ties share their mean rank."""
    over, across = factors
    ends: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        line = [other for other in rows if other is not row
                and getattr(other, across) == getattr(row, across)]  # fmt: skip
        relations = [relation(row, other) for other in line]
        highest = 1 + len(line) - relations.count(word) - relations.count("equal") / 2
        ends[getattr(row, over)].append((highest - relations.count(None), highest))
    return {
        level: (fmean(low for low, _ in pairs), fmean(high for _, high in pairs))
        for level, pairs in ends.items()
    }


def _leaders(
    available: Sequence[Any], sought: set[Any], is_ahead: Callable[[Any, Any], bool]
) -> set[Any]:
    """Return a level that is ahead of all others."""
    # If only sought levels, or only others, share the lead, return these; empty if both do, or if
    # the data cannot decide.
    every = {*available}
    for side in (*({level} for level in available), sought, every - sought):
        if any(all(is_ahead(one, other) for other in every - side) for one in side):
            return side
    return set()


def _refuse_significance(expect: str, options: Mapping[str, Any]) -> None:
    if "significantly" in expect and {"gap", "best_level"} & {*options}:
        raise ValueError(f"'{expect}': only scores have intervals; omit 'significantly'")


def _names(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
