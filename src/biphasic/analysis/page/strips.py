"""The overview's charts: a strip per arm, its places in percent of the strip's width.

Rows are HTML, so that names and numbers are text at any width; only marks are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.palette import SeriesStyle
from biphasic.analysis.score_table import Score
from biphasic.analysis.text import round_step

_MOST_TICKS = 4
_ROOM = 0.06
_LEAST_ROOM = 0.3
"""Percent points on either side, where all scores are alike."""
_MARKS = {
    "o": "M5 0A5 5 0 1 1-5 0A5 5 0 1 1 5 0Z",
    "s": "M-4.4-4.4H4.4V4.4H-4.4Z",
    "^": "M0-5.4L5.4 4.4H-5.4Z",
    "D": "M0-5.8L5.8 0L0 5.8L-5.8 0Z",
    "v": "M0 5.4L5.4-4.4H-5.4Z",
    "P": "M-1.9-5.4H1.9V-1.9H5.4V1.9H1.9V5.4H-1.9V1.9H-5.4V-1.9H-1.9Z",
    "X": "M-5.2-2.6L-2.6-5.2L0-2.6L2.6-5.2L5.2-2.6L2.6 0L5.2 2.6L2.6 5.2L0 2.6L-2.6 5.2L-5.2 2.6"
    "L-2.6 0Z",
}
"""Outlines around the origin, by matplotlib's names of markers."""


@dataclass(frozen=True)
class Axis:
    """A range of scores, with the places of its labelled lines."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    """Place in percent of the width, and label."""

    def place(self, score: float) -> float:
        """Return where a score stands, in percent of the width."""
        return round(100 * (score - self.low) / (self.high - self.low), 2)


@dataclass(frozen=True)
class Strip:
    """What is drawn for one arm; all places in percent of the width."""

    variable: str
    mark: str
    """Outline of the mark of the mean."""
    mean: float
    interval: tuple[float, float] | None
    seeds: tuple[float, ...]
    reference: float | None
    """Where the paper's value stands."""


def axis(scores: Sequence[Score], references: Sequence[Estimate]) -> Axis | None:
    """Choose a range in which all scores have room; None without any."""
    estimates = [score.estimate for score in scores if score.estimate]
    ends = [end for found in (*estimates, *references) for end in (found.low, found.high)]
    ends += [value for score in scores for value in (score.by_seed or {}).values()]
    if not ends:
        return None
    room = max(_ROOM * (max(ends) - min(ends)), _LEAST_ROOM)
    low, high = min(ends) - room, max(ends) + room
    step = round_step((high - low) / _MOST_TICKS)
    first, last = math.ceil(low / step), math.floor(high / step)
    bare = Axis(low, high, ())
    ticks = tuple(
        (bare.place(index * step), f"{round(index * step, 6):g}")
        for index in range(first, last + 1)
    )
    return Axis(low, high, ticks)


def strip(score: Score, style: SeriesStyle, on: Axis, reference: Estimate | None) -> Strip | None:
    """Place an arm's score on an axis; None where it has none."""
    if score.estimate is None:
        return None
    found = score.estimate
    interval = None
    if found.half_width is not None:
        interval = on.place(found.low), on.place(found.high)
    return Strip(
        variable=style.variable,
        mark=_MARKS[style.marker],
        mean=on.place(found.mean),
        interval=interval,
        seeds=tuple(on.place(value) for value in (score.by_seed or {}).values()),
        reference=None if reference is None else on.place(reference.mean),
    )
