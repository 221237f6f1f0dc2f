"""A study's report as one self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from biphasic.amounts import count
from biphasic.analysis.claims import ClaimResult, claims_report
from biphasic.analysis.claims.render import tally
from biphasic.analysis.figures.losses import study_losses
from biphasic.analysis.figures.palette import VARIABLES
from biphasic.analysis.figures.rates import rates_of_arms
from biphasic.analysis.page.cards import dataset_titles, task_cards
from biphasic.analysis.page.content import (
    comparison_tables,
    facts,
    planned_tables,
    pretraining_rates,
    problem_groups,
    provenance,
    rate_rows,
    score_rows,
)
from biphasic.analysis.page.environment import render_page
from biphasic.analysis.page.evidence import (
    caveats,
    headline,
    page_scores,
    study_answers,
    study_families,
    verdict,
)
from biphasic.analysis.page.figures import (
    arm_figures,
    choice_sentence,
    factor_figures,
    few_arms,
    page_styles,
)
from biphasic.analysis.page.runs import run_data
from biphasic.analysis.questions.registered import registration_sentences
from biphasic.analysis.questions.text import answer_sentence, forecast_sentence, rule_sentence
from biphasic.analysis.records import StudyRecords
from biphasic.analysis.scores.reference import reference_values
from biphasic.analysis.scores.source import Scores, paper_scores
from biphasic.analysis.tables.results import seeds_note
from biphasic.analysis.tables.sentences import number, probability
from biphasic.analysis.tables.summary import (
    cost_rows,
    cost_sentence,
    heldout_note,
    loss_sentences,
    rows_statement,
    trained_segments,
)
from biphasic.analysis.text import OBJECTIVES, objective_name

MOST_COMPARISONS = 40
"""Maximum comparisons of one check on the page; `biphasic claims` prints all."""


@dataclass(frozen=True)
class Part:
    """A part of the page after the overview.

    Attributes:
        id: Its anchor in the page, and the name of its template.
    """

    id: str
    title: str
    hint: str
    is_open: bool = False


def render(records: StudyRecords, *, store: str) -> str:
    """Return the report as one HTML page; `store` is the link to the study's store."""
    scores, recipes = page_scores(records)
    few = few_arms(records, recipes)
    styles, titles = page_styles(records, few), dataset_titles(records, scores)
    paper = reference_values(scores, paper_scores())
    sources = [scores] if recipes is scores else [scores, recipes]
    first_cell = (len(sources) - 1) * len(scores.models) * len(scores.datasets)
    cards = task_cards(records, recipes, styles, paper, first_cell=first_cell)
    of_arms = cards if recipes is scores else task_cards(records, scores, styles, paper)
    compared, results = recipes.finished, claims_report(recipes)
    by_dataset = study_families(records)
    claims = [result for result in results if result.verdict != "no data"]
    # Comparisons of recipes say nothing of single arms.
    named = by_dataset.items() if recipes is scores else ()
    clear = [name for name, family in named if family.has_clear_best]
    charts, skipped = factor_figures(records, recipes)
    objectives = [name for name in OBJECTIVES if any(name in a.final_heldout for a in records.arms)]
    answers = study_answers(records)
    agrees, statement = rows_statement(records)
    findings = (*loss_sentences(records, recipes), heldout_note(records), cost_sentence(records))
    return render_page(
        "report.html.j2",
        study=records.study,
        variables=VARIABLES,
        facts=facts(records),
        num_problems=len(records.problems),
        parts=_parts(records, scores, compared, claims, num_charts=len(charts)),
        answers=[(one, answer_sentence(one), rule_sentence(one.question)) for one in answers],
        registered=registration_sentences(records) if answers else [],
        forecasts=forecast_sentence(answers),
        headline=headline(compared, by_dataset, titles),
        findings=[sentence for sentence in findings if sentence],
        caveats=caveats(recipes),
        cards=[(card, verdict(compared, by_dataset[card.dataset.name])) for card in cards],
        has_floor=any(card.floor is not None for card in cards),
        has_paper=any(row.paper for card in cards for row in (*card.rows, *card.more)),
        note=seeds_note(records, convention=records.study.convention),
        objectives=[objective_name(name) for name in objectives],
        score_rows=list(score_rows(records, of_arms, objectives=objectives, clear=clear)),
        planned=list(planned_tables(by_dataset.values(), titles)),
        comparisons=list(comparison_tables(compared, by_dataset.values(), titles)),
        claims=claims,
        claims_without_data=[result for result in results if result.verdict == "no data"],
        most_comparisons=MOST_COMPARISONS,
        charts=charts,
        skipped=skipped,
        loss_figures=arm_figures(study_losses(few)),
        rate_figures=arm_figures(rates_of_arms(few)),
        of_many=choice_sentence(records, few, recipes),
        rate_titles=[task.title for task in records.tasks if not task.is_zero_shot],
        pretraining_rates=pretraining_rates(records),
        rate_rows=list(rate_rows(records)),
        rows_agree=agrees,
        rows_statement=statement,
        cost_rows=list(cost_rows(records)),
        segments=trained_segments(records),
        problems=problem_groups(records.problems),
        provenance=provenance(records),
        store=store,
        styles=styles,
        labels=recipes.labels,
        unit=recipes.unit,
        number=number,
        probability=probability,
        data=run_data(records, sources, paper, store),
    )


def _parts(
    records: StudyRecords,
    scores: Scores,
    compared: Scores,
    claims: Sequence[ClaimResult],
    *,
    num_charts: int,
) -> list[Part]:
    """List the page's parts after the overview, in order."""
    shape = f"{count(len(scores.models), 'arm')}, {count(len(scores.datasets), 'column')}"
    rates = count(len(records.study.learning_rates), "rate")
    charts = count(num_charts, "figure")
    problems = count(len(records.problems), "problem") if records.problems else "none"
    return [
        Part("scores", "Scores", shape, is_open=True),
        Part("comparisons", "Comparisons", _comparisons_hint(compared)),
        Part("claims", "Claims", _claims_hint(claims)),
        Part("factors", "Factors", f"{charts} of scores by what arms differ in"),
        Part("loss", "Loss", "held-out and training loss by tokens read"),
        Part("rates", "Learning rates", f"{rates} tried for each fine-tuning"),
        Part("cost", "Cost", "tokens, FLOPs and time, by phase and by segment"),
        Part("problems", "Problems", problems),
        Part("provenance", "Provenance", "versions, hashes, seeds, hardware"),
    ]


def _comparisons_hint(compared: Scores) -> str:
    planned = "planned, and " if compared.planned else ""
    return f"{planned}the best arm of each task against every other"


def _claims_hint(claims: Sequence[ClaimResult]) -> str:
    if not claims:
        return "none of the reference study's claims can be checked on this study"
    parts = [f"{number} {verdict}" for verdict, number in tally(claims).items() if number]
    return f"{count(len(claims), 'claim')} of the reference study: {', '.join(parts)}"
