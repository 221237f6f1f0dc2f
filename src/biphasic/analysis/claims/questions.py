"""Questions on the table of scores; each of their comparisons holds, fails, or is unknown.

Factors that a question does not name are held equal: only models that agree in all other factors
are compared. An answer is True, False or None: the table cannot decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any

from biphasic.analysis.claims.differences import Differences
from biphasic.analysis.claims.table import (
    CLOSE,
    NUMBER_FACTORS,
    Levels,
    Row,
    Rows,
    Selection,
    describe,
    factor_name,
    grouped,
    held_factors,
    known,
    level_text,
    levels,
    phrase,
    selected,
)
from biphasic.analysis.text import listing

OUTCOMES = tuple(
    f"{negation}{sign}{direction}"
    for negation in ("", "not ")
    for sign in ("", "significantly ")
    for direction in ("higher", "lower", "different")
)
COURSES = (
    *(f"{never}{course}s" for never in ("", "never ") for course in ("increase", "decrease")),
    *(f"never significantly {course}" for course in ("increases", "decreases")),
    *(f"{course} in the middle" for course in ("dips", "peaks")),
)


@dataclass(frozen=True)
class Comparison:
    """One comparison with its numbers."""

    text: str
    """The numbers as text; a star marks a clear difference, or separate intervals."""
    holds: bool | None
    """None if the table cannot decide."""
    missing: str = ""
    """What is needed for a decision."""
    factors: Mapping[str, Any] = field(default_factory=dict)
    """Factors of the compared models."""
    rows: Rows = ()
    """The compared rows."""
    winner: Any = None
    """For `best` and `worst`: the level found."""
    where: str = ""
    """Factors as text; empty if there is only one comparison."""

    @property
    def has_numbers(self) -> bool:
        """Whether it compares scores, even if these do not decide it."""
        return self.holds is not None or sum(row.is_scored for row in self.rows) > 1


def all_hold(answers: Iterable[bool | None]) -> bool | None:
    """Return whether all answers are yes; None if it depends on unknown ones."""
    distinct = {*answers}
    return False if False in distinct else None if None in distinct else True


def any_holds(answers: Iterable[bool | None]) -> bool | None:
    """Return whether any answer is yes; None if it depends on unknown ones."""
    distinct = {*answers}
    return True if True in distinct else None if None in distinct or not distinct else False


def reasons(rows: Rows) -> str:
    """Return why scores are missing, or may change."""
    return "; ".join(dict.fromkeys(row.missing for row in rows if row.missing))


def _merged(row: Any, partner: Any, held: Sequence[str]) -> dict[str, Any]:
    """Return the held factors of two rows, from the second where the first has none."""
    mine = {factor: getattr(row, factor) for factor in held}
    return {f: getattr(partner, f) if mine[f] is None else mine[f] for f in held}


def _do_agree(one: Any, other: Any, held: Sequence[str]) -> bool:
    return all(
        getattr(one, factor) == getattr(other, factor)
        or (factor == "mask_rate" and None in {one.mask_rate, other.mask_rate})
        for factor in held
    )


def by_mean(row: Any, other: Any) -> str:
    """Return whether a mean is `higher` than another, `lower` or `equal`."""
    if abs(row.mean - other.mean) <= CLOSE:
        return "equal"
    return "higher" if row.mean > other.mean else "lower"


@dataclass
class Question:
    """The rows of a question, how they are compared, and what the table lacks."""

    sizes: Mapping[str, float] | None
    """Numbers that order the sizes; None if unknown."""
    tests: Differences | None
    """None for a published table, with only means and half-widths."""
    rows: Rows = ()
    kind: str = "score"
    """Kind of value: a `score`, a `difference`, or a `level`."""
    num_comparisons: int = 0
    bound: dict[str, None] = field(default_factory=dict)
    """Levels that relative words were resolved to; an ordered set."""
    missing: dict[str, None] = field(default_factory=dict)
    """What the table lacks; an ordered set."""

    def lack(self, text: str) -> None:
        """Record something that the table lacks."""
        self.missing[text] = None

    def levels_of(self, factor: str, rows: Rows) -> list[Any]:
        """Return the levels of a factor, ordered by size or number if possible."""
        every = dict.fromkeys(getattr(row, factor) for row in rows)
        present = [level for level in every if level is not None]
        if factor == "size":
            return sorted(present, key=self.sizes.__getitem__) if self.sizes else present
        return sorted(present) if factor in NUMBER_FACTORS else present

    def is_unordered(self, factor: str) -> bool:
        """Return and record whether a factor has no order: sizes without parameter counts."""
        is_unordered = factor == "size" and self.sizes is None
        if is_unordered:
            self.lack("sizes have no order: numbers of parameters are unknown")
        return is_unordered

    def narrow(self, selection: Selection, *, is_lenient: bool = False) -> Rows:
        """Return the rows of a selection; if lenient, also those without the factors at all.

        Positions and nearest levels are resolved among the rows that match everything else.
        """
        rows = self.rows
        if "finished" in selection and rows:
            rows = [row for row in rows if row.finished == selection["finished"]]
            if not rows:
                self.lack(f"no {'finished' if selection['finished'] else 'intermediate'} models")
        by_factor = {f: w for f, w in selected(selection).items() if f not in {"dataset", "group"}}
        for factor, chosen in sorted(by_factor.items(), key=lambda item: item[1].is_relative):
            if not rows:
                break
            picked = self._picked(factor, chosen, rows)
            kept = {*picked, *([None] if is_lenient else [])}
            rows = [row for row in rows if getattr(row, factor) in kept]
        return rows

    def _picked(self, factor: str, chosen: Levels, rows: Rows) -> list[Any]:
        if chosen.is_relative and self.is_unordered(factor):
            return []
        available, name = self.levels_of(factor, rows), phrase(factor, chosen)
        picked = chosen.pick(available)
        absent = [value for value in chosen.values if not levels(factor, value).pick(available)]
        for value in absent:
            self.lack(f"no {factor_name(factor)} {level_text(factor, value)}")
        if chosen.is_relative and not picked:
            has = ", ".join(level_text(factor, level) for level in available) or "none"
            self.lack(f"no {name}{chosen.within}; available: {has}")
        elif chosen.is_relative and chosen.text != f"nearest {level_text(factor, picked[0])}":
            self.bound[f"{name}: {level_text(factor, picked[0])}"] = None
        elif not picked and not absent:
            self.lack(f"no {name}")
        return picked

    def pairs(self, first: Selection, second: Selection) -> list[tuple[Any, Any]]:
        """Return every row of one selection with each counterpart in the other.

        Values that the first selection lacks are recorded. Values that only the second lacks are
        not; a row without a counterpart gets a placeholder that states this.
        """
        num_missing = len(self.missing)
        ones = self.narrow(first)
        if not ones and len(self.missing) == num_missing:
            self.lack(f"no model: {describe(first) or 'any'}")
        noted = dict(self.missing)
        others = self.narrow(second)
        self.missing = noted
        held, pairs = held_factors({*first, *second}), []
        for one in ones:
            mine = [other for other in others if _do_agree(one, other, held)]
            none = one._replace(mean=math.nan, terms=(), is_scored=False)
            if any(other.name == one.name for other in mine):
                mine = [none._replace(missing=f"both sides are {one.name}")]
            reason = f"no counterpart of {one.name}: {describe(second) or 'any'}"
            pairs += [(one, other) for other in mine or [none._replace(name="", missing=reason)]]
        return pairs

    def use_gap(self, of: Selection, minus: Selection) -> None:
        """Replace scores by one score minus another, for every pair of rows."""
        held, gaps = held_factors({*of, *minus}), []
        for row, partner in self.pairs(of, minus):
            mean = row.mean - partner.mean
            terms = (*row.terms, *(term._replace(weight=-term.weight) for term in partner.terms))
            gaps.append(Row(
                **_merged(row, partner, held), name=f"{row.name} - {partner.name}", mean=mean,
                missing=reasons([row, partner]), terms=() if math.isnan(mean) else terms,
                is_scored=not math.isnan(mean),
            ))  # fmt: skip
        self.rows, self.kind = gaps, "difference"

    def use_best_level(self, factor: str) -> None:
        """Replace scores by the level at which each group scores highest, the smaller on a tie."""
        best_rows, name = [], factor_name(known(factor, NUMBER_FACTORS))
        for shared, every in grouped(self.rows, held_factors({factor})):
            group = [row for row in every if getattr(row, factor) is not None]
            if len({getattr(row, factor) for row in group}) < 2:
                continue
            row = Row(**shared, is_scored=all(row.is_scored for row in group))
            lacking = [row for row in group if math.isnan(row.mean)]
            best = max(group, key=lambda row: (row.mean, -getattr(row, factor)))
            others = [row for row in group if row is not best]
            self.num_comparisons = len(group)
            if lacking:
                row = row._replace(missing=lacking[0].missing)
            elif self.tests and any(self.relation(best, other) != "higher" for other in others):
                row = row._replace(missing=f"the data do not decide which {name} is best")
            else:
                row = row._replace(name=best.name, mean=getattr(best, factor))
            best_rows.append(row)
        if self.rows and not best_rows:
            self.lack(f"no models that differ only in {name}")
        self.rows, self.kind = best_rows, "level"

    def is_tested(self, rows: Rows) -> bool:
        """Return whether values have scores by seed, so every comparison is a test."""
        return self.tests is not None and all(row.terms for row in rows)

    def relation(self, row: Any, other: Any) -> str | None:
        """Return `higher`, `lower` or, without tests, `equal`; None if the data do not decide."""
        if math.isnan(row.mean - other.mean):
            return None
        if self.tests is None or not row.terms:
            return by_mean(row, other)
        return self.tests.relation(row.terms, other.terms, self.num_comparisons)

    def are_apart(self, row: Any, other: Any) -> bool | None:
        """Return whether two values differ significantly; None without the needed intervals."""
        if self.is_tested([row]):
            return self.relation(row, other) is not None
        width = row.half_width + other.half_width
        return None if math.isnan(width) else abs(row.mean - other.mean) > width + CLOSE

    def is_met(self, row: Any, other: Any, expect: str) -> bool | None:
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

    def text(self, row: Any) -> str:
        """Format the number: `87.85 (0.13)`; a difference with its sign."""
        if math.isnan(row.mean):
            return "?"
        if self.kind != "score":
            return f"{row.mean:+.2f}" if self.kind == "difference" else f"{row.mean:g}"
        interval = "" if math.isnan(row.half_width) else f" ({row.half_width:.2f})"
        return f"{row.mean:.2f}{interval}"

    def listed(self, rows: Rows, over: Sequence[str]) -> str:
        """Format each number with its position."""
        places = [" ".join(level_text(f, getattr(row, f)) for f in over) for row in rows]
        texts = (f"{self.text(r)} at {place}" for r, place in zip(rows, places, strict=True))
        return ", ".join(texts)

    def why_unknown(self, rows: Rows) -> str:
        """Return why no difference between values is clear."""
        has_none = self.kind == "score" and any(math.isnan(row.half_width) for row in rows)
        reason = "no interval, with fewer than two seeds" if has_none else ""
        return f"{reason or 'no clear difference between'}: {', '.join(row.name for row in rows)}"

    def compare(self, first: Selection, second: Selection, expect: str) -> Iterator[Comparison]:
        """Yield the relation of every value of one selection to its counterparts in another."""
        pairs, held = self.pairs(first, second), held_factors({*first, *second})
        self.num_comparisons = len(pairs)
        for pair in pairs:
            sides = ", ".join(f"{row.name} {self.text(row)}" for row in pair)
            difference = pair[0].mean - pair[1].mean
            text = f"{sides}: {difference:+.2f}{'*' if self.are_apart(*pair) else ''}"
            text = "no number" if math.isnan(difference) else text
            yield self._answer(text, all_hold, [(*pair, expect)], _merged(*pair, held), pair)

    def trend(self, along: str, expect: str) -> Iterator[Comparison]:
        """Yield the trend of values along a factor, from its smallest level to its largest."""
        if self.is_unordered(along):
            return
        least, order, runs = 3 if "middle" in expect else 2, self.levels_of(along, self.rows), []
        for shared, group in grouped(self.rows, held_factors({along})):
            run = [row for row in group if getattr(row, along) is not None]
            if len(run) >= least:
                runs.append((shared, sorted(run, key=lambda row: order.index(getattr(row, along)))))
        self.num_comparisons = sum(math.comb(len(run), 2) for _, run in runs)
        for shared, run in runs:
            text = self.listed(run, [along])
            if len({getattr(row, along) for row in run}) < len(run):
                missing = f"several values at one level of {along}: {text}"
                yield Comparison(text, None, missing, shared, run)
            else:
                yield self._answer(text, all_hold, _steps(run, expect), shared, run)
        if not runs:
            name = factor_name(along)
            self.lack(f"no models that differ only in {name} ({least} levels or more)")

    def varies(self, over: Sequence[str]) -> Iterator[Comparison]:
        """Yield whether values differ at all along factors."""
        groups = [(s, g) for s, g in grouped(self.rows, held_factors(over)) if len(g) > 1]
        for shared, group in groups:
            self.num_comparisons = math.comb(len(group), 2)
            steps = [(*pair, "different") for pair in combinations(group, 2)]
            yield self._answer(self.listed(group, over), any_holds, steps, shared, group)
        if not groups:
            names = listing([factor_name(factor) for factor in over])
            self.lack(f"no models or tasks that differ only in {names}")

    def _answer(
        self,
        text: str,
        decide: Callable[[Iterable[bool | None]], bool | None],
        steps: Sequence[tuple[Any, Any, str]],
        factors: Mapping[str, Any],
        rows: Rows,
    ) -> Comparison:
        """Return whether all, or any, of some relations between rows hold."""
        holds, missing = decide([self.is_met(*step) for step in steps]), reasons(rows)
        if any(math.isnan(row.mean) for row in rows):
            holds = holds or None  # nothing is said to fail while a score is missing
        elif holds is None:
            missing = missing or self.why_unknown(rows)
        return Comparison(text, holds, missing, factors, rows)


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
