"""What a check looks at: scores, differences of scores, or the level at which a score is best."""

from __future__ import annotations

from collections.abc import Sequence

from biphasic.analysis.claims.language import Check, Difference, Extreme, Trend
from biphasic.analysis.claims.narrow import (
    OPTIONAL_FACTORS,
    Notes,
    describe,
    do_agree,
    factor_name,
    grouped,
    held_factors,
    level_text,
    levels_of,
    narrow,
    narrow_datasets,
)
from biphasic.analysis.claims.rows import Row, Table
from biphasic.analysis.claims.selection import Selection
from biphasic.records import ZERO_SHOT

_NOT_FINE_TUNED = {ZERO_SHOT.upper()}


def rows_of(check: Check, table: Table, notes: Notes) -> list[Row]:
    """Return the rows that a check is about, with what it looks at in place of the score."""
    rows = narrow_datasets(table.rows, check.where.dataset, notes)
    rows = _within_defaults(rows, check)
    unplaced = _without_positions(check.where)
    for factor, number in check.needs.items():
        found = levels_of(narrow(rows, unplaced, table, Notes(), is_lenient=True), factor, table)
        if len(found) < number:
            has = ", ".join(level_text(factor, level) for level in found) or "none"
            name = factor_name(factor)
            notes.lack(f"needs {number} levels of {name} or more; there is: {has}")
            return []
    rows = narrow(rows, check.where, table, notes, is_lenient=True)
    if check.value is None:
        return rows
    if check.value.difference is not None:
        return _differences(rows, check.value.difference, table, notes)
    return _best_levels(rows, check.value.best_level or "mask_rate", table, notes)


def narrow_side(
    rows: Sequence[Row], selection: Selection, table: Table, notes: Notes, *, is_subject: bool
) -> list[Row]:
    """Return the rows of one side of a comparison.

    What the subject lacks is noted. That the other side lacks a value is no loss in itself: each
    row of the subject without a counterpart says so.
    """
    seen = Notes()
    found = narrow(rows, selection, table, seen, is_lenient=False)
    notes.bound.update(seen.bound)
    if is_subject:
        notes.missing.update(seen.missing)
        if not found and not seen.missing:
            notes.lack(f"no model: {describe(selection) or 'any'}")
    return found


def _within_defaults(rows: Sequence[Row], check: Check) -> list[Row]:
    """Leave out what nobody means who does not name it: other states, other kinds of tasks."""
    named = check.where.named().union(*(each.named() for each in check.inner_selections()))
    are_tasks_named = "task" in named  # looking for the best one names none
    if isinstance(check.question, Trend):
        named.add(check.question.along)
    elif isinstance(check.question, Extreme):
        named.add(check.question.over)
    is_continued = bool(named & {"continued_steps", "extension"})
    return [
        row
        for row in rows
        if ("finished" in named or row.factors["finished"])
        and (are_tasks_named or row.factors["task"] not in _NOT_FINE_TUNED)
        and (is_continued or not row.factors["continued_steps"])
    ]


def _without_positions(where: Selection) -> Selection:
    placed = {name: None for name, levels in where.levels().items() if levels.position}
    return where.model_copy(update=placed)


def _differences(
    rows: Sequence[Row], difference: Difference, table: Table, notes: Notes
) -> list[Row]:
    first = narrow_side(rows, difference.of, table, notes, is_subject=True)
    second = narrow_side(rows, difference.minus, table, notes, is_subject=False)
    held = held_factors(difference.of.named() | difference.minus.named())
    return [
        _difference(row, partner, held)
        for row in first
        for partner in partners(row, second, held, difference.minus)
    ]


def partners(row: Row, rows: Sequence[Row], held: Sequence[str], wanted: Selection) -> list[Row]:
    """Return the counterparts of a row, or a stand-in that says which one is missing."""
    found = [other for other in rows if do_agree(row, other, held)]
    if any(other.name == row.name for other in found):
        reason = f"both sides are {row.name}"
        return [Row(row.factors, None, name=row.name, missing=reason)]
    return found or [
        Row(row.factors, None, missing=f"no counterpart of {row.name}: {describe(wanted) or 'any'}")
    ]


def _difference(row: Row, partner: Row, held: Sequence[str]) -> Row:
    factors = {
        factor: row.factors.get(factor)
        if row.factors.get(factor) is not None or factor not in OPTIONAL_FACTORS
        else partner.factors.get(factor)
        for factor in held
    }
    name = f"{row.name} - {partner.name}"
    missing = "; ".join(dict.fromkeys(filter(None, (row.missing, partner.missing))))
    if row.mean is None or partner.mean is None:
        return Row(factors, None, name=name, missing=missing, kind="difference")
    terms = row.terms + tuple(term.times(-1) for term in partner.terms)
    value = row.mean - partner.mean
    return Row(factors, value, None, name, missing, kind="difference", terms=terms)


def _best_levels(rows: Sequence[Row], factor: str, table: Table, notes: Notes) -> list[Row]:
    found = []
    for shared, group in grouped(rows, held_factors({factor})):
        levelled = [row for row in group if row.factors.get(factor) is not None]
        if len(levels_of(levelled, factor, table)) < 2:
            continue
        if lacking := [row for row in levelled if row.mean is None]:
            found.append(Row(shared, None, missing=lacking[0].missing, kind="level"))
            continue
        best = max(
            levelled, key=lambda row: (row.mean or 0.0, -table.rank(factor, row.factors[factor]))
        )
        if not _is_clearly_best(best, levelled, table):
            reason = f"the data cannot tell which {factor_name(factor)} is best"
            found.append(Row(shared, None, missing=reason, kind="level"))
            continue
        level = table.rank(factor, best.factors[factor])
        found.append(Row(shared, level, None, best.name, kind="level"))
    if rows and not found:
        notes.lack(f"no models that differ in {factor_name(factor)} alone")
    return found


def _is_clearly_best(best: Row, rows: Sequence[Row], table: Table) -> bool:
    """Tell whether a row is above all others; always where they cannot be tested."""
    tests = table.differences
    return tests is None or all(
        row is best or tests.relation(best, row, num_comparisons=len(rows)) == "higher"
        for row in rows
    )
