"""A study's report as one self-contained page; everything is escaped except our own markup."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from biphasic.amounts import count
from biphasic.analysis.claims import ClaimResult, claims_report
from biphasic.analysis.claims.claim import tally
from biphasic.analysis.figures.catalog import score_figures
from biphasic.analysis.figures.chart import Chart
from biphasic.analysis.figures.draw import chart_svg
from biphasic.analysis.figures.runs import continued_losses, rates_of_arms, study_losses
from biphasic.analysis.figures.strips import strips_svg
from biphasic.analysis.page.content import (
    MOST_COMPARISONS,
    Column,
    columns_of,
    common_peak,
    comparison_notes,
    comparisons_csv,
    dataset_titles,
    facts,
    gaps,
    paper_text,
    problem_groups,
    problems_csv,
    provenance,
    rate_rows,
    run_data,
    store_link,
)
from biphasic.analysis.page.evidence import (
    caveats,
    page_scores,
    study_answers,
    study_families,
)
from biphasic.analysis.page.figures import (
    choice_sentence,
    few_arms,
    few_scores,
    page_styles,
    write_figures,
)
from biphasic.analysis.questions.answer import (
    forecast_sentence,
    questions_csv,
    registration_sentences,
)
from biphasic.analysis.records import StudyRecords, load_records
from biphasic.analysis.scores.reference import reference_values
from biphasic.analysis.scores.source import paper_scores, study_scores
from biphasic.analysis.statistics.doubts import floor_sentences, floor_tests
from biphasic.analysis.statistics.replicates import by_recipe
from biphasic.analysis.tables.results import (
    cost_rows,
    cost_sentence,
    heldout_losses,
    heldout_note,
    lowest_losses,
    results_csv,
    rows_statement,
    seeds_note,
    table_csv,
    task_line,
    task_notes,
    trained_segments,
)
from biphasic.analysis.text import plain, points_cell
from biphasic.analysis.words import environment, words
from biphasic.files import write_text
from biphasic.palette import VARIABLES


def render(records: StudyRecords, *, store: str) -> str:
    """Return the report as one HTML page; `store` is the link to the study's store."""
    scores, recipes = page_scores(records)
    few = few_arms(records, recipes)
    paper = reference_values(scores, paper_scores())
    sources = [scores] if recipes is scores else [scores, recipes]
    first_cell = (len(sources) - 1) * len(scores.models) * len(scores.datasets)
    compared, families = recipes.finished, study_families(records)
    titles = dataset_titles(records, scores)
    answers, styles = study_answers(records), page_styles(records, few)
    drawn = few_scores(recipes, few)

    def strips(column: Column) -> Markup:
        svg = strips_svg(drawn, styles, column.dataset, paper)
        return Markup(svg)  # noqa: S704 - page_svg escapes names

    # The policy allows the page its own style and this script: no request, form or other code.
    script = (resources.files("biphasic.analysis") / "templates" / "report.js").read_text("utf-8")
    return fill(
        "report.html.j2",
        records=records,
        script=Markup(script),  # noqa: S704 - our own
        script_sha256=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        variables=VARIABLES,
        facts=facts(records),
        compared=compared,
        families=families,
        titles=titles,
        answers=[(one, words().answer(one), words().rule(one.question)) for one in answers],
        registered=registration_sentences(records) if answers else [],
        forecasts=forecast_sentence(answers),
        above_floors=[*filter(None, floor_sentences(compared, titles))],
        floor_note=lambda one: floor_tests(compared, one.dataset).note(one.first, one.second),
        heldout_note=heldout_note(records),
        cost_sentence=cost_sentence(records),
        caveats=caveats(recipes),
        columns=columns_of(recipes, paper, first_cell=first_cell),
        arm_columns=columns_of(scores, paper),
        # Comparisons of recipes say nothing of single arms.
        has_star=recipes is scores,
        compared_models=recipes.models,
        losses_of_models=heldout_losses(records, recipes),
        losses_of_runs=heldout_losses(records, scores),
        strips=strips,
        task_line=partial(task_line, records, recipes),
        task_notes=partial(task_notes, records),
        note=seeds_note(records),
        lowest_losses=lowest_losses(records),
        gaps=partial(gaps, records),
        most_comparisons=MOST_COMPARISONS,
        comparison_notes=partial(comparison_notes, compared),
        claims=claims_report(recipes),
        claims_hint=claims_hint,
        factors=[*score_figures(recipes, reference=paper_scores()), continued_losses(records)],
        losses=study_losses(few),
        rates=rates_of_arms(few),
        of_many=choice_sentence(records, few, recipes),
        rate_rows=list(rate_rows(records)),
        common_peak=common_peak(records),
        rows_statement=rows_statement(records),
        cost_rows=list(cost_rows(records)),
        segments=trained_segments(records),
        problems=problem_groups(records.problems),
        provenance=provenance(records),
        store=store,
        styles=styles,
        labels=recipes.labels,
        unit=recipes.unit,
        data=run_data(records, sources, paper, store),
    )  # fmt: skip


def write_page(page: Path, study_folder: Path, store: Path, *, note: Path) -> None:
    """Write a report's page, tables and figures; `note` says that earlier ones are complete."""
    records, folder = load_records(study_folder, store), page.parent
    scores = by_recipe(study_scores(records))
    html = render(records, store=store_link(page, store))
    note.unlink(missing_ok=True)
    write_text(folder / "results.csv", results_csv(records))
    write_text(folder / "table.csv", table_csv(records))
    compared = study_families(records).values()
    write_text(folder / "comparisons.csv", comparisons_csv(compared, scores.written_names))
    if answers := study_answers(records):
        write_text(folder / "questions.csv", questions_csv(answers))
    else:  # of an earlier version of the study
        (folder / "questions.csv").unlink(missing_ok=True)
    write_text(folder / "problems.csv", problems_csv(records.problems))
    write_figures(folder / "figures", few_arms(records, scores), scores)
    write_text(page, html)


def claims_hint(results: Sequence[ClaimResult]) -> str:
    """Count the verdicts of claims."""
    counts = {verdict: n for verdict, n in tally(results).items() if n and verdict != "no data"}
    if not counts:
        return "none of the reference study's claims can be checked on this study"
    parts = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
    return f"{count(sum(counts.values()), 'claim')} of the reference study: {parts}"


def fill(template: str, **context: Any) -> str:
    """Fill a template of the page; strings are escaped and hidden characters are replaced."""
    return _environment().get_template(template).render(**context)


@cache
def _environment() -> jinja2.Environment:
    def svg(chart: Chart) -> Markup:
        return Markup(chart_svg(chart))  # noqa: S704 - matplotlib and page_svg escape names

    made = environment(
        autoescape=True,
        finalize=lambda value: (
            plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value
        ),
    )
    made.filters.update(cell=points_cell, paper=paper_text, svg=svg)
    return made
