"""Figures within a page, and those that stand beside it as files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from biphasic.analysis.figures import (
    Panel,
    compose,
    inline_svg,
    loss_panels,
    rate_panels,
    score_panels,
    to_png,
    to_svg,
)
from biphasic.analysis.load import StudyRecords
from biphasic.analysis.page.cards import MOST_ROWS, SHOWN_OF_MANY, ranked
from biphasic.analysis.palette import MUTED, SeriesStyle, arm_styles
from biphasic.analysis.plots.catalog import record_figures, score_figures
from biphasic.analysis.plots.chart import Chart, Skipped
from biphasic.analysis.plots.page import chart_svg
from biphasic.analysis.plots.rates import RATE_FIGURE
from biphasic.analysis.score_table import Scores
from biphasic.analysis.scores import paper_scores
from biphasic.analysis.stats import cells
from biphasic.files import write_bytes, write_text

_FADED = SeriesStyle(MUTED, "o", "-")


@dataclass(frozen=True)
class InlineFigure:
    """A figure in the page."""

    title: str
    svg: Markup
    caption: str = ""


def few_arms(records: StudyRecords, scores: Scores) -> StudyRecords:
    """Return records of the arms that charts with a line per arm can hold.

    Of many arms those with the best mean rank over datasets, and the untrained encoder.
    """
    if len(records.arms) <= MOST_ROWS:
        return records
    totals = dict.fromkeys((arm.name for arm in records.arms), 0.0)
    for dataset in scores.datasets:
        places = {name: place for place, (name, _) in enumerate(ranked(scores, dataset.name))}
        for name in totals:
            totals[name] += places.get(name, len(totals))
    chosen = set(sorted(totals, key=lambda name: totals[name])[:SHOWN_OF_MANY])
    arms = tuple(arm for arm in records.arms if arm.name in chosen or arm.is_untrained)
    names = {arm.name for arm in arms}
    outcomes = tuple(outcome for outcome in records.outcomes if outcome.run.arm in names)
    return dataclasses.replace(records, arms=arms, outcomes=outcomes)


def choice_sentence(records: StudyRecords, few: StudyRecords) -> str:
    """Say which of many arms are drawn, with a space after it; empty where all are."""
    if len(few.arms) == len(records.arms):
        return ""
    untrained = " and the untrained encoder" if any(a.is_untrained for a in few.arms) else ""
    best = len(few.arms) - sum(arm.is_untrained for arm in few.arms)
    return f"Of {len(records.arms)} arms the {best} best over all columns{untrained} are drawn. "


def page_styles(records: StudyRecords, few: StudyRecords) -> dict[str, SeriesStyle]:
    """Give the arms of the charts the styles that they have there, and grey to all others."""
    styles = arm_styles(few.arms)
    return {arm.name: styles.get(arm.name, _FADED) for arm in records.arms}


def loss_figures(few: StudyRecords) -> list[InlineFigure]:
    """Draw held-out and training losses."""
    return [InlineFigure(panel.title, _inline(panel)) for panel in loss_panels(few)]


def rate_figures(few: StudyRecords) -> list[InlineFigure]:
    """Draw test scores by learning rate, a figure per task."""
    return [InlineFigure(panel.title, _inline(panel)) for panel in rate_panels(few)]


def factor_figures(
    records: StudyRecords, scores: Scores
) -> tuple[list[InlineFigure], list[Skipped]]:
    """Draw the reference study's figures as far as a study has what they need.

    Returns:
        The figures, and what is left out, with reasons.
    """
    found = [
        *score_figures(scores, reference=paper_scores()),
        *(figure for figure in record_figures(records) if figure.name != RATE_FIGURE),
    ]
    drawn = [
        InlineFigure(figure.title, Markup(chart_svg(figure)), figure.caption)  # noqa: S704
        for figure in found
        if isinstance(figure, Chart)
    ]
    return drawn, [figure for figure in found if isinstance(figure, Skipped)]


def write_figures(folder: Path, few: StudyRecords) -> None:
    """Write losses, scores and learning rates as PNG and SVG; remove those without data."""
    table = cells(few)
    _write(folder, "loss", loss_panels(few))
    _write(folder, "scores", score_panels(few, table))
    _write(folder, "learning-rates", rate_panels(few))


def _write(folder: Path, name: str, panels: Sequence[Panel]) -> None:
    paths = folder / f"{name}.svg", folder / f"{name}.png"
    if not panels:
        _remove(paths)
        return
    figure = compose(panels)
    write_text(paths[0], to_svg(figure, name=name))
    write_bytes(paths[1], to_png(figure))


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _inline(panel: Panel) -> Markup:
    return Markup(inline_svg(panel))  # noqa: S704 - matplotlib and inline_svg escape all names
