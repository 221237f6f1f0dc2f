"""Questions on the table of scores; each of their comparisons holds, fails, or is unknown.

Factors that a question does not name are held equal: only models that agree in all other factors
are compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any

from biphasic.analysis.claims.differences import Differences
from biphasic.analysis.claims.table import (
    CLOSE,
    NUMBER_FACTORS,
    Levels,
    Rows,
    Selection,
    Term,
    describe,
    factor_name,
    grouped,
    held_factors,
    known,
    level_text,
    levels,
    phrase,
    row_of,
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
    rows: Sequence[Any] = ()
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


def _reasons(rows: Iterable[Any]) -> str:
    return "; ".join(dict.fromkeys(row.missing for row in rows if row.missing))


def _merged(row: Any, partner: Any, held: Sequence[str]) -> dict[str, Any]:
    """Return the held factors of two rows, from the second where the first has none."""
    mine = {factor: getattr(row, factor) for factor in held}
    return {f: getattr(partner, f) if mine[f] is None else mine[f] for f in held}


@dataclass
class Asked:
    """State of a check: how values are compared, and what was found."""

    sizes: Mapping[str, float] | None
    """Numbers that order the sizes; None if unknown."""
    tests: Differences | None
    """None for a published table, with only means and half-widths."""
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

    def levels_of(self, factor: str, rows: Sequence[Any]) -> list[Any]:
        """Return the levels of a factor, ordered by size or number if possible."""
        every = dict.fromkeys(getattr(row, factor) for row in rows)
        present = [level for level in every if level is not None]
        if factor == "size":
            return sorted(present, key=self.sizes.__getitem__) if self.sizes else present
        return sorted(present) if factor in NUMBER_FACTORS else present

    def narrow(self, rows: Rows, selection: Selection, *, is_lenient: bool) -> Rows:
        """Return the rows of a selection; if lenient, also those without the factors at all.

        Positions and nearest levels are resolved among the rows that match everything else.
        """
        if "finished" in selection and rows:
            rows = [row for row in rows if row.finished == selection["finished"]]
            if not rows:
                self.lack(f"no {'finished' if selection['finished'] else 'intermediate'} models")
        by_factor = {f: w for f, w in selected(selection).items() if f not in {"dataset", "group"}}
        for factor, chosen in sorted(by_factor.items(), key=lambda item: item[1].is_relative):
            if not rows:
                break
            available, name = self.levels_of(factor, rows), phrase(factor, chosen)
            picked = (
                [] if chosen.is_relative and self.is_unordered(factor) else chosen.pick(available)
            )
            absent = [value for value in chosen.values if not levels(factor, value).pick(available)]
            for value in absent:
                shown = value if isinstance(value, str) else level_text(factor, value)
                self.lack(f"no {factor_name(factor)} {shown}")
            if chosen.is_relative and picked:
                if chosen.text != f"nearest {level_text(factor, picked[0])}":
                    self.bound[f"{name}: {level_text(factor, picked[0])}"] = None
            elif chosen.is_relative and not (factor == "size" and self.sizes is None):
                has = ", ".join(level_text(factor, level) for level in available) or "none"
                self.lack(f"no {name}{chosen.within}; available: {has}")
            kept = {*picked, *([None] if is_lenient else [])}
            rows = [row for row in rows if getattr(row, factor) in kept]
            if not rows and not chosen.is_relative and not absent:
                self.lack(f"no {name}")
        return rows

    def is_unordered(self, factor: str) -> bool:
        """Return and record whether a factor has no order: sizes without parameter counts."""
        is_unordered = factor == "size" and self.sizes is None
        if is_unordered:
            self.lack("sizes have no order: numbers of parameters are unknown")
        return is_unordered

    def pairs(self, rows: Rows, first: Selection, second: Selection) -> list[tuple[Any, Any]]:
        """Return every row of one selection with each counterpart in the other.

        Values that the first selection lacks are recorded. Values that only the second lacks are
        not; a row without a counterpart gets a placeholder that states this.
        """
        noted, self.missing = self.missing, {}
        ones = self.narrow(rows, first, is_lenient=False)
        if not ones and not self.missing:
            self.lack(f"no model: {describe(first) or 'any'}")
        noted |= self.missing
        others = self.narrow(rows, second, is_lenient=False)
        self.missing = noted
        held, pairs = held_factors({*first, *second}), []
        for one in ones:
            mine = [other for other in others if _do_agree(one, other, held)]
            reason = f"no counterpart of {one.name}: {describe(second) or 'any'}"
            nothing = {"mean": math.nan, "terms": (), "is_scored": False}
            placeholder = one._replace(**nothing, name="", missing=reason)
            if any(other.name == one.name for other in mine):
                mine = [placeholder._replace(missing=f"both sides are {one.name}", name=one.name)]
            pairs += [(one, other) for other in mine or [placeholder]]
        return pairs

    def gap(self, rows: Rows, of: Selection, minus: Selection) -> Rows:
        """Return one score minus another, for every pair of rows."""
        held, gaps = held_factors({*of, *minus}), []
        for row, partner in self.pairs(rows, of, minus):
            mean = row.mean - partner.mean
            terms = (*row.terms, *(term._replace(weight=-term.weight) for term in partner.terms))
            texts = {"name": f"{row.name} - {partner.name}", "missing": _reasons([row, partner])}
            numbers = {"mean": mean, "terms": () if math.isnan(mean) else terms}
            numbers |= {"is_scored": not math.isnan(mean)}
            gaps.append(row_of(row, **_merged(row, partner, held), **texts, **numbers))
        return gaps

    def best_level(self, rows: Rows, factor: str) -> Rows:
        """Return the level at which each group scores highest, the smaller on a tie."""
        best_rows, name = [], factor_name(factor)
        for shared, group in grouped(rows, held_factors({known(factor, NUMBER_FACTORS)})):
            known_rows = [row for row in group if getattr(row, factor) is not None]
            if len({getattr(row, factor) for row in known_rows}) < 2:
                continue
            row = row_of(known_rows[0], **shared, is_scored=all(r.is_scored for r in known_rows))
            lacking = [row for row in known_rows if math.isnan(row.mean)]
            best = max(known_rows, key=lambda row: (row.mean, -getattr(row, factor)))
            self.num_comparisons = len(known_rows)
            if lacking:
                row = row._replace(missing=lacking[0].missing)
            elif self.tests and any(
                other is not best and self.relation(best.terms, other.terms) != "higher"
                for other in known_rows
            ):
                row = row._replace(missing=f"the data do not decide which {name} is best")
            else:
                row = row._replace(name=best.name, mean=getattr(best, factor))
            best_rows.append(row)
        if rows and not best_rows:
            self.lack(f"no models that differ only in {name}")
        return best_rows

    def can_test(self, *rows: Any) -> bool:
        """Return whether values have scores by seed, so every comparison is a test."""
        return self.tests is not None and all(row.terms for row in rows)

    def relation(self, terms: Sequence[Term], other: Sequence[Term]) -> str | None:
        """Return `higher` or `lower`; None if no test decides."""
        return self.tests and self.tests.relation(terms, other, self.num_comparisons)

    def are_apart(self, row: Any, other: Any) -> bool | None:
        """Return whether two values differ significantly; None without the needed intervals."""
        if self.can_test(row):
            return self.relation(row.terms, other.terms) is not None
        width = row.half_width + other.half_width
        return None if math.isnan(width) else abs(row.mean - other.mean) > width + CLOSE

    def is_met(self, row: Any, other: Any, expect: str) -> bool | None:
        """Return whether one value relates to another as expected; None if unknown."""
        is_negated, relation = expect.startswith("not "), expect.removeprefix("not ")
        direction = relation.removeprefix("significantly ")
        if self.can_test(row):
            observed = self.relation(row.terms, other.terms)
            return (
                None if observed is None else (direction in {observed, "different"}) != is_negated
            )
        difference = row.mean - other.mean
        ahead = {"higher": difference, "lower": -difference, "different": abs(difference)}
        is_so = ahead[direction] > CLOSE
        is_significant = direction == relation or self.are_apart(row, other)
        # Without the right direction there is no significant difference either.
        if is_so and is_significant is None:
            return None
        return (is_so and is_significant) != is_negated

    def text(self, row: Any) -> str:
        """Format the number: `87.85 (0.13)`; a difference with its sign."""
        if math.isnan(row.mean):
            return "?"
        if self.kind != "score":
            return f"{row.mean:+.2f}" if self.kind == "difference" else f"{row.mean:g}"
        interval = "" if math.isnan(row.half_width) else f" ({row.half_width:.2f})"
        return f"{row.mean:.2f}{interval}"

    def listed(self, rows: Sequence[Any], over: Sequence[str]) -> str:
        """Format each number with its position."""
        places = [" ".join(level_text(f, getattr(row, f)) for f in over) for row in rows]
        return ", ".join(
            f"{self.text(r)} at {place}" for r, place in zip(rows, places, strict=True)
        )

    def why_unknown(self, rows: Sequence[Any]) -> str:
        """Return why no difference between values is clear."""
        has_none = self.kind == "score" and any(math.isnan(row.half_width) for row in rows)
        reason = "no interval, with fewer than two seeds" if has_none else ""
        return f"{reason or 'no clear difference between'}: {', '.join(row.name for row in rows)}"


def _do_agree(one: Any, other: Any, held: Iterable[str]) -> bool:
    for factor in held:
        pair = {getattr(one, factor), getattr(other, factor)}
        if len(pair) > 1 and not (factor == "mask_rate" and None in pair):
            return False
    return True


def compare(
    rows: Rows, asked: Asked, *, first: Selection, second: Selection, expect: str
) -> Iterator[Comparison]:
    """Yield the relation of every value of one selection to its counterparts in another."""
    pairs, held = asked.pairs(rows, first, second), held_factors({*first, *second})
    asked.num_comparisons = len(pairs)
    for pair in pairs:
        factors, difference = _merged(*pair, held), pair[0].mean - pair[1].mean
        if math.isnan(difference):
            yield Comparison("no number", None, _reasons(pair), factors, pair)
            continue
        holds = asked.is_met(*pair, expect)
        sides = ", ".join(f"{row.name} {asked.text(row)}" for row in pair)
        text = f"{sides}: {difference:+.2f}{'*' if asked.are_apart(*pair) else ''}"
        missing = asked.why_unknown(pair) if holds is None else _reasons(pair)
        yield Comparison(text, holds, missing, factors, pair)


def trend(rows: Rows, asked: Asked, *, along: str, expect: str) -> Iterator[Comparison]:
    """Yield the trend of values along a factor, from its smallest level to its largest."""
    if asked.is_unordered(along):
        return
    least, order, runs = 3 if "middle" in expect else 2, asked.levels_of(along, rows), []
    for shared, group in grouped(rows, held_factors({along})):
        run = [row for row in group if getattr(row, along) is not None]
        if len(run) >= least:
            runs.append((shared, sorted(run, key=lambda row: order.index(getattr(row, along)))))
    asked.num_comparisons = sum(math.comb(len(run), 2) for _, run in runs)
    for shared, run in runs:
        levels_ = [getattr(row, along) for row in run]
        text = asked.listed(run, [along])
        if len({*levels_}) < len(levels_):
            missing = f"several values at one level of {along}: {text}"
            yield Comparison(text, None, missing, shared, run)
            continue
        holds, missing = _is_followed(run, expect, asked), _reasons(run)
        missing = missing or (asked.why_unknown(run) if holds is None else "")
        yield Comparison(text, holds, missing, shared, run)
    if not runs:
        name = factor_name(along)
        asked.lack(f"no models that differ only in {name} ({least} levels or more)")


def _is_followed(run: list[Any], expect: str, asked: Asked) -> bool | None:
    if any(math.isnan(row.mean) for row in run):
        return None
    if "middle" in expect:  # a dip: both ends are above all values in between
        relation = "higher" if expect.startswith("dips") else "lower"
        pairs = [(end, inner) for end in (run[0], run[-1]) for inner in run[1:-1]]
    elif expect.startswith("never "):
        relation = "not significantly " if "significantly" in expect else "not "
        relation += "higher" if expect.endswith("decreases") else "lower"
        pairs = [*combinations(run, 2)]
    else:
        relation = "lower" if expect == "increases" else "higher"
        pairs = [*pairwise(run)]
    return all_hold(asked.is_met(*pair, relation) for pair in pairs)


def varies(rows: Rows, asked: Asked, *, over: Sequence[str]) -> Iterator[Comparison]:
    """Yield whether values differ at all along factors."""
    groups = [(s, g) for s, g in grouped(rows, held_factors(over)) if len(g) > 1]
    for shared, group in groups:
        missing = _reasons(group)
        values = [row.mean for row in group if not math.isnan(row.mean)]
        is_varied = bool(values) and max(values) - min(values) > CLOSE
        holds = True if is_varied else False if values and not missing else None
        asked.num_comparisons = math.comb(len(group), 2)
        if asked.can_test(*group):
            holds = any(asked.are_apart(*pair) for pair in combinations(group, 2)) or None
            missing = missing or ("" if holds else asked.why_unknown(group))
        yield Comparison(asked.listed(group, over), holds, missing, shared, group)
    if not groups:
        names = listing([factor_name(factor) for factor in over])
        asked.lack(f"no models or tasks that differ only in {names}")


def _ranks(means: Sequence[float]) -> list[float]:
    """Return the rank of each mean, from 1 for the highest; ties share the mean of their ranks."""
    return [sum(o > mean for o in means) + (means.count(mean) + 1) / 2 for mean in means]


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

    def __call__(self, rows: Rows, asked: Asked) -> Iterator[Comparison]:
        """Yield a comparison for each group of models."""
        groups, name = [], factor_name(self.over)
        for shared, group in grouped(rows, held_factors({self.over, self.across})):
            known_rows = [row for row in group if getattr(row, self.over) is not None]
            available = asked.levels_of(self.over, known_rows)
            if sought := {*self.sought.pick(available)}:
                groups.append((shared, known_rows, available, sought))
        asked.num_comparisons = sum(math.comb(len(available), 2) for _, _, available, _ in groups)
        for shared, group, available, sought in groups:
            text, holds, missing, winner = self._of_group(group, available, sought, asked)
            compared = group if len(sought) < len(available) else ()
            yield Comparison(text, holds, missing or _reasons(group), shared, compared, winner)
        if not groups:
            asked.lack(f"no {name} {self.sought.text} to compare with others")

    def _of_group(
        self, group: list[Any], available: list[Any], sought: set[Any], asked: Asked
    ) -> tuple[str, bool | None, str, Any]:
        name = factor_name(self.over)
        if len(sought) == len(available):
            only = ", ".join(level_text(self.over, level) for level in available)
            return "no number", None, f"nothing to compare with: {name} is only {only}", None
        if any(math.isnan(row.mean) for row in group):
            return "no number", None, "", None
        values = {x: max(r.mean for r in group if getattr(r, self.over) == x) for x in available}
        if self.across:
            cells = {(getattr(r, self.across), getattr(r, self.over)): r.mean for r in group}
            lines = [line for line in dict.fromkeys(line for line, _ in cells) if line is not None]
            grid = [[cells.get((line, level), math.nan) for level in available] for line in lines]
            if not grid or any(math.isnan(mean) for means in grid for mean in means):
                return "no number", None, f"some levels of {self.across} are missing", None
            grid = [_ranks(means) for means in grid] if self.is_rank else grid
            values = {
                level: sum(column) / len(grid)
                for level, column in zip(available, zip(*grid, strict=True), strict=True)
            }
        # The best rank is the lowest one.
        lead = (max if self.is_best != self.is_rank else min)(values[level] for level in available)
        winners, missing = {x for x in available if abs(values[x] - lead) <= CLOSE}, ""
        text = ", ".join(f"{values[x]:.2f} at {level_text(self.over, x)}" for x in available)
        holds = not winners & sought if self.is_not else winners <= sought
        if asked.can_test(*group):
            winners = self._clear_winners(group, available, sought, asked)
            holds = (winners <= sought) != self.is_not if winners else None
            which = "best" if self.is_best else "lowest"
            if not winners:
                missing = _reasons(group) or f"the data do not decide which {name} is {which}"
        return text, holds, missing, next(iter(winners)) if len(winners) == 1 else None

    def _clear_winners(
        self, group: list[Any], available: list[Any], sought: set[Any], asked: Asked
    ) -> set[Any]:
        """Return a level that is clearly ahead of all others.

        If only sought levels, or only others, share the lead, return these; empty if the data
        cannot decide.
        """
        word = "higher" if self.is_best else "lower"
        ranges = self._rank_ranges(group, available, word, asked) if self.is_rank else {}
        terms = {level: self._terms(group, level) for level in available}

        def is_ahead(one: Any, other: Any) -> bool:
            if ranges:
                return ranges[one][1] < ranges[other][0]
            return asked.relation(terms[one], terms[other]) == word

        every = {*available}
        for side in (*({level} for level in available), sought, every - sought):
            if any(all(is_ahead(one, other) for other in every - side) for one in side):
                return side
        return set()

    def _terms(self, group: list[Any], level: Any) -> tuple[Term, ...]:
        """Return the highest score of a level, or the mean of its scores."""
        there = [row for row in group if getattr(row, self.over) == level]
        if not self.across:
            return max(there, key=lambda row: row.mean).terms
        scores = [term for row in there for term in row.terms]
        return tuple(term._replace(weight=term.weight / len(there)) for term in scores)

    def _rank_ranges(
        self, group: list[Any], available: list[Any], word: str, asked: Asked
    ) -> dict[Any, tuple[float, float]]:
        """Return the lowest and highest mean rank of each level that the tests allow."""
        ends: dict[Any, list[tuple[int, int]]] = {level: [] for level in available}
        for row in group:
            across = getattr(row, self.across)
            others = [o for o in group if getattr(o, self.across) == across and o is not row]
            relations = [asked.relation(row.terms, other.terms) for other in others]
            ahead, undecided = relations.count(word), relations.count(None)
            behind = len(relations) - ahead - undecided
            ends[getattr(row, self.over)].append((1 + behind, len(others) + 1 - ahead))
        return {
            level: (sum(low for low, _ in e) / len(e), sum(high for _, high in e) / len(e))
            for level, e in ends.items()
        }
