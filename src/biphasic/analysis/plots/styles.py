"""How series look: objectives by hue, ordered factors from light to dark.

Every style has a marker and a line of its own beside its colour, and ordered colours differ in
lightness, so that figures survive grey printers and colour-blind eyes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from biphasic.analysis.palette import FLOOR, LINES, MARKERS, RAMP, SERIES

Dash = str | tuple[int, tuple[int, ...]]
Key = TypeVar("Key", bound=Hashable)
_KNOWN = ("MLM", "CLM", "CLM+MLM")


@dataclass(frozen=True)
class SeriesStyle:
    """Colour, marker and line; a hollow marker is drawn as an outline."""

    color: str
    marker: str
    line: Dash
    is_hollow: bool = False


def objective_styles(objectives: Iterable[str]) -> dict[str, SeriesStyle]:
    """Give every family of objectives a style; MLM, CLM and CLM then MLM look alike everywhere."""
    styles = {}
    others = sorted(set(objectives) - {*_KNOWN, "none"})
    for index, objective in enumerate((*_KNOWN, *others)):
        styles[objective] = _style(index)
    styles["none"] = SeriesStyle(FLOOR, "x", ":")
    return styles


def distinct_styles(keys: Sequence[Key]) -> dict[Key, SeriesStyle]:
    """Give every key, in order, a style of its own, without meaning."""
    return {key: _style(index) for index, key in enumerate(keys)}


def ordered_styles(keys: Sequence[Key]) -> dict[Key, SeriesStyle]:
    """Give keys, in ascending order, colours from light to dark."""
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


def reference_style(style: SeriesStyle) -> SeriesStyle:
    """Return the style of the same series of another table: grey, with the marker kept."""
    return dataclasses.replace(style, color=FLOOR, line=":", is_hollow=True)


def _style(index: int) -> SeriesStyle:
    turn = index // len(SERIES)
    return SeriesStyle(
        SERIES[index % len(SERIES)],
        MARKERS[(index + turn) % len(MARKERS)],
        LINES[(index + turn) % len(LINES)],
    )
