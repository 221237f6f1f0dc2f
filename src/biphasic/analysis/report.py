"""Writes a study's report: one page that needs nothing else, results as CSV, and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
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
from biphasic.analysis.load import Problem, StudyRecords, load_study
from biphasic.analysis.palette import VARIABLES, arm_styles
from biphasic.analysis.stats import Cell, cells, ranking
from biphasic.analysis.summary import (
    CostRow,
    SegmentRow,
    Verdict,
    caveats,
    cost_rows,
    cost_sentence,
    finetunings,
    headline,
    loss_sentences,
    rows_statement,
    segment_rows,
    task_line,
    task_notes,
    verdict,
)
from biphasic.analysis.tables import (
    best_arms,
    lowest_loss,
    results_csv,
    seeds_note,
    table_csv,
)
from biphasic.analysis.text import (
    OBJECTIVES,
    amount,
    duration,
    metric_name,
    objective_name,
    plain,
    rate,
    scientific,
    score_cell,
)
from biphasic.files import write_bytes, write_text
from biphasic.records import ArmRecord, TaskRecord

_PROBLEM_KINDS = {
    "missing": "Missing",
    "diverged": "Diverged",
    "damaged": "Damaged",
    "mixed": "Not alike",
}


@dataclass(frozen=True)
class _TaskCard:
    task: TaskRecord
    line: str
    notes: tuple[str, ...]
    verdict: Verdict
    figure: Markup


@dataclass(frozen=True)
class _ScoreRow:
    arm: ArmRecord
    variable: str
    losses: tuple[tuple[str, bool], ...]
    """Text and whether it is the best."""
    scores: tuple[tuple[str, bool, Cell], ...]
    rates: tuple[tuple[str, ...], ...]
    """For each task, how often each learning rate was chosen: `2e-4 ×3`."""


@dataclass(frozen=True)
class _CostGroup:
    label: str
    variable: str
    rows: tuple[CostRow, ...]


def write_report(study_folder: Path, store: Path) -> Path:
    """Write `report/` into a study's folder and return the path of its `report.html`.

    Each file is replaced in one step, the page last, so that a page never describes files that
    are not there.

    Raises:
        StudyError: There is no readable `study.json`.
    """
    records = load_study(study_folder, store)
    folder = study_folder / "report"
    html = render(records)
    write_text(folder / "results.csv", results_csv(records))
    write_text(folder / "table.csv", table_csv(records))
    table = cells(records)
    for name, panels in (
        ("loss", loss_panels(records)),
        ("scores", score_panels(records, table)),
        ("learning-rates", rate_panels(records)),
    ):
        _write_figure(folder / "figures", name, panels)
    page = folder / "report.html"
    write_text(page, html)
    return page


def render(records: StudyRecords) -> str:
    """Return the report as one HTML page."""
    table = cells(records)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("biphasic.analysis"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_showable,
    )
    environment.filters.update(
        amount=amount, duration=duration, scientific=scientific, rate=rate, metric=metric_name,
        grouped=lambda number: f"{number:,}".replace(",", "\u202f"),
    )  # fmt: skip
    agrees, statement = rows_statement(records)
    objectives = [name for name in OBJECTIVES if any(name in a.final_heldout for a in records.arms)]
    return environment.get_template("report.html.j2").render(
        study=records.study,
        variables=VARIABLES,
        facts=_facts(records),
        headline=headline(records, table),
        loss_sentences=loss_sentences(records),
        cost=cost_sentence(records),
        caveats=caveats(records),
        cards=_task_cards(records, table),
        objectives=[objective_name(name) for name in objectives],
        score_rows=list(_score_rows(records, table, objectives)),
        note=seeds_note(records, convention=records.study.convention),
        loss_figures=[(panel, _inline(panel)) for panel in loss_panels(records)],
        rate_figures=[(panel, _inline(panel)) for panel in rate_panels(records)],
        cost_groups=list(_cost_groups(records)),
        segments=segment_rows(records),
        throughput=_throughput,
        rows_agree=agrees,
        rows_statement=statement,
        problems=_grouped_problems(records.problems),
        num_problems=len(records.problems),
        provenance=_provenance(records),
    )


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


def _showable(value: Any) -> Any:
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _facts(records: StudyRecords) -> list[tuple[str, str]]:
    """Give the numbers at the top of the page: what it is and how much of it."""
    segments = segment_rows(records)
    results = finetunings(records)
    seconds = sum(row.segment.seconds for row in segments) + sum(r.seconds for r in results)
    facts = [
        (str(len(records.arms)), "arms"),
        (str(len(records.tasks)), "tasks"),
        (str(len(records.study.seeds)), "seeds"),
        (f"{len(results):,}".replace(",", "\u202f"), "fine-tunings"),
    ]
    if segments:
        facts.append((amount(sum(row.segment.tokens for row in segments)), "tokens trained"))
    return [*facts, (duration(seconds), "compute time")]


def _task_cards(records: StudyRecords, table: dict[tuple[str, str], Cell]) -> list[_TaskCard]:
    return [
        _TaskCard(
            task=task,
            line=task_line(task),
            notes=tuple(task_notes(records, task)),
            verdict=verdict(records, table, task),
            figure=_inline(panel),
        )
        for task, panel in zip(records.tasks, score_panels(records, table), strict=True)
    ]


def _score_rows(
    records: StudyRecords, table: dict[tuple[str, str], Cell], objectives: Sequence[str]
) -> Iterator[_ScoreRow]:
    styles = arm_styles(records.arms)
    lowest = {name: lowest_loss(records, name) for name in objectives}
    best = {task.name: best_arms(ranking(table, task.name)) for task in records.tasks}
    for arm in records.arms:
        found = [(arm.final_heldout.get(name), lowest[name]) for name in objectives]
        line = [table[arm.name, task.name] for task in records.tasks]
        yield _ScoreRow(
            arm=arm.record,
            variable=styles[arm.name].variable,
            losses=tuple(
                ("–" if loss is None else f"{loss:.3f}", loss is not None and loss == least)
                for loss, least in found
            ),
            scores=tuple(
                (score_cell(cell.estimate), arm.name in best[cell.task], cell) for cell in line
            ),
            rates=tuple(_chosen_rates(cell) for cell in line),
        )


def _chosen_rates(cell: Cell) -> tuple[str, ...]:
    # A zero-shot run has no rate; it is recorded as 0.
    chosen = [run.learning_rate for run in (o.run for o in cell.selected) if run.learning_rate]
    return tuple(f"{rate(value)} ×{chosen.count(value)}" for value in sorted(set(chosen)))


def _cost_groups(records: StudyRecords) -> Iterator[_CostGroup]:
    styles = arm_styles(records.arms)
    rows = cost_rows(records)
    for arm in records.arms:
        own = tuple(row for row in rows if row.arm == arm.name)
        if own:
            yield _CostGroup(arm.label, styles[arm.name].variable, own)


def _throughput(row: SegmentRow) -> str:
    segment = row.segment
    return amount(segment.tokens / segment.seconds) if segment.seconds > 0 else "–"


def _grouped_problems(problems: Sequence[Problem]) -> list[tuple[str, list[str]]]:
    return [
        (title, [problem.text for problem in problems if problem.kind == kind])
        for kind, title in _PROBLEM_KINDS.items()
        if any(problem.kind == kind for problem in problems)
    ]


def _provenance(records: StudyRecords) -> list[tuple[str, list[tuple[str, str]]]]:
    """Flatten provenance into groups of names and values; scalars at the top come first."""
    study = records.study
    general = [
        ("name", study.name),
        ("statistics", f"convention '{study.convention}'"),
        ("learning rates", ", ".join(rate(value) for value in study.learning_rates)),
        ("fine-tuning seeds", ", ".join(str(seed) for seed in study.seeds)),
    ]
    groups = []
    for name, value in study.provenance.items():
        if isinstance(value, dict):
            groups.append((_spoken(name), list(_flatten(value))))
        else:
            general.append((_spoken(name), _value(value)))
    general += [(f"{arm.label}: state", arm.record.state) for arm in records.arms]
    return [("study", general), *groups]


def _flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        path = f"{prefix}{_spoken(str(name))}"
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{path} · ")
        else:
            yield path, _value(value)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_value(item) for item in value)
    if value is None or value == {}:
        return "–"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _spoken(name: str) -> str:
    return name.replace("_", " ")
