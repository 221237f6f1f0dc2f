"""Figures in the page, and figure files next to it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from matplotlib.figure import Figure

from biphasic.analysis.figures.chart import Chart
from biphasic.analysis.figures.draw import PAIRS, draw, to_bytes
from biphasic.analysis.figures.runs import arm_styles, rates_of_arms, study_losses
from biphasic.analysis.figures.strips import draw_strips
from biphasic.analysis.page.content import dataset_titles
from biphasic.analysis.records import StudyRecords
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.statistics.compare import ranked
from biphasic.analysis.words import words
from biphasic.files import write_bytes
from biphasic.palette import MUTED, SeriesStyle

MOST_ROWS = 12  # maximum arms for which a chart shows all, in the study's order
SHOWN_OF_MANY = 8  # with more arms, number of best ones shown besides the untrained encoder
_FADED = SeriesStyle(MUTED, "o", "-")


def few_arms(records: StudyRecords, scores: Scores) -> StudyRecords:
    """Return records of few enough arms for charts with a line per arm."""
    # A recipe with several pretraining runs is one of the scores' models, and its first run is
    # kept, under the recipe's name. Of many, those with the best mean rank over datasets and the
    # untrained encoder are kept.
    if len(records.arms) <= MOST_ROWS:
        return records
    labels = {model.name: model.label for model in scores.models}
    totals = dict.fromkeys(labels, 0.0)
    for dataset in scores.datasets:
        places = {name: place for place, name in enumerate(ranked(scores, dataset.name))}
        for name in totals:
            totals[name] += places.get(name, len(totals))
    most = len(labels) if len(labels) <= MOST_ROWS else SHOWN_OF_MANY
    chosen = set(sorted(totals, key=lambda name: totals[name])[:most])
    chosen |= {model.name for model in scores.models if model.is_untrained}
    kept = (arm for arm in records.arms if arm.name in chosen)
    relabelled = (
        (arm, arm.record.model_copy(update={"label": labels.get(arm.name, arm.label)}))
        for arm in kept
    )
    arms = tuple(dataclasses.replace(arm, record=record) for arm, record in relabelled)
    names = {arm.name for arm in arms}
    runs = tuple(run for run in records.runs if run.arm in names)
    return dataclasses.replace(records, arms=arms, runs=runs)


def few_scores(scores: Scores, few: StudyRecords) -> Scores:
    """Return scores of the models that are drawn."""
    names = {arm.name for arm in few.arms}
    models = tuple(model for model in scores.models if model.name in names)
    return dataclasses.replace(scores, models=models)


def choice_sentence(records: StudyRecords, few: StudyRecords, scores: Scores) -> str:
    """Describe which of many arms are drawn; empty if all are."""
    if len(few.arms) == len(records.arms):
        return ""
    untrained = sum(arm.is_untrained for arm in few.arms)
    recipes = len(scores.models) if scores.is_replicated else 0
    return words().drawn(
        len(records.arms), len(few.arms) - untrained, recipes, untrained, recipes <= MOST_ROWS
    )


def page_styles(records: StudyRecords, few: StudyRecords) -> dict[str, SeriesStyle]:
    """Return the styles of the charts' arms, and grey for all others and for baselines."""
    styles = arm_styles(few.arms)
    names = [*(arm.name for arm in records.arms), *(name for name, _ in records.baselines)]
    return {name: styles.get(name, _FADED) for name in names}


def write_figures(folder: Path, few: StudyRecords, scores: Scores) -> None:
    """Write losses, scores and learning rates as PNG and SVG; delete those without data."""
    charts = {"loss": study_losses(few), "learning-rates": rates_of_arms(few)}
    figures: dict[str, Figure | None] = {
        name: draw(chart, PAIRS) if isinstance(chart, Chart) else None
        for name, chart in charts.items()
    }
    scores, figures["scores"] = few_scores(scores, few), None
    if scores.models and scores.datasets:
        styles, titles = arm_styles(few.arms), dataset_titles(few, scores)
        figures["scores"] = draw_strips(scores, styles, titles)
    for name, figure in figures.items():
        for ending in ("svg", "png"):
            path = folder / f"{name}.{ending}"
            if figure is None:
                path.unlink(missing_ok=True)
            else:
                write_bytes(path, to_bytes(figure, ending, name=name))
