"""The level of a factor with the best, or the worst, value."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from biphasic.analysis.claims.questions import Comparison, Question, by_mean, reasons
from biphasic.analysis.claims.table import (
    CLOSE,
    Levels,
    Row,
    Rows,
    factor_name,
    grouped,
    held_factors,
    level_text,
)

Relation = Callable[[Any, Any], str | None]
"""Whether one row is `higher` than another, `lower` or `equal`; None if tests do not decide."""


@dataclass(frozen=True)
class Extreme:
    """Finds the level of a factor with the best, or the worst, value."""

    over: str
    sought: Levels
    is_best: bool
    is_not: bool
    """Whether the sought levels must not be the extreme."""
    across: str
    """Another factor, over whose levels values are aggregated; empty without."""
    is_rank: bool
    """Whether the mean rank is used instead of the mean."""

    def __call__(self, asked: Question) -> Iterator[Comparison]:
        """Yield a comparison for each group of models."""
        groups, name = [], factor_name(self.over)
        factors = [factor for factor in (self.over, self.across) if factor]
        for shared, every in grouped(asked.rows, held_factors({self.over, self.across})):
            group = [row for row in every if all(getattr(row, f) is not None for f in factors)]
            available = asked.levels_of(self.over, group)
            if chosen := {*self.sought.pick(available)}:
                groups.append((shared, group, available, chosen))
        asked.num_comparisons = sum(math.comb(len(available), 2) for _, _, available, _ in groups)
        for shared, group, available, chosen in groups:
            if len(chosen) < len(available):
                yield self._of_group(asked, shared, group, available, chosen)
            else:
                only = ", ".join(level_text(self.over, level) for level in available)
                missing = f"nothing to compare with: {name} is only {only}"
                yield Comparison("no number", None, missing, shared)
        if not groups:
            asked.lack(f"no {name} {self.sought.text} to compare with others")

    def _of_group(
        self,
        asked: Question,
        shared: Mapping[str, Any],
        group: Rows,
        available: list[Any],
        sought: set[Any],
    ) -> Comparison:
        missing = reasons(group)
        if any(math.isnan(row.mean) for row in group):
            return Comparison("no number", None, missing, shared, group)
        if self.across and not self._is_complete(group):
            missing = f"some levels of {self.across} are missing"
            return Comparison("no number", None, missing, shared, group)
        values, is_ahead = self._order(asked, group)
        text = ", ".join(f"{values[x]:.2f} at {level_text(self.over, x)}" for x in available)
        leaders = _leaders(available, sought, is_ahead)
        holds = (leaders <= sought) != self.is_not if leaders else None
        if not leaders and not asked.is_tested(group):
            holds = False  # a tie
        elif not leaders:
            which = f"which {factor_name(self.over)} is {'best' if self.is_best else 'lowest'}"
            missing = missing or f"the data do not decide {which}"
        winner = next(iter(leaders)) if len(leaders) == 1 else None
        return Comparison(text, holds, missing, shared, group, winner)

    def _is_complete(self, group: Rows) -> bool:
        cells = {(getattr(row, self.across), getattr(row, self.over)) for row in group}
        lines, available = ({*part} for part in zip(*cells, strict=True))
        return len(cells) == len(lines) * len(available)

    def _order(
        self, asked: Question, group: Rows
    ) -> tuple[dict[Any, float], Callable[[Any, Any], bool]]:
        """Return the value of each level, and whether one level is ahead of another."""
        word = "higher" if self.is_best else "lower"
        if self.is_rank:
            ranks = self._mean_ranks(group, asked.relation, word)
            shown = self._mean_ranks(group, by_mean, "higher")
            values = {level: low for level, (low, _) in shown.items()}
            return values, lambda one, other: ranks[one][1] < ranks[other][0] - CLOSE
        rows: dict[Any, Any] = {}
        for level in {getattr(row, self.over) for row in group}:
            there = [row for row in group if getattr(row, self.over) == level]
            rows[level] = _mean_of(there) if self.across else max(there, key=lambda row: row.mean)
        values = {level: row.mean for level, row in rows.items()}
        return values, lambda one, other: asked.relation(rows[one], rows[other]) == word

    def _mean_ranks(
        self, group: Rows, relation: Relation, word: str
    ) -> dict[Any, tuple[float, float]]:
        """Return the lowest and highest mean rank of each level; ties share their mean rank."""
        ends: dict[Any, list[tuple[float, float]]] = defaultdict(list)
        for row in group:
            line = [other for other in group if other is not row
                    and getattr(other, self.across) == getattr(row, self.across)]  # fmt: skip
            relations = [relation(row, other) for other in line]
            highest = 1 + len(line) - relations.count(word) - relations.count("equal") / 2
            ends[getattr(row, self.over)].append((highest - relations.count(None), highest))
        return {
            level: (fmean(low for low, _ in pairs), fmean(high for _, high in pairs))
            for level, pairs in ends.items()
        }


def _mean_of(rows: Rows) -> Any:
    terms = (term._replace(weight=term.weight / len(rows)) for row in rows for term in row.terms)
    return Row(mean=fmean(row.mean for row in rows), terms=tuple(terms))


def _leaders(
    available: Sequence[Any], sought: set[Any], is_ahead: Callable[[Any, Any], bool]
) -> set[Any]:
    """Return a level that is ahead of all others.

    If only sought levels, or only others, share the lead, return these; empty if both do, or if
    the data cannot decide.
    """
    every = {*available}
    for side in (*({level} for level in available), sought, every - sought):
        if any(all(is_ahead(one, other) for other in every - side) for one in side):
            return side
    return set()
