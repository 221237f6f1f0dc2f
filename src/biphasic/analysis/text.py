"""Names, lists and scores as people read them; amounts are in `amounts.py`."""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from biphasic.amounts import count
from biphasic.errors import visible
from biphasic.facts import metric_facts

if TYPE_CHECKING:
    from biphasic.analysis.estimate import Estimate

_HIDDEN = re.compile(
    r"[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
    # Controls of writing direction would reorder the text after a name.
    "|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
# Spreadsheets run a cell that starts like this as a formula.
_FORMULA = re.compile(r"[=+\-@\t\r]")
OBJECTIVES = {"mlm": "MLM", "clm": "CLM", "diffusion": "diffusion"}  # held-out losses have these
_NAMES = {**OBJECTIVES, "mntp": "MNTP"}


def plain(name: str) -> str:
    """Replace characters that XML and terminals cannot show safely; keep `25 %` together."""
    return _HIDDEN.sub("\ufffd", name.replace(" %", "\u00a0%"))


def flat(name: str) -> str:
    """Write a name on one line, without characters that break or reverse it."""
    return " ".join(plain(name).split())


def wrap(name: str, *, width: int = 16, num_lines: int = 2) -> str:
    """Break a name into a few lines, at spaces and hyphens, with an ellipsis if it does not fit."""
    wrapper = _AtHyphens(width, break_on_hyphens=False, max_lines=num_lines, placeholder="…")
    return "\n".join(wrapper.wrap(plain(name)))


class _AtHyphens(textwrap.TextWrapper):
    """Breaks lines after any hyphen; textwrap does so only between letters."""

    wordsep_simple_re = re.compile(r"(\s+|(?<=-))")


def short(name: str) -> str:
    """Shorten a long name for use in a sentence."""
    text = plain(name)
    return text if len(text) <= 48 else f"{text[:47].rstrip()}…"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Shorten long names for use in sentences, except those that would become equal."""
    shown = {name: short(name) for name in names}
    number = Counter(shown.values())
    return {name: text if number[text] == 1 else plain(name) for name, text in shown.items()}


def metric_name(metric: str) -> str:
    """Return the display name of a metric."""
    return metric_facts(metric).title


def objective_name(objective: str) -> str:
    """Return the display name of an objective."""
    return _NAMES.get(objective, objective)


def score_cell(estimate: Estimate | None) -> str:
    """Format shares as `mean (±half-width)` in percentage points, or the mean alone."""
    return points_cell(estimate and estimate.in_points)


def points_cell(estimate: Estimate | None) -> str:
    """Format an estimate already in percentage points, like `score_cell`."""
    if estimate is None:
        return "–"
    width = "" if estimate.half_width is None else f" (±{estimate.half_width:.2f})"
    return f"{estimate.mean:z.2f}{width}"


def score_text(estimate: Estimate | None) -> str:
    """Format mean and half-width in percentage points as `87.85 (0.13)`, or the mean alone."""
    if estimate is None:
        return "–"
    mean = f"{estimate.mean:z.2f}"
    return mean if estimate.half_width is None else f"{mean} ({estimate.half_width:.2f})"


def truncations(counts: Mapping[str, int]) -> str:
    """Describe what the length limit cut: `347 of corpus and 3 words of test`; empty if nothing."""
    # Keys are splits, or `SPLIT_lost_WHAT` for parts of examples that are lost.
    parts = []
    for key, number in counts.items():
        split, _, what = key.partition("_lost_")
        if number:
            parts.append(f"{number:,} {f'{what} ' if what else ''}of {split}")
    return listing(parts)


def csv_text(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Write a heading and rows as CSV; numbers read back exactly, and None is empty."""
    # A text that spreadsheets would run gets a leading `'`; control and bidirectional characters,
    # which would steer a terminal, are escaped.
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([_cell(cell) for cell in row] for row in (columns, *rows))
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    is_formula = _FORMULA.match(value) and not _is_number(value)
    return visible(f"'{value}" if is_formula else value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def listing(names: Sequence[str], *, most: int | None = None) -> str:
    """Join names as `a, b and c`; those beyond `most` are counted, as in `a, b and 3 others`."""
    parts = [*names[:most]]
    if len(parts) < len(names):
        parts.append(count(len(names) - len(parts), "other"))
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))
