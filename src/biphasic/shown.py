"""Results as people look at them: text on a terminal, a table and a drawing in a notebook."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.errors import visible

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.table import Table

_MOST_ROWS = 60  # of a table in a notebook
_MOST_LINES = 60  # of a result that Python shows
_WIDEST = 10_000  # characters; no table is wider


class Shown:
    """A result that prints as its command does, with a table (`frame`) and often a drawing."""

    def lines(self) -> Iterable[str]:
        """Return the text that the command prints."""
        raise NotImplementedError

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows of `frame`."""
        raise NotImplementedError

    def drawing(self) -> str:
        """Return a drawing as SVG; empty if there is none."""
        return ""

    @property
    def frame(self) -> DataFrame:
        """The result as a table of pandas, with a row for each item."""
        return _frame(self.table())

    def __str__(self) -> str:
        """Return the text that the command prints."""
        return visible("\n".join(self.lines()))

    def __repr__(self) -> str:
        """Return the text, cut if it is long."""
        lines = str(self).splitlines()
        more = len(lines) - _MOST_LINES
        return "\n".join(
            [*lines[:_MOST_LINES], f"... and {more} more lines"] if more > 0 else lines
        )

    def _repr_html_(self) -> str:
        """Return the drawing and the table for a notebook; the text if there is no table."""
        table = _frame(self.table())
        if table.empty:
            return f"{self.drawing()}<pre>{escape(str(self))}</pre>"
        title = str(self).partition("\n")[0]
        rows = table.map(_cell).to_html(index=False, border=0, max_rows=_MOST_ROWS)
        return f"<p>{escape(title)}</p>{self.drawing()}{rows}"


@dataclass(frozen=True, repr=False)
class Findings(Shown):
    """Lines, and the rows of their table.

    Attributes:
        sentences: A line for each plugin, difference or other finding.
        rows: Rows of `frame`; a row for each line if there are none.
    """

    sentences: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...] = ()

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows."""
        return self.rows or [{"finding": sentence} for sentence in self.sentences]

    def lines(self) -> Sequence[str]:
        """Return the lines."""
        return self.sentences


def _frame(rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    from pandas import DataFrame  # noqa: PLC0415 - takes half a second

    return DataFrame([dict(row) for row in rows])


def _cell(value: Any) -> Any:
    return visible(value) if isinstance(value, str) else value


def inline(svg: str) -> str:
    """Return a drawing as an element of a page."""
    return svg[svg.index("<svg") :]


def table_lines(table: Table) -> list[str]:
    """Return a table as text, as wide as it needs."""
    from rich.console import Console  # noqa: PLC0415

    console = Console(file=io.StringIO(), width=_WIDEST, color_system=None)
    console.width = console.measure(table).maximum
    with console.capture() as captured:
        console.print(table)
    return captured.get().splitlines()


def shown_path(path: Path) -> str:
    """Return a path relative to the working directory, if it lies below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
