"""A study's report as one self-contained page; everything is escaped except our own markup."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from biphasic.analysis.claims import claims_report
from biphasic.analysis.figures import draw as drawn
from biphasic.analysis.figures.catalog import score_figures
from biphasic.analysis.figures.chart import Chart
from biphasic.analysis.figures.runs import arm_styles, continued_losses, rates_of_arms, study_losses
from biphasic.analysis.figures.strips import strips_of
from biphasic.analysis.page import content
from biphasic.analysis.questions import answer
from biphasic.analysis.records import StudyRecords, load_records
from biphasic.analysis.scores.reference import reference_values
from biphasic.analysis.scores.source import paper_scores, study_scores
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.statistics.compare import ranked
from biphasic.analysis.statistics.replicates import by_recipe
from biphasic.analysis.tables import results
from biphasic.analysis.tables.text import comparisons_csv
from biphasic.analysis.text import plain
from biphasic.analysis.words import environment, words
from biphasic.files import write_bytes, write_text
from biphasic.palette import MUTED, VARIABLES, SeriesStyle


def render(records: StudyRecords, *, store: str) -> str:
    """Return the report as one HTML page; `store` is the link to the study's store."""
    scores, recipes = content.page_scores(records)
    few, paper = few_arms(records, recipes), reference_values(scores, paper_scores())
    sources = [scores] if recipes is scores else [scores, recipes]
    first_cell = (len(sources) - 1) * len(scores.models) * len(scores.datasets)
    styles, shown = page_styles(records, few), few_scores(recipes, few)

    titles = content.dataset_titles(records, scores)
    strips = strips_of(
        shown, styles, titles, datasets=shown.datasets, reference=paper, every=recipes
    )
    # The policy allows the page its own style and this script: no request, form or other code.
    script = (resources.files("biphasic.analysis") / "templates" / "report.js").read_text("utf-8")
    return fill(
        "report.html.j2",
        records=records,
        script=Markup(script),  # noqa: S704 - our own
        script_sha256=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        variables=VARIABLES,
        scores=scores,
        recipes=recipes,
        compared=recipes.finished,
        families=content.study_families(records),
        titles=titles,
        answers=content.study_answers(records),
        columns=content.columns_of(recipes, paper, first_cell=first_cell),
        arm_columns=content.columns_of(scores, paper),
        has_star=recipes is scores,  # comparisons of recipes say nothing of single arms
        strips=[*strips.split()] if isinstance(strips, Chart) else [],
        claims=claims_report(recipes),
        factors=[*score_figures(recipes, reference=paper_scores()), continued_losses(records)],
        losses=study_losses(few),
        rates=rates_of_arms(few),
        of_many=choice_sentence(records, few, recipes),
        problems=content.problem_groups(records.problems),
        store=store,
        styles=styles,
        data=content.run_data(records, sources, paper, store),
    )


def write_page(page: Path, study_folder: Path, store: Path, *, note: Path) -> None:
    """Write a report's page, tables and figures; `note` says that earlier ones are complete."""
    records, folder = load_records(study_folder, store), page.parent
    scores = by_recipe(study_scores(records))
    html = render(records, store=content.store_link(page, store))
    note.unlink(missing_ok=True)
    write_text(folder / "results.csv", results.results_csv(records))
    write_text(folder / "table.csv", results.table_csv(records))
    write_text(folder / "comparisons.csv", comparisons_csv(content.planned_families(records)))
    if answers := content.study_answers(records):
        write_text(folder / "questions.csv", answer.questions_csv(answers))
    else:  # of an earlier version of the study
        (folder / "questions.csv").unlink(missing_ok=True)
    write_text(folder / "problems.csv", content.problems_csv(records.problems))
    write_figures(folder / "figures", few_arms(records, scores), scores)
    write_text(page, html)


def fill(template: str, **context: Any) -> str:
    """Fill a template of the page; strings are escaped and hidden characters are replaced."""
    return _environment().get_template(template).render(**context)


@cache
def _environment() -> jinja2.Environment:
    def svg(chart: Chart) -> Markup:
        return Markup(drawn.chart_svg(chart))  # noqa: S704 - matplotlib and page_svg escape names

    made = environment(
        autoescape=True,
        finalize=lambda value: (
            plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value
        ),
    )
    for module in (content, results, answer):  # templates call what makes their rows
        functions = {name: each for name, each in vars(module).items() if callable(each)}
        made.globals.update(functions)
    # What a macro returns to a template would count as markup.
    made.globals.update(
        sentence=lambda name, *values: str(getattr(words(), name)(*values)),
        most_comparisons=content.MOST_COMPARISONS,
    )
    made.filters.update(paper=content.paper_text, svg=svg)
    return made


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
    shown, titles = few_scores(scores, few), content.dataset_titles(few, scores)
    charts = {
        "loss": study_losses(few),
        "learning-rates": rates_of_arms(few),
        "scores": strips_of(shown, arm_styles(few.arms), titles, every=scores),
    }
    for name, chart in charts.items():
        figure = drawn.draw(chart, drawn.PAIRS) if isinstance(chart, Chart) else None
        for ending in ("svg", "png"):
            path = folder / f"{name}.{ending}"
            if figure is None:
                path.unlink(missing_ok=True)
            else:
                write_bytes(path, drawn.to_bytes(figure, ending, name=name))
