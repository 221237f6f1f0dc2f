"""Draws one chart into one box of a matplotlib figure.

Every chart is about as wide as a phone, so that its text stays readable there; figures for print
put several side by side. Sizes are in inches, as matplotlib's are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from biphasic.analysis.load import Curve
from biphasic.analysis.palette import FLOOR, GRID, INK, MUTED, PAPER, SeriesStyle
from biphasic.analysis.plots.frame import POINTS_PER_INCH, SMALL, add_field, fix_ticks, head
from biphasic.analysis.stats import Estimate
from biphasic.analysis.text import amount, rate, score_cell, wrap

WIDTH = 3.7
LOSS_HEIGHT = 2.7
SENSITIVITY_HEIGHT = 2.7
_MAX_POINTS = 160
_LABEL_SIZE = 8.0
_BOTTOM = 0.44


@dataclass(frozen=True)
class Box:
    """A rectangle in a figure, from its lower left corner."""

    left: float
    bottom: float
    width: float
    height: float


@dataclass(frozen=True)
class Line:
    """One arm's curve in a loss chart."""

    label: str
    style: SeriesStyle
    curve: Curve


@dataclass(frozen=True)
class ScoreRow:
    """One arm's row in a chart of scores."""

    label: str
    style: SeriesStyle
    estimate: Estimate | None
    scores: tuple[float, ...]
    """Test scores of the single seeds."""
    is_floor: bool


@dataclass(frozen=True)
class RateLine:
    """One arm's test scores at each learning rate."""

    label: str
    style: SeriesStyle
    scores: tuple[tuple[float, tuple[float, ...]], ...]
    """Learning rate and the scores of its seeds."""


def draw_loss(
    figure: Figure,
    box: Box,
    *,
    lines: Sequence[Line],
    floor: float | None = None,
    title: str = "",
    smooth: bool = False,
) -> None:
    """Draw loss against tokens, an arm a line, labelled at its end.

    `floor` is the loss of the untrained encoder, a dotted line across; `smooth` averages
    neighbouring points, as single batches are noisy.
    """
    axes = _axes(
        figure, box, left=0.38, right=1.04, bottom=_BOTTOM, title=title, unit="nats per token"
    )
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: amount(tokens)))
    axes.set_xlabel("training tokens", fontsize=SMALL, color=MUTED)
    drawn = [(line, *_thin(line.curve, smooth=smooth)) for line in lines]
    low, high = _loss_range([losses for _, _, losses in drawn], floor)
    axes.set_ylim(low, high)
    ends = []
    for line, tokens, losses in drawn:
        marker = line.style.marker if len(tokens) <= 24 else ""
        axes.plot(
            tokens, losses, color=line.style.color, linestyle=line.style.line,
            marker=marker, markersize=3.4, linewidth=1.2 if smooth else 1.6,
        )  # fmt: skip
        last = float(losses[np.isfinite(losses)][-1])
        beyond = f" ↑ {last:.1f}" if last > high else ""
        ends.append((min(last, high), wrap(line.label) + beyond, line.style.color))
    end = max((float(tokens[-1]) for _, tokens, _ in drawn), default=1.0)
    axes.set_xlim(0, end * 1.02)
    if floor is not None and floor <= high:
        axes.axhline(floor, color=FLOOR, linewidth=1.2, linestyle=(0, (1, 2)))
        ends.append((floor, "untrained", FLOOR))
    _label_ends(axes, ends, height=box.height - _BOTTOM - _top(title))


def draw_scores(
    figure: Figure, box: Box, *, rows: Sequence[ScoreRow], axis: str, title: str = ""
) -> None:
    """Draw a dot and its 95 % interval per arm, single seeds as faint dots.

    The untrained encoder's mean goes through all rows as a line of reference.
    """
    axes = _axes(figure, box, left=1.02, right=1.26, bottom=0.2, title=title, unit=axis)
    axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda score, _: f"{score:g}"))
    axes.set_xlim(*_score_range([s for row in rows for s in _extent(row)]))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.grid(axis="y", visible=False)
    best = max((row.estimate.mean for row in rows if row.estimate), default=math.nan)
    for index, row in enumerate(rows):
        if row.is_floor and row.estimate:
            axes.axvline(100 * row.estimate.mean, color=FLOOR, linewidth=1.1, linestyle=(0, (1, 2)))
        is_best = row.estimate is not None and row.estimate.mean == best
        _draw_row(axes, index, row, is_best=is_best)


def score_height(num_rows: int) -> float:
    """Height of a chart of scores without title."""
    return 0.5 + 0.36 * max(num_rows, 1)


def draw_rates(
    figure: Figure, box: Box, *, lines: Sequence[RateLine], axis: str, title: str = ""
) -> None:
    """Draw the mean test score at each learning rate, with the range over seeds."""
    axes = _axes(figure, box, left=0.38, right=1.04, bottom=_BOTTOM, title=title, unit=axis)
    rates = sorted({learning_rate for line in lines for learning_rate, _ in line.scores})
    axes.set_xscale("log")
    fix_ticks(axes, [(each, rate(each)) for each in rates[:: math.ceil(len(rates) / 6) or 1]])
    axes.set_xlabel("learning rate", fontsize=SMALL, color=MUTED)
    everything = [score for line in lines for _, scores in line.scores for score in scores]
    axes.set_ylim(*_score_range(everything))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda score, _: f"{score:g}"))
    if rates:
        room = max((rates[-1] / rates[0]) ** 0.06, 1.12)
        axes.set_xlim(rates[0] / room, rates[-1] * room)
    ends = []
    for index, line in enumerate(lines):
        # Side by side, a little apart: ranges on top of each other cannot be read.
        shift = 1 + 0.035 * (index - (len(lines) - 1) / 2)
        places = [learning_rate * shift for learning_rate, _ in line.scores]
        means = [100 * math.fsum(scores) / len(scores) for _, scores in line.scores]
        for place, (_, scores) in zip(places, line.scores, strict=True):
            axes.plot(
                [place, place], [100 * min(scores), 100 * max(scores)],
                color=line.style.color, linewidth=3.2, alpha=0.28, solid_capstyle="round",
            )  # fmt: skip
        axes.plot(
            places, means, color=line.style.color, linestyle=line.style.line,
            marker=line.style.marker, markersize=4.2, linewidth=1.4,
        )  # fmt: skip
        ends.append((means[-1], wrap(line.label), line.style.color))
    _label_ends(axes, ends, height=box.height - _BOTTOM - _top(title))


def _axes(
    figure: Figure, box: Box, *, left: float, right: float, bottom: float, title: str, unit: str
) -> Axes:
    """Add axes with the given margins; title and unit stand above, flush left, never rotated."""
    width, height = box.width - left - right, box.height - bottom - _top(title)
    axes = add_field(figure, box.left + left, box.bottom + bottom, width, height, pad=4)
    flush = (0.06 - left) * POINTS_PER_INCH
    line = wrap(title, width=40, num_lines=1)
    head(axes, line, unit, flush=flush, heights=(22.0, 8.0), size=9.5)
    return axes


def _top(title: str) -> float:
    return 0.5 if title else 0.3


def _draw_row(axes: Axes, index: int, row: ScoreRow, *, is_best: bool) -> None:
    common = {
        "textcoords": "offset points", "va": "center", "parse_math": False,
        "annotation_clip": False,
    }  # fmt: skip
    axes.annotate(
        wrap(row.label), (0, index), xycoords=("axes fraction", "data"),
        xytext=(-8, 0), ha="right", fontsize=_LABEL_SIZE, color=INK, linespacing=1.05,
        **common,
    )  # fmt: skip
    value = "no score" if row.estimate is None else score_cell(row.estimate)
    axes.annotate(
        value, (1, index), xycoords=("axes fraction", "data"), xytext=(8, 0),
        ha="left", fontsize=_LABEL_SIZE, color=INK if is_best else MUTED,
        fontweight="bold" if is_best else "normal", **common,
    )  # fmt: skip
    if row.estimate is None:
        return
    color = row.style.color
    if row.estimate.half_width is not None:
        axes.plot(
            [100 * row.estimate.low, 100 * row.estimate.high], [index, index],
            color=color, linewidth=2.4, alpha=0.55, solid_capstyle="round",
        )  # fmt: skip
    axes.plot(
        [100 * score for score in row.scores], [index] * len(row.scores), linestyle="",
        marker="|", markersize=6, markeredgewidth=0.9, color=color, alpha=0.6,
    )  # fmt: skip
    axes.plot(
        [100 * row.estimate.mean], [index], linestyle="", marker=row.style.marker,
        markersize=6.4, color=color, markeredgecolor=PAPER, markeredgewidth=0.9,
    )  # fmt: skip


def _label_ends(axes: Axes, ends: list[tuple[float, str, str]], *, height: float) -> None:
    """Write each line's name at its end, apart from each other, in the line's own colour.

    `ends` has value, text and colour; `height` is that of the axes in inches.
    """
    low, high = axes.get_ylim()
    scale = height * POINTS_PER_INCH / (high - low)
    ends = sorted(ends)
    wanted = [(value - low) * scale for value, _, _ in ends]
    sizes = [(1 + text.count("\n")) * _LABEL_SIZE * 1.22 for _, text, _ in ends]
    for (value, text, color), place in zip(ends, spread(wanted, sizes), strict=True):
        axes.annotate(
            text, (1, value), xycoords=("axes fraction", "data"),
            xytext=(7, place - (value - low) * scale), textcoords="offset points",
            va="center", ha="left", fontsize=_LABEL_SIZE, color=color, linespacing=1.05,
            parse_math=False, annotation_clip=False,
        )  # fmt: skip


def spread(wanted: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """Move labels apart as little as needed: merge those that touch and centre each group.

    Args:
        wanted: Where each label's middle should be, in ascending order.
        sizes: How much room each one takes.
    """
    groups: list[tuple[float, float, list[int]]] = []  # middle, size, labels
    for index, (place, size) in enumerate(zip(wanted, sizes, strict=True)):
        middle, total, members = place, size, [index]
        while groups and groups[-1][0] + groups[-1][1] / 2 > middle - total / 2:
            below, below_total, below_members = groups.pop()
            members = below_members + members
            weight = len(members)
            middle = (below * len(below_members) + middle * (weight - len(below_members))) / weight
            total += below_total
        groups.append((middle, total, members))
    places = [0.0] * len(wanted)
    for middle, total, members in groups:
        edge = middle - total / 2
        for member in members:
            places[member] = edge + sizes[member] / 2
            edge += sizes[member]
    return places


def _thin(curve: Curve, *, smooth: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return tokens and losses of at most a few hundred points, with a gap between phases."""
    tokens: list[float] = []
    losses: list[float] = []
    for phase in np.unique(curve.phases):
        chosen = curve.phases == phase
        size = max(1, math.ceil(int(chosen.sum()) / _MAX_POINTS))
        x, y = curve.tokens[chosen], curve.losses[chosen]
        if tokens:
            tokens.append(float(x[0]))
            losses.append(math.nan)
        for start in range(0, len(x), size):
            stop = min(start + size, len(x))
            tokens.append(float(x[start:stop].mean() if smooth else x[stop - 1]))
            losses.append(float(y[start:stop].mean() if smooth else y[stop - 1]))
    return np.array(tokens), np.array(losses)


def _loss_range(curves: Sequence[NDArray[np.float64]], floor: float | None) -> tuple[float, float]:
    """Choose the axis so that the losses below the start fill it.

    A causal model asked for masked tokens can end far above where it began; its line then leaves
    at the top, and its label says where it is.
    """
    finite = [curve[np.isfinite(curve)] for curve in curves]
    ends = [float(curve[-1]) for curve in finite] + ([floor] if floor is not None else [])
    starts = [float(curve[0]) for curve in finite]
    if not ends:
        return 0.0, 1.0
    low = min(float(curve.min()) for curve in finite) if finite else min(ends)
    reasonable = max([floor] if floor is not None else starts)
    high = min(max(ends + starts), max(reasonable, sorted(ends)[len(ends) // 2]) * 1.02)
    room = 0.06 * (high - low) or 0.1
    return low - room, high + room


def _score_range(scores: Sequence[float]) -> tuple[float, float]:
    if not scores:
        return 0.0, 100.0
    low, high = 100 * min(scores), 100 * max(scores)
    room = max(0.07 * (high - low), 0.3)
    return low - room, high + room


def _extent(row: ScoreRow) -> list[float]:
    if row.estimate is None:
        return []
    return [row.estimate.low, row.estimate.high, *row.scores]
