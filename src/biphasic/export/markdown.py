"""Markdown that a hub shows as it was meant."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from biphasic.analysis.text import plain


def escape(text: str) -> str:
    """Return text that neither Markdown nor HTML takes for markup."""
    escaped = html.escape(plain(" ".join(text.split())), quote=False)
    for mark in "\\`*_[]|":
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int = 0) -> str:
    """Return a table; cells are escaped already.

    Args:
        header: Names of the columns.
        rows: As many cells in each.
        numbers: How many columns, from the right, hold numbers.
    """
    marks = ["---"] * (len(header) - numbers) + ["---:"] * numbers
    lines = [header, marks, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def section(title: str, *paragraphs: str) -> str:
    """Return a section; empty where there is nothing to say."""
    told = [paragraph for paragraph in paragraphs if paragraph]
    return "\n\n".join([f"## {title}", *told]) if told else ""
