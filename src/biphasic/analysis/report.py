"""Writes a study's report: one page that needs nothing else, results as CSV, and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from biphasic.analysis.load import StudyRecords, load_study
from biphasic.analysis.page.background import facts, problem_groups, problems_csv, provenance
from biphasic.analysis.page.cards import dataset_titles, task_cards
from biphasic.analysis.page.environment import render_page
from biphasic.analysis.page.evidence import caveats, headline, verdict
from biphasic.analysis.page.matrix import cost_lines, rate_rows, score_rows, segment_lines
from biphasic.analysis.page.overlay import paper_values
from biphasic.analysis.page.runs import Links, record_links, run_data
from biphasic.analysis.palette import VARIABLES, arm_styles
from biphasic.analysis.scores import Scores, study_scores
from biphasic.analysis.stats import Cell, cells
from biphasic.analysis.summary import cost_sentence, loss_sentences, rows_statement
from biphasic.analysis.tables import results_csv, seeds_note, table_csv
from biphasic.analysis.text import OBJECTIVES, count, objective_name
from biphasic.files import write_bytes, write_text

Table = Mapping[tuple[str, str], Cell]
_OPEN = ("scores",)
"""Parts that are open at first, beside the overview."""


@dataclass(frozen=True)
class InlineFigure:
    """A figure in the page."""

    title: str
    svg: Markup


@dataclass(frozen=True)
class FigureGroup:
    """Figures under one heading."""

    title: str
    figures: tuple[InlineFigure, ...]
    caption: str


def write_report(study_folder: Path, store: Path) -> Path:
    """Write `report/` into a study's folder and return the path of its `report.html`.

    Each file is replaced in one step, the page last, so that a page never describes files that
    are not there.

    Raises:
        StudyError: There is no readable `study.json`.
    """
    records = load_study(study_folder, store)
    folder = study_folder / "report"
    page = folder / "report.html"
    html = render(records, links=record_links(page, store))
    write_text(folder / "results.csv", results_csv(records))
    write_text(folder / "table.csv", table_csv(records))
    write_text(folder / "problems.csv", problems_csv(records.problems))
    table = cells(records)
    for name, panels in (
        ("loss", loss_panels(records)),
        ("scores", score_panels(records, table)),
        ("learning-rates", rate_panels(records)),
    ):
        _write_figure(folder / "figures", name, panels)
    write_text(page, html)
    return page


def render(records: StudyRecords, *, links: Links) -> str:
    """Return the report as one HTML page.

    Args:
        records: The study's.
        links: How the page reaches the records that it was made from.
    """
    table, scores = cells(records), study_scores(records)
    styles, paper = arm_styles(records.arms), paper_values(scores)
    titles = dataset_titles(records, scores)
    cards = task_cards(records, scores, styles, paper)
    objectives = [name for name in OBJECTIVES if any(name in a.final_heldout for a in records.arms)]
    agrees, statement = rows_statement(records)
    return render_page(
        "report.html.j2",
        study=records.study,
        variables=VARIABLES,
        facts=facts(records),
        num_problems=len(records.problems),
        parts=_parts(records, scores),
        opened=_OPEN,
        headline=headline(scores, titles),
        findings=[s for s in (*loss_sentences(records), cost_sentence(records)) if s],
        caveats=caveats(records),
        cards=[(card, verdict(scores, card.dataset)) for card in cards],
        has_floor=any(card.floor is not None for card in cards),
        has_paper=bool(paper),
        note=seeds_note(records, convention=records.study.convention),
        objectives=[objective_name(name) for name in objectives],
        score_rows=list(score_rows(records, table, scores, styles, paper, objectives=objectives)),
        problems=problem_groups(records.problems),
        provenance=provenance(records),
        rows_agree=agrees,
        rows_statement=statement,
        cost_rows=cost_lines(records, styles),
        segments=list(segment_lines(records)),
        links=links,
        data=run_data(records, table, scores, paper, links),
        **_figures(records),
        **_rates(records, table),
    )


def _parts(records: StudyRecords, scores: Scores) -> list[tuple[str, str, str]]:
    """List the page's parts after the overview: id, title, and what to expect inside."""
    rates = count(len(records.study.learning_rates), "rate")
    problems = count(len(records.problems), "problem") if records.problems else "none"
    shape = f"{count(len(scores.models), 'arm')}, {count(len(scores.datasets), 'column')}"
    return [
        ("scores", "Scores", shape),
        ("figures", "Loss", "held-out and training loss by tokens read"),
        ("rates", "Learning rates", f"{rates} tried for each fine-tuning"),
        ("cost", "Cost", "tokens, FLOPs and time, by phase and by segment"),
        ("problems", "Problems", problems),
        ("provenance", "Provenance", "versions, hashes, seeds, hardware"),
    ]


def _figures(records: StudyRecords) -> dict[str, Any]:
    losses = tuple(InlineFigure(panel.title, _inline(panel)) for panel in loss_panels(records))
    caption = (
        "Losses are means per supervised token; training losses are averaged over neighbouring "
        "steps. A line that leaves at the top ends at the value beside its name."
    )
    return {
        "figure_groups": [FigureGroup("", losses, caption)] if losses else [],
        "skipped": [],
    }


def _rates(records: StudyRecords, table: Table) -> dict[str, Any]:
    panels = rate_panels(records)
    return {
        "rate_figures": [InlineFigure(panel.title, _inline(panel)) for panel in panels],
        "rate_reason": "There is no figure: it needs at least two learning rates with scores.",
        "rate_titles": [task.title for task in records.tasks if not task.is_zero_shot],
        "rate_rows": list(rate_rows(records, table, arm_styles(records.arms))),
    }


def _write_figure(folder: Path, name: str, panels: Sequence[Panel]) -> None:
    """Write a figure as PNG and SVG; without panels, remove what an earlier report left."""
    paths = folder / f"{name}.svg", folder / f"{name}.png"
    if not panels:
        for path in paths:
            path.unlink(missing_ok=True)
        return
    figure = compose(panels)
    write_text(paths[0], to_svg(figure, name=name))
    write_bytes(paths[1], to_png(figure))


def _inline(panel: Panel) -> Markup:
    return Markup(inline_svg(panel))  # noqa: S704 - matplotlib and inline_svg escape all names
