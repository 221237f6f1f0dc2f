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
from itertools import combinations, pairwise, product
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


def _ends(run: Rows) -> Iterator[tuple[Any, Any]]:
    """Pair both ends of a run with all values in between."""
    return product((run[0], run[-1]), run[1:-1])


def _every(run: Rows) -> Iterator[tuple[Any, Any]]:
    return combinations(run, 2)


# By course along a factor: the pairs of rows, and how the first of each relates to the second.
_COURSES: dict[str, tuple[Callable[[Rows], Iterable[tuple[Any, Any]]], str]] = {
    "increases": (pairwise, "lower"),
    "decreases": (pairwise, "higher"),
    "never increases": (_every, "not lower"),
    "never decreases": (_every, "not higher"),
    "never significantly increases": (_every, "not significantly lower"),
    "never significantly decreases": (_every, "not significantly higher"),
    "dips in the middle": (_ends, "higher"),
    "peaks in the middle": (_ends, "lower"),
}
_UNORDERED = "sizes have no order: numbers of parameters are unknown"


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
            text = f"{sides}: {difference:+z.2f}{'*' if asked.relation(*pair)[1] else ''}"
            text = "no number" if math.isnan(difference) else text
            shared = merged(*pair, held)
            comparisons.append(asked.answer(text, all_hold, [(*pair, expect)], shared, pair))
        return asked.check(expect, comparisons)

    def trend(self, along: str, expect: str, **options: Any) -> Check:
        """Check the trend of values along a factor, from its smallest level to its largest."""
        _refuse_significance(known(expect, _COURSES, "course"), options)
        asked = _Question(self, over=known(along, ORDERED_FACTORS), **options)
        (pairs, relation), least = _COURSES[expect], 3 if "middle" in expect else 2
        if along == "size" and asked.sizes is None:
            asked.lack(_UNORDERED)
            asked.rows = ()
        order = asked.levels_of(along, asked.rows)
        runs = [
            (shared, sorted(run, key=lambda row: order.index(getattr(row, along))))
            for shared, group in grouped(asked.rows, held_factors({along}))
            if len(run := [row for row in group if getattr(row, along) is not None]) >= least
        ]
        if not runs:
            asked.lack(
                f"no models that differ only in {factor_text(along)} ({least} levels or more)"
            )
        # All pairs count for the correction, though some courses compare neighbours alone.
        asked.num_comparisons = sum(math.comb(len(run), 2) for _, run in runs)
        comparisons = []
        for shared, run in runs:
            steps = [(*pair, relation) for pair in pairs(run)]
            one = asked.answer(asked.listed(run, [along]), all_hold, steps, shared, run)
            # Two models at one level have no order, so whether the course holds is unknown.
            has_several = len({getattr(row, along) for row in run}) < len(run)  # at one level
            comparisons.append(replace(one, holds=None) if has_several else one)
        return asked.check(f"{expect} along {factor_text(along)}", comparisons)

    def varies(self, *over: str, **options: Any) -> Check:
        """Check whether values differ at all along factors."""
        for factor in over:
            known(factor, FACTORS)
        asked = _Question(self, **options)
        groups = [(s, rows) for s, rows in grouped(asked.rows, held_factors(over)) if len(rows) > 1]
        asked.num_comparisons = sum(math.comb(len(group), 2) for _, group in groups)
        comparisons = []
        for shared, group in groups:
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
        groups, num_pairs = [], 0
        for shared, every in grouped(asked.rows, held_factors(factors)):
            rows = [row for row in every if all(getattr(row, f) is not None for f in factors)]
            available = asked.levels_of(over, rows)
            if picked := {*chosen.pick(available)}:
                groups.append((shared, rows, picked))
                num_pairs += math.comb(len(available), 2)
        if not groups:
            asked.lack(f"no {factor_text(over)} {chosen.text} to compare with others")
        asked.num_comparisons = num_pairs
        order = _by_rank if by == "mean rank" else _by_value
        where = "best" if _word == "higher" else "worst"
        where += f" {by} over {factor_text(across)}" if across else ""
        return asked.check(
            f"{where} at {'other ' if is_not else ''}{factor_text(over)} {chosen.text}",
            [
                _extreme(asked, *group, factors=factors, word=_word, order=order, is_not=is_not)
                for group in groups
            ],
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
        group: str | Sequence[str] = (),
        dataset: str | Sequence[str] = AVERAGE,
        **where: Any,
    ) -> None:
        if gap is not None and best_level:
            raise ValueError("give gap or best_level, not both")
        of_check = {"at_least", "at_most", "most_often", "weaker"} & where.keys()
        self.options: dict[str, Any] = {name: where.pop(name) for name in of_check}
        self.options["value"] = table._value
        inner = {factor for side in (*sides, *(gap or ())) for factor in side}
        for selection in (*sides, *(gap or ()), where):
            selected(selection)  # refuses what makes no sense, whatever the table has
        if misplaced := inner & {"group", "dataset"}:
            raise ValueError(f"{misplaced.pop()}: name it as an option of the question")
        self.scores, self.family, self.sizes = table._scores, table._family, table._sizes
        self.kind = "score"  # of the values: `score`, `difference` or `level`
        self.num_comparisons = 0
        self.absent: dict[str, None] = {}  # what the table lacks, in order
        groups, datasets = _names(group), _names(dataset)
        self.rows = table.rows(*groups)
        if not self.rows:
            has_rows = groups and table.rows()
            self.absent[f"no group {' or '.join(groups)}" if has_rows else table._lacks] = None
        if datasets == ("each",):
            self.rows = [row for row in self.rows if row.dataset != AVERAGE]
        else:
            there = {row.dataset for row in self.rows}
            self.lack(*(f"no dataset {name}" for name in datasets if name not in there))
            self.rows = [row for row in self.rows if row.dataset in datasets]
        # What must be selected explicitly: zero-shot tasks, states on the way, continued models.
        named = {*where, *inner}
        zero_shot = {one.task for one in self.scores.datasets if one.is_zero_shot}
        if "task" not in named and not self.scores.is_by_example:  # the best task names none
            self.keep("no tasks with fine-tuning", lambda row: row.task not in zero_shot)
        if "finished" not in named:
            self.keep("no finished models", lambda row: row.finished)
        if not {*named, over} & {"continued_steps", "extension"}:
            self.keep("no models from scratch", lambda row: not row.continued_steps)
        if needs:
            self._need(needs, where)
        self.rows, lacks = self.narrow(where, is_lenient=True)
        self.absent |= dict.fromkeys(lacks)
        if gap is not None:
            self._use_gap(*gap)
        elif best_level:
            self._use_best_level(best_level)

    def check(self, expected: str, comparisons: Iterable[Comparison]) -> Check:
        """Return the check of these comparisons."""
        every = tuple(comparisons)  # may add to what the table lacks
        return Check(every, expected, **self.options, absent=tuple(self.absent))

    def lack(self, *texts: str) -> None:
        """Record what the table lacks; without rows, what matters is recorded already."""
        if self.rows:
            self.absent |= dict.fromkeys(texts)

    def keep(self, lacks: str, is_kept: Callable[[Any], bool]) -> None:
        """Keep some rows; record what the table lacks if there are none."""
        kept = [row for row in self.rows if is_kept(row)]
        if not kept:
            self.lack(lacks)
        self.rows = kept

    def levels_of(self, factor: str, rows: Rows) -> list[Any]:
        """Return the levels of a factor, ordered by size or number if possible."""
        every = dict.fromkeys(getattr(row, factor) for row in rows)
        present = [level for level in every if level is not None]
        if factor == "size" and self.sizes:
            return sorted(present, key=self.sizes.__getitem__)
        return sorted(present) if factor in NUMBER_FACTORS else present

    def narrow(self, selection: Selection, *, is_lenient: bool = False) -> tuple[Rows, list[str]]:
        """Return the rows of a selection, and what it lacks."""
        # If lenient, also those without the factors at all. Positions and nearest levels are
        # resolved among the rows that match everything else.
        rows, lacks = self.rows, list[str]()
        for factor, chosen in selected(selection).items():
            if not rows:
                break
            if factor == "size" and chosen.is_relative and self.sizes is None:
                return (), [*lacks, _UNORDERED]
            available = self.levels_of(factor, rows)
            picked = chosen.pick(available)
            absent = [one for one in chosen.values if not levels(factor, one).pick(available)]
            lacks += [_lacking(factor, one, available) for one in absent]
            if not picked and not absent:
                lacks.append(f"no {factor_text(factor)} {chosen.text}")
            kept = {*picked, *([None] if is_lenient else [])}
            rows = [row for row in rows if getattr(row, factor) in kept]
        return rows, lacks

    def pairs(self, first: Selection, second: Selection) -> list[tuple[Any, Any]]:
        """Return every row of one selection with each counterpart in the other."""
        # What only the second selection lacks is not recorded; a row without a counterpart gets a
        # placeholder that names it.
        (ones, lacks), (others, _) = self.narrow(first), self.narrow(second)
        self.lack(*(lacks if ones or lacks else ["no model of the first selection"]))
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

    def relation(self, row: Any, other: Any) -> tuple[str | None, bool | None]:
        """Return whether a value is `higher`, `lower` or `equal`, and whether significantly so."""
        # A test says both or neither. Without tests, the overlap of intervals decides, if known.
        if math.isnan(row.mean - other.mean):
            return None, None
        if not self.are_tested([row]):
            distance, width = abs(row.mean - other.mean), row.half_width + other.half_width
            return _by_means(row, other), None if math.isnan(width) else distance > width + CLOSE
        (key, *more), (other_key, *others) = row.terms, other.terms
        if not (more or others) and key[1] == other_key[1]:  # two models on one dataset
            found = self.family(key[1]).compare(key[0], other_key[0])
        else:
            weights = weighted((1, row), (-1, other))
            found = contrast(self.scores, weights, blocks=blocks_for(self.scores, weights))
            if found is not None and found.p_value is not None:
                p_value = found.p_corrected(found.p_value * self.num_comparisons)
                found = replace(found, p_adjusted=p_value)
        return (found.verdict, True) if found is not None and found.is_clear else (None, None)

    def _is_met(self, row: Any, other: Any, expect: str) -> bool | None:
        """Return whether one value relates to another as expected; None if unknown."""
        relation, is_apart = self.relation(row, other)
        if relation is None:
            return None
        direction = expect.rsplit(maxsplit=1)[-1]
        holds = relation == direction or (direction == "different" and relation != "equal")
        # Without the right direction there is no significant difference either.
        if holds and "significantly" in expect:
            holds = is_apart
        return None if holds is None else holds != expect.startswith("not ")

    def _need(self, needs: Mapping[str, int], where: Selection) -> None:
        """Drop all rows, and record why, if a factor has fewer levels than are needed."""
        firm = {f: w for f, w in where.items() if not (isinstance(w, str) and w in POSITIONS)}
        rows, lacks = self.narrow(firm, is_lenient=True)
        if rows:
            lacks = [
                f"fewer than {number} levels of {factor_text(factor)}"
                for factor, number in needs.items()
                if len(self.levels_of(known(factor, ORDERED_FACTORS), rows)) < number
            ][:1]
        if lacks or not rows:
            self.lack(*lacks)
            self.rows = ()

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
            is_known = not any(math.isnan(row.mean) for row in group) and (
                not self.are_tested(group)
                or all(self.relation(best, one)[0] == "higher" for one in group if one is not best)
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


# The value of each level, and whether one level is ahead of another.
_Ordered = tuple[dict[Any, float], Callable[[Any, Any], bool]]


def _extreme(
    asked: _Question,
    shared: Mapping[str, Any],
    rows: Rows,
    sought: set[Any],
    *,
    factors: Sequence[str],
    word: str,
    order: Callable[[_Question, Rows, Sequence[str], str], _Ordered],
    is_not: bool,
) -> Comparison:
    """Return whether the sought levels of a group of models are `higher` or `lower`."""
    # `factors` are the factor of the levels and, optionally, another one, over whose levels values
    # are aggregated: then there is a row for every combination of levels.
    over, available = factors[0], asked.levels_of(factors[0], rows)
    if not (rest := {*available} - sought):
        return Comparison(f"no other {factor_text(over)}", None, shared)
    cells = {tuple(getattr(row, factor) for factor in factors) for row in rows}
    is_full = len(cells) == math.prod(len({*every}) for every in zip(*cells, strict=True))
    if not is_full or any(math.isnan(row.mean) for row in rows):
        return Comparison("no number", None, shared, rows)
    values, is_ahead = order(asked, rows, factors, word)

    def lead(side: set[Any]) -> bool:
        others = {*available} - side
        return any(all(is_ahead(one, other) for other in others) for one in side)

    holds = None if asked.are_tested(rows) else False  # a tie of means is not won
    if (are_sought := lead(sought)) or lead(rest):
        holds = are_sought != is_not
    winner = next((level for level in available if lead({level})), None)
    text = ", ".join(f"{values[x]:z.2f} at {level_text(over, x)}" for x in available)
    return Comparison(text, holds, shared, rows, winner)


def _by_value(asked: _Question, rows: Rows, factors: Sequence[str], word: str) -> _Ordered:
    """Order levels by their best value, or by the mean over another factor."""
    by_level: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        by_level[getattr(row, factors[0])].append(row)
    best = {level: max(every, key=lambda row: row.mean) for level, every in by_level.items()}
    if len(factors) > 1:
        best = {
            level: Row(
                mean=fmean(row.mean for row in every),
                terms=weighted(*((1 / len(every), row) for row in every)),
            )
            for level, every in by_level.items()
        }
    values = {level: row.mean for level, row in best.items()}
    return values, lambda one, other: asked.relation(best[one], best[other])[0] == word


def _by_rank(asked: _Question, rows: Rows, factors: Sequence[str], word: str) -> _Ordered:
    ranks = _mean_ranks(rows, factors, lambda row, other: asked.relation(row, other)[0], word)
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


def _refuse_significance(expect: str, options: Mapping[str, Any]) -> None:
    if "significantly" in expect and {"gap", "best_level"} & {*options}:
        raise ValueError(f"'{expect}': only scores have intervals; omit 'significantly'")


def _names(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _lacking(factor: str, level: Any, available: Sequence[Any]) -> str:
    """Say that the table has no such level; a name in other letters is offered."""
    if factor == "finished":
        return f"no {'finished' if level else 'intermediate'} models"
    likely = [one for one in available if str(one).lower() == str(level).lower()]
    meant = f" (did you mean '{likely[0]}'?)" if likely else ""
    return f"no {factor_text(factor)} {level_text(factor, level)}{meant}"
