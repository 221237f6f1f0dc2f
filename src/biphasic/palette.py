"""Colours and styles of series, for light and dark themes and for colour-blind readers.

Figures are drawn in the light colours. In a page every colour becomes a CSS variable with another
value in the dark theme. No two series have the same colour, marker and line style, and ordered
colours differ in lightness.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Dash = str | tuple[int, tuple[int, ...]]
Key = TypeVar("Key", bound=Hashable)

INK = "#1b2430"
MUTED = "#5a6675"
GRID = "#dde3ea"
PAPER = "#ffffff"
FLOOR = "#667280"

# Variable, light colour, dark colour. Each has a contrast of at least 3 to its background.
_SERIES = (
    ("series-1", "#0b62a8", "#62b0f0"),
    ("series-2", "#c94a07", "#ff9350"),
    ("series-3", "#0c8263", "#41cba4"),
    ("series-4", "#a3458c", "#e58fce"),
    ("series-5", "#8a6a00", "#e6c34a"),
    ("series-6", "#5646b8", "#a99cff"),
    ("series-7", "#9c1f2e", "#ff8791"),
)
# For ordered factors: ever darker in the light theme, ever lighter in the dark theme.
_RAMP = (
    ("ramp-1", "#d1700a", "#7c6bd6"),
    ("ramp-2", "#c8500f", "#b57be0"),
    ("ramp-3", "#a83255", "#e08ac0"),
    ("ramp-4", "#5a2290", "#f7b08a"),
    ("ramp-5", "#2e1065", "#fbe3a0"),
)
VARIABLES = (
    ("ink", INK, "#e8edf3"),
    ("muted", MUTED, "#a3afbd"),
    ("grid", GRID, "#2f3a47"),
    ("paper", PAPER, "#151b23"),
    ("floor", FLOOR, "#94a1b0"),
    *_SERIES,
    *_RAMP,
)
_NAMES = {light: name for name, light, _ in VARIABLES}
SERIES = tuple(light for _, light, _ in _SERIES)
RAMP = tuple(light for _, light, _ in _RAMP)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES: tuple[Dash, ...] = ("-", "--", (0, (4, 1, 1, 1)), ":")
_KNOWN = ("MLM", "CLM", "CLM+MLM")


@dataclass(frozen=True)
class SeriesStyle:
    """Colour, marker and line; a hollow marker is drawn as an outline."""

    color: str
    marker: str
    line: Dash
    is_hollow: bool = False

    @property
    def variable(self) -> str:
        """The CSS variable of the colour."""
        return _NAMES[self.color]


def objective_styles(objectives: Iterable[str]) -> dict[str, SeriesStyle]:
    """Return a style for each family of objectives; known families have fixed styles."""
    styles = {}
    others = sorted(set(objectives) - {*_KNOWN, "none"})
    for index, objective in enumerate((*_KNOWN, *others)):
        styles[objective] = _style(index)
    styles["none"] = SeriesStyle(FLOOR, "x", ":")
    return styles


def distinct_styles(keys: Sequence[Key]) -> dict[Key, SeriesStyle]:
    """Return a distinct style for each key, in order."""
    return {key: _style(index) for index, key in enumerate(keys)}


def ordered_styles(keys: Sequence[Key]) -> dict[Key, SeriesStyle]:
    """Return colours from light to dark for keys in ascending order."""
    styles = {}
    for index, key in enumerate(keys):
        place = (len(RAMP) - 1) / 2 if len(keys) == 1 else index * (len(RAMP) - 1) / (len(keys) - 1)
        color = RAMP[round(place) if len(keys) <= len(RAMP) else index % len(RAMP)]
        turn = index // len(RAMP)
        marker = MARKERS[(index + turn) % len(MARKERS)]
        styles[key] = SeriesStyle(color, marker, LINES[index % len(LINES)])
    return styles


def hollow(style: SeriesStyle) -> SeriesStyle:
    """Return the same style with outlined markers."""
    return dataclasses.replace(style, is_hollow=True)


def _style(index: int) -> SeriesStyle:
    turn = index // len(SERIES)
    return SeriesStyle(
        SERIES[index % len(SERIES)],
        MARKERS[(index + turn) % len(MARKERS)],
        LINES[(index + turn) % len(LINES)],
    )
