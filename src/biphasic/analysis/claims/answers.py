"""Questions answered: each comparison holds, fails, or cannot be told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

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
    return [
        _pair(row, partner, held, question.expect)
        for row in first
        for partner in partners(row, second, held, question.second)
    ]


def _pair(row: Row, partner: Row, held: Sequence[str], expect: str) -> Comparison:
    factors = {
        factor: row.factors.get(factor)
        if row.factors.get(factor) is not None
        else partner.factors.get(factor)
        for factor in held
    }
    missing = "; ".join(dict.fromkeys(filter(None, (row.missing, partner.missing))))
    if row.mean is None or partner.mean is None:
        return Comparison(factors, "no number", None, missing)
    star = {True: "*", False: "", None: ""}[_differ_significantly(row, partner)]
    text = f"{row.name} {row.text()}, {partner.name} {partner.text()}: "
    text += f"{row.mean - partner.mean:+.2f}{star}"
    holds = _is_met(row, partner, expect)
    if holds is None:
        missing = f"no interval, with fewer than two seeds: {row.name}, {partner.name}"
    return Comparison(factors, text, holds, missing, (row, partner))


def _is_met(row: Row, partner: Row, expect: str) -> bool | None:
    """Tell whether one value stands to another as expected; None without the intervals it takes."""
    is_negated = expect.startswith("not ")
    relation = expect.removeprefix("not ")
    difference = row.number - partner.number
    has_direction = {
        "higher": difference > _CLOSE,
        "lower": difference < -_CLOSE,
        "different": abs(difference) > _CLOSE,
    }[relation.removeprefix("significantly ")]
    if not relation.startswith("significantly "):
        return has_direction != is_negated
    is_significant = _differ_significantly(row, partner)
    if is_significant is None:
        # Without the right direction there is no significant difference either.
        return None if has_direction else is_negated
    return (has_direction and is_significant) != is_negated


def _differ_significantly(row: Row, partner: Row) -> bool | None:
    if row.half_width is None or partner.half_width is None:
        return None
    return abs(row.number - partner.number) > row.half_width + partner.half_width + _CLOSE


def answer_trend(
    question: Trend, rows: Sequence[Row], table: Table, notes: Notes
) -> list[Comparison]:
    """Follow each group of rows along a factor."""
    along = question.along
    if along == "size" and not table.has_size_order:
        notes.lack("sizes have no order: numbers of parameters are unknown")
        return []
    least = 3 if question.expect.endswith("in the middle") else 2
    found = []
    for shared, group in grouped(rows, held_factors({along})):
        run = sorted(
            (row for row in group if row.factors.get(along) is not None),
            key=lambda row: table.rank(along, row.factors[along]),
        )
        if len(run) >= least:
            found.append(_run(run, shared, question))
    if not found:
        notes.lack(f"no models that differ in {factor_name(along)} alone ({least} levels or more)")
    return found


def _run(run: Sequence[Row], shared: Mapping[str, Level | None], question: Trend) -> Comparison:
    levels = [row.factors[question.along] for row in run]
    missing = "; ".join(dict.fromkeys(row.missing for row in run if row.missing))
    text = ", ".join(
        f"{row.text()} at {level_text(question.along, level)}"
        for level, row in zip(levels, run, strict=True)
    )
    if len(set(levels)) < len(levels):
        missing = f"several values at one level of {question.along}: {text}"
        return Comparison(shared, text, None, missing)
    holds = _follows(run, question.expect)
    if holds is None and not missing:
        missing = f"no interval, with fewer than two seeds: {text}"
    return Comparison(shared, text, holds, missing, tuple(run))


def _follows(run: Sequence[Row], expect: str) -> bool | None:
    """Tell whether a run does what is expected."""
    if any(row.mean is None for row in run):
        return None
    if expect.endswith("in the middle"):
        relation = "higher" if expect.startswith("dips") else "lower"
        pairs = [(end, inner) for end in (run[0], run[-1]) for inner in run[1:-1]]
        return all_hold([_is_met(end, inner, relation) for end, inner in pairs])
    if not expect.startswith("never "):
        relation = "lower" if expect == "increases" else "higher"
        return all_hold([_is_met(one, next_, relation) for one, next_ in pairwise(run)])
    relation = "not significantly " if "significantly" in expect else "not "
    relation += "higher" if expect.endswith("decreases") else "lower"
    later = [(one, other) for index, one in enumerate(run) for other in run[index + 1 :]]
    return all_hold([_is_met(one, other, relation) for one, other in later])


def all_hold(answers: Sequence[bool | None]) -> bool | None:
    """Tell whether all answers are yes; None where unknown ones decide."""
    if False in answers:
        return False
    return None if None in answers else True


def answer_extreme(
    question: Extreme, rows: Sequence[Row], table: Table, notes: Notes, *, is_best: bool
) -> list[Comparison]:
    """Look in each group for the level with the highest, or lowest, value."""
    found = []
    held = held_factors({question.over, *([question.across] if question.across else [])})
    for shared, group in grouped(rows, held):
        levels = levels_of(group, question.over, table)
        sought = resolved(question.sought, levels)
        if not sought:
            continue
        comparison = _extreme(question, group, levels, sought, shared, is_best=is_best)
        found.append(comparison)
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
    return Comparison(shared, text, is_met, missing, tuple(rows), winner)


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


def answer_varies(question: Varies, rows: Sequence[Row], notes: Notes) -> list[Comparison]:
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
        found.append(Comparison(shared, text, holds, missing, tuple(group)))
    if not found:
        over = listing([factor_name(factor) for factor in question.over])
        notes.lack(f"no models or tasks that differ in {over} alone")
    return found
