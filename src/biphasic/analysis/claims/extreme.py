"""The level of a factor with the best, or the worst, value."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Any

from biphasic.analysis.claims.check import Comparison
from biphasic.analysis.claims.levels import Levels
from biphasic.analysis.claims.question import Question, by_mean
from biphasic.analysis.claims.rows import (
    CLOSE,
    Row,
    Rows,
    factor_text,
    grouped,
    held_factors,
    level_text,
)

# Whether one row is `higher` than another, `lower` or `equal`; None if tests do not decide.
Relation = Callable[[Any, Any], str | None]
# The value of each level, and whether one level is ahead of another.
Ordered = tuple[dict[Any, float], Callable[[Any, Any], bool]]


def extremes(
    asked: Question,
    factors: Sequence[str],
    sought: Levels,
    word: str,
    *,
    is_not: bool,
    is_rank: bool,
) -> Iterator[Comparison]:
    """Yield for each group of models whether the sought levels are `higher` or `lower`."""
    # `factors` are the factor of the levels and, optionally, another one, over whose levels values
    # are aggregated by their mean or mean rank.
    over, across, groups = factors[0], factors[1:], []
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
        is_full = len(cells) == math.prod(len({*levels}) for levels in zip(*cells, strict=True))
        if not rows or any(math.isnan(row.mean) for row in rows) or not is_full:
            text = "no number" if rows else f"no other {factor_text(over)}"
            yield Comparison(text, None, shared, rows)
            continue
        order = _by_rank if is_rank else _by_mean if across else _by_best
        values, is_ahead = order(rows, factors, asked.relation, word)
        text = ", ".join(f"{values[x]:z.2f} at {level_text(over, x)}" for x in available)
        leaders = _leaders(available, chosen, is_ahead)
        holds = (leaders <= chosen) != is_not if leaders else None
        if not leaders and not asked.are_tested(rows):
            holds = False  # a tie
        winner = next(iter(leaders)) if len(leaders) == 1 else None
        yield Comparison(text, holds, shared, rows, winner)
    if not groups:
        asked.lack(f"no {factor_text(over)} {sought.text} to compare with others")


def _by_best(rows: Rows, factors: Sequence[str], relation: Relation, word: str) -> Ordered:
    best: dict[Any, Any] = {}
    for row in sorted(rows, key=lambda row: -row.mean):
        best.setdefault(getattr(row, factors[0]), row)
    values = {level: row.mean for level, row in best.items()}
    return values, lambda one, other: relation(best[one], best[other]) == word


def _by_mean(rows: Rows, factors: Sequence[str], relation: Relation, word: str) -> Ordered:
    means = []
    for level in dict.fromkeys(getattr(row, factors[0]) for row in rows):
        there = [row for row in rows if getattr(row, factors[0]) == level]
        terms = (t._replace(weight=t.weight / len(there)) for row in there for t in row.terms)
        mean = fmean(row.mean for row in there)
        means.append(Row(**{factors[0]: level}, mean=mean, terms=tuple(terms)))
    return _by_best(means, factors, relation, word)


def _by_rank(rows: Rows, factors: Sequence[str], relation: Relation, word: str) -> Ordered:
    ranks = _mean_ranks(rows, factors, relation, word)
    shown = _mean_ranks(rows, factors, by_mean, "higher")
    values = {level: low for level, (low, _) in shown.items()}
    return values, lambda one, other: ranks[one][1] < ranks[other][0] - CLOSE


def _mean_ranks(
    rows: Rows, factors: Sequence[str], relation: Relation, word: str
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
