"""The quiet frame that all charts have: two thin edges, faint lines across, small numbers."""

from __future__ import annotations

from matplotlib.axes import Axes

from biphasic.analysis.palette import GRID, MUTED

SMALL = 7.5
"""Points; the smallest text of a figure."""


def quieten(axes: Axes, *, pad: float = 3) -> None:
    """Leave of a chart's frame what helps to read it.

    Args:
        axes: The chart.
        pad: Points between numbers and their edge.
    """
    axes.set_facecolor("none")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GRID)
    axes.tick_params(colors=MUTED, labelsize=SMALL, length=0, pad=pad)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
