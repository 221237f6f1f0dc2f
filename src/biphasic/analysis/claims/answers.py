"""Questions answered: each comparison holds, fails, or cannot be told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from biphasic.analysis.claims.language import Compare, Extreme, Trend, Varies
from biphasic.analysis.claims.narrow import (
    Notes,
    describe_levels,
    factor_name,
    grouped,
    held_factors,
    level_text,
    levels_of,
    resolved,
)
from biphasic.analysis.claims.rows import Level, Row, Table
from biphasic.analysis.claims.values import narrow_side, partners
from biphasic.analysis.text import listing

_CLOSE = 1e-9  # published numbers have two decimals; intervals that touch overlap


@dataclass(frozen=True)
class Comparison:
    """One comparison with its numbers."""

    factors: Mapping[str, Level | None]
    """What it is of."""
    text: str
    """The numbers, for people."""
    holds: bool | None
    """None where the table cannot tell."""
    missing: str = ""
    """What it would take."""
    rows: tuple[Row, ...] = ()
    """What was compared."""
    winner: Level | None = None
    """Of `best` and `worst`: the level found."""


def answer_compare(
    question: Compare, rows: Sequence[Row], table: Table, notes: Notes
) -> list[Comparison]:
    """Compare every row of the first selection with its counterparts."""
    first = narrow_side(rows, question.first, table, notes, is_subject=True)
    second = narrow_side(rows, question.second, table, notes, is_subject=False)
    held = held_factors(question.first.named() | question.second.named())
    pairs = [
        (row, partner) for row in first for partner in partners(row, second, held, question.second)
    ]
    ask = _Asked(table, len(pairs))
    return [_pair(row, partner, held, question.expect, ask) for row, partner in pairs]


@dataclass(frozen=True)
class _Asked:
    """How values are compared in a check."""

    table: Table
    num_comparisons: int

    def can_test(self, row: Row) -> bool:
        """Tell whether a value is of scores by seed, so that every comparison is a test."""
        return self.table.differences is not None and bool(row.terms)

    def relation(self, row: Row, other: Row) -> str | None:
        """Return `higher` or `lower`; None where no test can tell."""
        if self.table.differences is None:
            return None
        return self.table.differences.relation(row, other, num_comparisons=self.num_comparisons)

    def are_apart(self, row: Row, other: Row) -> bool | None:
        """Tell whether two values differ significantly; None without the intervals it takes."""
        if self.can_test(row):
            return self.relation(row, other) is not None
        if row.half_width is None or other.half_width is None:
            return None
        return abs(row.number - other.number) > row.half_width + other.half_width + _CLOSE

    def is_met(self, row: Row, other: Row, expect: str) -> bool | None:
        """Tell whether one value stands to another as expected; None where nothing can tell."""
        is_negated = expect.startswith("not ")
        relation = expect.removeprefix("not ")
        direction = relation.removeprefix("significantly ")
        if self.can_test(row):
            found = self.relation(row, other)
            return None if found is None else (direction in {found, "different"}) != is_negated
        difference = row.number - other.number
        has_direction = {
            "higher": difference > _CLOSE,
            "lower": difference < -_CLOSE,
            "different": abs(difference) > _CLOSE,
        }[direction]
        if direction == relation:
            return has_direction != is_negated
        is_significant = self.are_apart(row, other)
        if is_significant is None:
            # Without the right direction there is no significant difference either.
            return None if has_direction else is_negated
        return (has_direction and is_significant) != is_negated


def _pair(row: Row, partner: Row, held: Sequence[str], expect: str, ask: _Asked) -> Comparison:
    factors = {
        factor: row.factors.get(factor)
        if row.factors.get(factor) is not None
        else partner.factors.get(factor)
        for factor in held
    }
    missing = "; ".join(dict.fromkeys(filter(None, (row.missing, partner.missing))))
    if row.mean is None or partner.mean is None:
        return Comparison(factors, "no number", None, missing)
    star = "*" if ask.are_apart(row, partner) else ""
    text = f"{row.name} {row.text()}, {partner.name} {partner.text()}: "
    text += f"{row.mean - partner.mean:+.2f}{star}"
    holds = ask.is_met(row, partner, expect)
    if holds is None:
        missing = _untold(row, partner)
    return Comparison(factors, text, holds, missing, (row, partner))


def _untold(*rows: Row) -> str:
    names = ", ".join(row.name for row in rows)
    if any(row.half_width is None and row.kind == "score" for row in rows):
        return f"no interval, with fewer than two seeds: {names}"
    return f"the data cannot tell apart: {names}"


def answer_trend(
    question: Trend, rows: Sequence[Row], table: Table, notes: Notes
) -> list[Comparison]:
    """Follow each group of rows along a factor."""
    along = question.along
    if along == "size" and not table.has_size_order:
        notes.lack("sizes have no order: numbers of parameters are unknown")
        return []
    least = 3 if question.expect.endswith("in the middle") else 2
    runs = []
    for shared, group in grouped(rows, held_factors({along})):
        run = sorted(
            (row for row in group if row.factors.get(along) is not None),
            key=lambda row: table.rank(along, row.factors[along]),
        )
        if len(run) >= least:
            runs.append((run, shared))
    ask = _Asked(table, sum(math.comb(len(run), 2) for run, _ in runs))
    found = [_run(run, shared, question, ask) for run, shared in runs]
    if not found:
        notes.lack(f"no models that differ in {factor_name(along)} alone ({least} levels or more)")
    return found


def _run(
    run: Sequence[Row], shared: Mapping[str, Level | None], question: Trend, ask: _Asked
) -> Comparison:
    levels = [row.factors[question.along] for row in run]
    missing = "; ".join(dict.fromkeys(row.missing for row in run if row.missing))
    text = ", ".join(
        f"{row.text()} at {level_text(question.along, level)}"
        for level, row in zip(levels, run, strict=True)
    )
    if len(set(levels)) < len(levels):
        missing = f"several values at one level of {question.along}: {text}"
        return Comparison(shared, text, None, missing)
    holds = _follows(run, question.expect, ask)
    if holds is None and not missing:
        missing = _untold(*run)
    return Comparison(shared, text, holds, missing, tuple(run))


def _follows(run: Sequence[Row], expect: str, ask: _Asked) -> bool | None:
    """Tell whether a run does what is expected."""
    if any(row.mean is None for row in run):
        return None
    if expect.endswith("in the middle"):
        relation = "higher" if expect.startswith("dips") else "lower"
        pairs = [(end, inner) for end in (run[0], run[-1]) for inner in run[1:-1]]
        return all_hold([ask.is_met(end, inner, relation) for end, inner in pairs])
    if not expect.startswith("never "):
        relation = "lower" if expect == "increases" else "higher"
        return all_hold([ask.is_met(one, next_, relation) for one, next_ in pairwise(run)])
    relation = "not significantly " if "significantly" in expect else "not "
    relation += "higher" if expect.endswith("decreases") else "lower"
    later = [(one, other) for index, one in enumerate(run) for other in run[index + 1 :]]
    return all_hold([ask.is_met(one, other, relation) for one, other in later])


def all_hold(answers: Sequence[bool | None]) -> bool | None:
    """Tell whether all answers are yes; None where unknown ones decide."""
    if False in answers:
        return False
    return None if None in answers else True


def answer_extreme(
    question: Extreme, rows: Sequence[Row], table: Table, notes: Notes, *, is_best: bool
) -> list[Comparison]:
    """Look in each group for the level with the highest, or lowest, value."""
    groups = []
    held = held_factors({question.over, *([question.across] if question.across else [])})
    for shared, group in grouped(rows, held):
        levels = levels_of(group, question.over, table)
        if sought := resolved(question.sought, levels):
            groups.append((shared, group, levels, sought))
    ask = _Asked(table, sum(math.comb(len(levels), 2) for _, _, levels, _ in groups))
    found = [
        _extreme(question, group, levels, sought, shared, ask=ask, is_best=is_best)
        for shared, group, levels, sought in groups
    ]
    if not found:
        wanted = f"{factor_name(question.over)} {describe_levels(question.sought)}"
        notes.lack(f"no {wanted} to compare with others")
    return found


def _extreme(
    question: Extreme,
    group: Sequence[Row],
    levels: Sequence[Level],
    sought: set[Level],
    shared: Mapping[str, Level | None],
    *,
    ask: _Asked,
    is_best: bool,
) -> Comparison:
    rows = [row for row in group if row.factors.get(question.over) is not None]
    missing = "; ".join(dict.fromkeys(row.missing for row in rows if row.missing))
    if len(sought) == len(levels):
        only = ", ".join(level_text(question.over, level) for level in levels)
        missing = f"nothing to compare with: {factor_name(question.over)} is only {only}"
        return Comparison(shared, "no number", None, missing)
    if any(row.mean is None for row in rows):
        return Comparison(shared, "no number", None, missing)
    values = _by_level(question, rows, levels)
    if values is None:
        return Comparison(
            shared, "no number", None, f"some levels of {question.across} are missing"
        )
    # The best rank is the lowest one.
    extreme = (max if is_best != (question.by == "mean rank") else min)(values.values())
    winners = {level for level, value in values.items() if abs(value - extreme) <= _CLOSE}
    is_met = winners <= sought if question.expect is not None else not winners & sought
    text = ", ".join(
        f"{value:.2f} at {level_text(question.over, level)}" for level, value in values.items()
    )
    winner = next(iter(winners)) if len(winners) == 1 else None
    if all(map(ask.can_test, rows)):
        winners = _clear_winners(question, rows, levels, sought, ask, is_best=is_best)
        winner = next(iter(winners)) if len(winners) == 1 else None
        is_met = None
        if winners:
            is_met = (winners <= sought) == (question.expect is not None)
        else:
            word = "best" if is_best else "lowest"
            missing = (
                missing or f"the data cannot tell which {factor_name(question.over)} is {word}"
            )
    return Comparison(shared, text, is_met, missing, tuple(rows), winner)


def _clear_winners(
    question: Extreme,
    rows: Sequence[Row],
    levels: Sequence[Level],
    sought: set[Level],
    ask: _Asked,
    *,
    is_best: bool,
) -> set[Level]:
    """Return a level that is clearly ahead of all others.

    Where only the sought levels, or only the others, share the lead, these; empty where the data
    cannot tell.
    """
    word = "higher" if is_best else "lower"
    if question.by == "mean rank":
        ranges = _rank_ranges(question, rows, levels, ask, word)

        def is_ahead(one: Level, other: Level) -> bool:
            return ranges[one][1] < ranges[other][0]
    else:
        stands = _level_rows(question, rows, levels)

        def is_ahead(one: Level, other: Level) -> bool:
            return ask.relation(stands[one], stands[other]) == word

    for level in levels:
        if all(level == other or is_ahead(level, other) for other in levels):
            return {level}
    for side in (sought, set(levels) - sought):
        rest = set(levels) - side
        if any(all(is_ahead(level, other) for other in rest) for level in side):
            return side
    return set()


def _level_rows(
    question: Extreme, rows: Sequence[Row], levels: Sequence[Level]
) -> dict[Level, Row]:
    """Return one row per level: the highest where several share it, or the mean over a factor."""
    found = {}
    for level in levels:
        there = [row for row in rows if row.factors[question.over] == level]
        if question.across is None:
            found[level] = max(there, key=lambda row: row.number)
            continue
        terms = tuple(term.times(1 / len(there)) for row in there for term in row.terms)
        mean = sum(row.number for row in there) / len(there)
        found[level] = Row({}, mean, kind="difference", terms=terms)
    return found


def _rank_ranges(
    question: Extreme, rows: Sequence[Row], levels: Sequence[Level], ask: _Asked, word: str
) -> dict[Level, tuple[float, float]]:
    """Return the lowest and highest mean rank of each level that the tests leave open."""
    opposite = {"higher": "lower", "lower": "higher"}[word]
    ranges: dict[Level, list[tuple[int, int]]] = {level: [] for level in levels}
    for row in rows:
        across = row.factors.get(question.across or "")
        others = [
            o for o in rows if o is not row and o.factors.get(question.across or "") == across
        ]
        relations = [ask.relation(row, other) for other in others]
        behind, ahead = relations.count(opposite), relations.count(word)
        level = row.factors[question.over]
        if level is not None:
            ranges[level].append((1 + behind, len(others) + 1 - ahead))
    return {
        level: (sum(low for low, _ in ends) / len(ends), sum(high for _, high in ends) / len(ends))
        for level, ends in ranges.items()
    }


def _by_level(
    question: Extreme, rows: Sequence[Row], levels: Sequence[Level]
) -> dict[Level, float] | None:
    """Return one value per level: the highest where several rows share it, or over a factor."""
    if question.across is None:
        return {
            level: max(row.number for row in rows if row.factors[question.over] == level)
            for level in levels
        }
    columns: dict[Level | None, dict[Level, float]] = {}
    for row in rows:
        if (level := row.factors[question.over]) is not None:
            columns.setdefault(row.factors.get(question.across), {})[level] = row.number
    if any(set(column) != set(levels) for column in columns.values()):
        return None
    if question.by == "mean rank":
        columns = {name: _ranks(column) for name, column in columns.items()}
    return {
        level: sum(column[level] for column in columns.values()) / len(columns) for level in levels
    }


def _ranks(column: Mapping[Level, float]) -> dict[Level, float]:
    """Return ranks from 1 for the highest; ties share the mean of theirs."""
    return {
        level: 1
        + sum(other > value for other in column.values())
        + (sum(other == value for other in column.values()) - 1) / 2
        for level, value in column.items()
    }


def answer_varies(
    question: Varies, rows: Sequence[Row], table: Table, notes: Notes
) -> list[Comparison]:
    """Look in each group whether values differ."""
    found = []
    for shared, group in grouped(rows, held_factors(question.over)):
        if len(group) < 2:
            continue
        missing = "; ".join(dict.fromkeys(row.missing for row in group if row.missing))
        known = {row.mean for row in group if row.mean is not None}
        text = ", ".join(
            f"{row.text()} at {' '.join(level_text(f, row.factors.get(f)) for f in question.over)}"
            for row in group
        )
        is_varied = max(known) - min(known) > _CLOSE if known else False
        holds = True if is_varied else (False if known and not missing else None)
        ask = _Asked(table, math.comb(len(group), 2))
        if all(map(ask.can_test, group)):
            is_clear = any(ask.are_apart(one, other) for one, other in combinations(group, 2))
            holds = True if is_clear else None
            missing = missing or ("" if is_clear else _untold(*group))
        found.append(Comparison(shared, text, holds, missing, tuple(group)))
    if not found:
        over = listing([factor_name(factor) for factor in question.over])
        notes.lack(f"no models or tasks that differ in {over} alone")
    return found
