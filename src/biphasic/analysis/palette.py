"""Colours and marks that tell arms apart, on light and dark ground, also for the colour-blind.

Figures are drawn in the light colours. In a page every colour becomes a CSS variable that has a
value of its own on dark ground. No two arms share colour, marker and line style together, so
that nothing depends on colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from biphasic.analysis.load import ArmData

INK = "#1b2430"
MUTED = "#5a6675"
GRID = "#dde3ea"
PAPER = "#ffffff"
FLOOR = "#667280"

# Variable, on light ground, on dark ground. Each has a contrast of at least 3 with its ground.
_SERIES = (
    ("series-1", "#0b62a8", "#62b0f0"),
    ("series-2", "#c94a07", "#ff9350"),
    ("series-3", "#0c8263", "#41cba4"),
    ("series-4", "#a3458c", "#e58fce"),
    ("series-5", "#8a6a00", "#e6c34a"),
    ("series-6", "#5646b8", "#a99cff"),
    ("series-7", "#9c1f2e", "#ff8791"),
)
# For ordered factors: darker and darker on light ground, lighter and lighter on dark ground.
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
SERIES = tuple(light for _, light, _ in _SERIES)
RAMP = tuple(light for _, light, _ in _RAMP)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("-", "--", (0, (4, 1, 1, 1)), ":")


@dataclass(frozen=True)
class ArmStyle:
    """How one arm is drawn."""

    color: str
    variable: str
    marker: str
    line: str | tuple[int, tuple[int, ...]]


def arm_styles(arms: Sequence[ArmData]) -> dict[str, ArmStyle]:
    """Give every arm a style, in the study's order; the untrained encoder is grey."""
    styles = {}
    index = 0
    for arm in arms:
        if arm.is_untrained:
            styles[arm.name] = ArmStyle(FLOOR, "floor", "o", ":")
            continue
        variable, color, _ = _SERIES[index % len(_SERIES)]
        turn = index // len(_SERIES)
        marker = MARKERS[(index + turn) % len(MARKERS)]
        styles[arm.name] = ArmStyle(color, variable, marker, LINES[turn % len(LINES)])
        index += 1
    return styles
