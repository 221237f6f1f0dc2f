"""Figures of a study: each a function from records to a matplotlib figure.

Nothing here touches pyplot, a display or global settings beyond the duration of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from biphasic.analysis.load import Curve, StudyRecords
from biphasic.analysis.palette import PAPER, arm_styles
from biphasic.analysis.panels import (
    LOSS_HEIGHT,
    SENSITIVITY_HEIGHT,
    WIDTH,
    Box,
    Line,
    RateLine,
    ScoreRow,
    draw_loss,
    draw_rates,
    draw_scores,
    score_height,
)
from biphasic.analysis.plots.page import page_svg
from biphasic.analysis.plots.render import drawing, to_png, to_svg
from biphasic.analysis.stats import Cell, scores_on_test
from biphasic.analysis.text import OBJECTIVES, metric_name, objective_name, plain, score_cell
from biphasic.records import TaskRecord

__all__ = [
    "Panel",
    "compose",
    "inline_svg",
    "loss_panels",
    "rate_panels",
    "score_panels",
    "to_png",
    "to_svg",
]

Table = Mapping[tuple[str, str], Cell]
Draw = Callable[[Figure, Box, str], None]
_TITLE_HEIGHT = 0.2
_GAP = 0.3


@dataclass(frozen=True)
class Panel:
    """One chart: how to draw it, and what it says to those who cannot see it."""

    name: str
    title: str
    alt: str
    height: float
    draw: Draw


def loss_panels(records: StudyRecords) -> list[Panel]:
    """Held-out losses for each objective, then training losses; those without data are absent."""
    panels = []
    floor = next((arm for arm in records.arms if arm.is_untrained), None)
    for objective in OBJECTIVES:
        curves = {arm.name: arm.heldout.get(objective) for arm in records.arms}
        reference = floor.final_heldout.get(objective) if floor else None
        title = f"Held-out {objective_name(objective)} loss"
        panels.append(_loss_panel(records, f"heldout-{objective}", title, curves, reference))
    for objective in OBJECTIVES:
        curves = {arm.name: arm.training.get(objective) for arm in records.arms}
        title = f"Training loss during {objective_name(objective)}"
        panels.append(_loss_panel(records, f"training-{objective}", title, curves, None))
    return [panel for panel in panels if panel is not None]


def score_panels(records: StudyRecords, table: Table) -> list[Panel]:
    """Mean and interval of every arm, one panel per task."""
    return [_score_panel(records, task, table) for task in records.tasks]


def rate_panels(records: StudyRecords) -> list[Panel]:
    """Test score by learning rate, one panel per task; none where only one rate was tried."""
    if len(set(records.study.learning_rates)) < 2:
        return []
    panels = [_rate_panel(records, task) for task in records.tasks if not task.is_zero_shot]
    return [panel for panel in panels if panel is not None]


def compose(panels: Sequence[Panel], *, num_columns: int = 2) -> Figure:
    """Put panels with their titles side by side, for print and slides."""
    num_columns = max(1, min(num_columns, len(panels)))
    rows = [panels[start : start + num_columns] for start in range(0, len(panels), num_columns)]
    heights = [max(panel.height for panel in row) + _TITLE_HEIGHT for row in rows]
    width = num_columns * WIDTH + (num_columns - 1) * _GAP
    height = sum(heights) + _GAP * max(len(rows) - 1, 0) or 1.0
    figure = Figure(figsize=(width, height), facecolor=PAPER)
    top = height
    for row, row_height in zip(rows, heights, strict=True):
        for column, panel in enumerate(row):
            size = panel.height + _TITLE_HEIGHT
            box = Box(column * (WIDTH + _GAP), top - size, WIDTH, size)
            panel.draw(figure, box, panel.title)
        top -= row_height + _GAP
    return figure


def inline_svg(panel: Panel) -> str:
    """Render a panel for a page: text is text, colours are the page's variables, ids are unique."""
    figure = Figure(figsize=(WIDTH, panel.height), facecolor="none")
    panel.draw(figure, Box(0, 0, WIDTH, panel.height), "")
    return page_svg(figure, name=panel.name, alt=panel.alt)


def _loss_panel(
    records: StudyRecords,
    name: str,
    title: str,
    curves: Mapping[str, Curve | None],
    floor: float | None,
) -> Panel | None:
    styles = arm_styles(records.arms)
    lines = [
        Line(arm.label, styles[arm.name], curve)
        for arm in records.arms
        if (curve := curves[arm.name]) is not None and not arm.is_untrained
    ]
    if not lines:
        return None
    ends = [f"{plain(line.label)} {line.curve.losses[-1]:.2f}" for line in lines]
    if floor is not None:
        ends.append(f"untrained encoder {floor:.2f}")
    alt = f"{title} in nats per token against training tokens. At the end: {'; '.join(ends)}."

    def draw(figure: Figure, box: Box, heading: str) -> None:
        smooth = name.startswith("training")
        with drawing(salt=name):
            draw_loss(figure, box, lines=lines, floor=floor, title=heading, smooth=smooth)

    return Panel(name, title, alt, LOSS_HEIGHT, draw)


def _score_panel(records: StudyRecords, task: TaskRecord, table: Table) -> Panel:
    styles = arm_styles(records.arms)
    rows = []
    for arm in records.arms:
        cell = table[arm.name, task.name]
        scores = tuple(scores_on_test(cell.selected, metric=task.metric))
        row = ScoreRow(arm.label, styles[arm.name], cell.estimate, scores, arm.is_untrained)
        rows.append(row)
    values = [f"{plain(row.label)} {score_cell(row.estimate)}" for row in rows]
    metric = metric_name(task.metric)
    alt = f"{plain(task.title)}: {metric} in percent points, by arm. {'; '.join(values)}."

    def draw(figure: Figure, box: Box, heading: str) -> None:
        with drawing(salt=task.name):
            draw_scores(figure, box, rows=rows, axis=f"{metric}, %", title=heading)

    index = records.tasks.index(task)
    return Panel(f"scores-{index}", task.title, alt, score_height(len(rows)), draw)


def _rate_panel(records: StudyRecords, task: TaskRecord) -> Panel | None:
    styles = arm_styles(records.arms)
    groups = records.by_cell()
    lines = []
    for arm in records.arms:
        by_rate: dict[float, list[float]] = {}
        for outcome in groups.get((arm.name, task.name), ()):
            score = outcome.score("test", task.metric)
            if score is not None:
                by_rate.setdefault(outcome.run.learning_rate, []).append(score)
        if by_rate:
            scores = tuple((rate, tuple(found)) for rate, found in sorted(by_rate.items()))
            lines.append(RateLine(arm.label, styles[arm.name], scores))
    if not lines:
        return None
    metric = metric_name(task.metric)
    alt = (
        f"{plain(task.title)}: test {metric} by learning rate, mean and range over seeds, "
        f"for {'; '.join(plain(line.label) for line in lines)}."
    )

    def draw(figure: Figure, box: Box, heading: str) -> None:
        with drawing(salt=task.name):
            draw_rates(figure, box, lines=lines, axis=f"test {metric}, %", title=heading)

    index = records.tasks.index(task)
    return Panel(f"rates-{index}", task.title, alt, SENSITIVITY_HEIGHT, draw)
