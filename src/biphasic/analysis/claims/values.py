"""What a check looks at: scores, differences of scores, or the level at which a score is best."""

from __future__ import annotations

from collections.abc import Sequence

from biphasic.analysis.claims.language import Check, Difference, Extreme, Trend
from biphasic.analysis.claims.narrow import (
    OPTIONAL_FACTORS,
    Notes,
    describe,
    do_agree,
    grouped,
    held_factors,
    level_text,
    levels_of,
    narrow,
    narrow_datasets,
)
from biphasic.analysis.claims.rows import Row, Table
from biphasic.analysis.claims.selection import Selection


def rows_of(check: Check, table: Table, notes: Notes) -> list[Row]:
    """Return the rows that a check is about, with what it looks at in place of the score."""
    rows = narrow_datasets(table.rows, check.where.dataset, notes)
    rows = _within_defaults(rows, check)
    unplaced = _without_positions(check.where)
    for factor, number in check.needs.items():
        found = levels_of(narrow(rows, unplaced, table, Notes(), is_lenient=True), factor, table)
        if len(found) < number:
            has = ", ".join(level_text(factor, level) for level in found) or "none"
            notes.lack(f"needs {number} levels of {factor} or more; there is: {has}")
            return []
    rows = narrow(rows, check.where, table, notes, is_lenient=True)
    if check.value is None:
        return rows
    if check.value.difference is not None:
        return _differences(rows, check.value.difference, table, notes)
    return _best_levels(rows, check.value.best_level or "mask_rate", table)


def lack_of_rows(selection: Selection, rows: Sequence[Row]) -> str:
    """Say what kind of model is missing."""
    wanted = describe(selection) or "any"
    return f"no model: {wanted}" + ("" if rows else " (nothing is left by 'where')")


def _within_defaults(rows: Sequence[Row], check: Check) -> list[Row]:
    """Leave out states on the way and continued models, unless the check speaks of them."""
    named = check.where.named().union(*(each.named() for each in check.inner_selections()))
    if isinstance(check.question, Trend):
        named.add(check.question.along)
    elif isinstance(check.question, Extreme):
        named.add(check.question.over)
    is_continued = bool(named & {"continued_steps", "extension"})
    return [
        row
        for row in rows
        if ("finished" in named or row.factors["finished"])
        and (is_continued or not row.factors["continued_steps"])
    ]


def _without_positions(where: Selection) -> Selection:
    placed = {name: None for name, levels in where.levels().items() if levels.position}
    return where.model_copy(update=placed)


def _differences(
    rows: Sequence[Row], difference: Difference, table: Table, notes: Notes
) -> list[Row]:
    first = narrow(rows, difference.of, table, notes, is_lenient=False)
    second = narrow(rows, difference.minus, table, notes, is_lenient=False)
    held = held_factors(difference.of.named() | difference.minus.named())
    for selection, found in ((difference.of, first), (difference.minus, second)):
        if not found:
            notes.lack(lack_of_rows(selection, rows))
    return [
        _difference(row, partner, held)
        for row in first
        for partner in partners(row, second, held, difference.minus)
    ]


def partners(row: Row, rows: Sequence[Row], held: Sequence[str], wanted: Selection) -> list[Row]:
    """Return the counterparts of a row, or a stand-in that says which one is missing."""
    found = [other for other in rows if do_agree(row, other, held)]
    if any(other.name == row.name for other in found):
        reason = f"{row.name} would be compared with itself"
        return [Row(row.factors, None, name=row.name, missing=reason)]
    return found or [
        Row(row.factors, None, missing=f"{lack_of_rows(wanted, rows)} as counterpart of {row.name}")
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
    return Row(factors, row.mean - partner.mean, None, name, missing, kind="difference")


def _best_levels(rows: Sequence[Row], factor: str, table: Table) -> list[Row]:
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
        level = table.rank(factor, best.factors[factor])
        found.append(Row(shared, level, None, best.name, kind="level"))
    return found
