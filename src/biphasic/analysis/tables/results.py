"""Results and costs of a study as reproducible files, as a table for the terminal, and in words."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from rich.table import Table
from rich.text import Text

from biphasic.analysis.estimate import METHODS, estimate, expected_coverage
from biphasic.analysis.records import ArmData, StudyRecords, TrainedSegment
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.scores.table import AT_END, DatasetInfo, Scores
from biphasic.analysis.statistics.doubts import doubt_notes
from biphasic.analysis.text import (
    OBJECTIVES,
    csv_text,
    objective_name,
    plain,
    points_cell,
    short_names,
    truncations,
)
from biphasic.analysis.words import words
from biphasic.facts import LOSS_UNITS, NATS
from biphasic.files import digest
from biphasic.records import FEW_HELDOUT, PRETRAINING, LedgerEntry, ResultRecord

_RESULT_COLUMNS = (
    "arm", "task", "metric", "learning_rate", "seed", "status", "selected", "validation", "test",
)  # fmt: skip
_TABLE_COLUMNS = (
    "arm", "task", "metric", "mean", "half_width", "num_seeds", "is_complete", "convention",
    "is_at_end",
)  # fmt: skip


def results_csv(records: StudyRecords) -> str:
    """Write each arm's held-out losses, a row for each fine-tuning, then floors and references."""
    # Floats are written so they read back exactly; a run without scores has empty fields. Held-out
    # losses are in the column `test`, as no choice was based on them. There are no times, paths or
    # hosts: equal records give equal bytes.
    groups = records.by_cell
    rows: list[Sequence[Any]] = [
        (*key, "", "", "finished", "", "", loss) for *key, loss in _heldout_losses(records)
    ]
    selected = records.selected
    for arm in records.arms:
        for task in records.tasks:
            chosen = {result.id for result in selected[arm.name, task.name]}
            runs = groups.get((arm.name, task.name), ())
            rows += [
                (
                    arm.name, task.name, task.metric, run.learning_rate, run.seed,
                    records.status(run), str(run.id in chosen).lower(),
                    *records.scores_of(run, task.metric),
                )
                for run in sorted(runs, key=lambda run: (run.learning_rate, run.seed))
            ]  # fmt: skip
    metrics = {task.name: task.metric for task in records.tasks}
    rows += [
        (
            name, task, metrics[task], "", result.seed, result.status, "true",
            *(result.score(split, metrics[task]) for split in ("validation", "test")),
        )
        for (name, task), results in records.baselines.items()
        for result in results
    ]  # fmt: skip
    return csv_text(_RESULT_COLUMNS, rows)


def table_csv(records: StudyRecords) -> str:
    """Write mean and half-width per arm, task and metric, of runs chosen by the main metric."""
    convention = records.study.convention
    rows: list[Sequence[Any]] = [(*row, "", "", "", "", "") for row in _heldout_losses(records)]
    metrics = {task.name: task.metric for task in records.tasks}
    scores = study_scores(records)
    for (arm_name, task_name), runs in (*records.selected.items(), *records.baselines.items()):
        main = metrics[task_name]
        others = {metric for run in runs for metric in (run.test or {})}
        cell = scores.get(arm_name, task_name)
        marks = (str(cell.is_complete).lower(), convention, str(cell.is_at_end).lower())
        for metric in (main, *sorted(others - {main})):
            found = [run.test[metric] for run in runs if run.test and metric in run.test]
            score = estimate(found, convention=convention)
            numbers = (score.mean, score.half_width, score.num_seeds) if score else ("", "", 0)
            rows.append((arm_name, task_name, metric, *numbers, *marks))
    return csv_text(_TABLE_COLUMNS, rows)


def _heldout_losses(records: StudyRecords) -> Iterator[tuple[str, str, str, float]]:
    """Yield arm, task, metric and value of each final held-out loss."""
    for arm in records.arms:
        for objective, loss in sorted(arm.final_heldout.items()):
            yield arm.name, PRETRAINING, f"heldout_{objective}_loss", loss


def format_table(records: StudyRecords) -> Table:
    """Lay out held-out losses and scores for the terminal, with the best of each column in bold."""
    scores = study_scores(records)
    title = f"{plain(records.study.title)}: mean (95 % interval) in percent points"
    caption = " ".join([seeds_note(records), *doubt_notes(scores)])
    rich_table = Table(title=Text(title), caption=Text(caption))
    rich_table.add_column("Arm", overflow="fold")
    lowest = lowest_losses(records)
    for objective in lowest:
        rich_table.add_column(f"{objective_name(objective)} loss", justify="right")
    for task in records.tasks:
        header = Text(f"{plain(task.title)}\n{task.metric_title}")
        # Titles may wrap, scores may not: "87.85 (±0.13)" is 13 characters wide.
        rich_table.add_column(header, justify="right", min_width=13)
    best = {task.name: scores.finished.best(task.name) for task in records.tasks}
    for arm in records.arms:
        row = [Text(plain(arm.label))]
        for objective, least in lowest.items():
            loss = arm.final_heldout.get(objective)
            text = "–" if loss is None else f"{loss:.3f}"
            row.append(Text(text, style="bold" if loss == least else ""))
        for task in records.tasks:
            score = scores.cells[arm.name, task.name]
            text = points_cell(score.estimate) + ("" if score.is_complete else " †")
            text += f" {AT_END}" if score.is_at_end else ""
            row.append(Text(text, style="bold" if arm.name in best[task.name] else ""))
        rich_table.add_row(*row, end_section=arm is records.arms[-1])
    for model in scores.baselines:
        texts = (points_cell(scores.get(model.name, task.name).estimate) for task in records.tasks)
        rich_table.add_row(Text(plain(model.label)), *("–" for _ in lowest), *texts, style="dim")
    return rich_table


def seeds_note(records: StudyRecords, *, of_runs: bool = False) -> str:
    """Describe the number of seeds, and how the intervals were computed."""
    # With `of_runs`, they are over pretraining runs.
    tasks, convention = {task.name: task for task in records.tasks}, records.study.convention
    cells = study_scores(records).cells.items()
    known = [(tasks[task], score) for (_, task), score in cells if task in tasks]
    tuned = [score for task, score in known if not task.is_zero_shot]
    numbers = sorted({score.estimate.num_seeds for score in tuned if score.estimate})
    share = (
        expected_coverage(numbers[0], convention=convention) if max(numbers[:1] or [0]) > 1 else 0
    )
    return words().seeds(
        numbers, convention, METHODS[convention], round(share, 2), tuned,
        not all(score.is_complete for _, score in known),
        any(task.is_zero_shot for task in records.tasks), of_runs,
    )  # fmt: skip


def heldout_losses(records: StudyRecords, scores: Scores) -> dict[str, dict[str, float]]:
    """Return the final held-out losses of each model; those of a recipe are means over its runs."""
    groups = scores.runs.replicates if scores.runs else ()
    recipe_of = {model.name: group[0].name for group in groups for model in group}
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for arm in records.arms:
        for objective, loss in arm.final_heldout.items():
            found[recipe_of.get(arm.name, arm.name)][objective].append(loss)
    return {
        name: {objective: fmean(losses) for objective, losses in of_model.items()}
        for name, of_model in found.items()
    }


def lowest_losses(records: StudyRecords) -> dict[str, float]:
    """Return the lowest held-out loss of any finished arm, for each objective with losses."""
    known = {name: [a for a in records.arms if name in a.final_heldout] for name in OBJECTIVES}
    return {  # infinite if only intermediate arms have one
        name: min((a.final_heldout[name] for a in arms if a.record.is_final), default=math.inf)
        for name, arms in known.items()
        if arms
    }


_MOST_NAMED = 4  # maximum arms that a note names


def heldout_note(records: StudyRecords) -> str:
    """Return a warning if held-out losses use very few documents; otherwise empty."""
    data = records.study.provenance.get("data")
    corpus = data.get("held-out corpus") if isinstance(data, dict) else None
    number = corpus.get("documents") if isinstance(corpus, dict) else None
    if not isinstance(number, int) or number >= FEW_HELDOUT:
        return ""
    return words().few_heldout(number)


def cost_sentence(records: StudyRecords) -> str:
    """Describe the cost of training, fine-tuning and scoring, and the savings by sharing."""
    return words().cost(trained_segments(records), finetunings(records), zero_shot_runs(records))


def finetunings(records: StudyRecords) -> list[ResultRecord]:
    """Return one result for each fine-tuning."""
    # One fine-tuning may be scored on several tasks, and zero-shot tasks have none.
    trained: dict[tuple[str, str, str, float, int], ResultRecord] = {}
    for result in records.results_of(records.runs):
        if not result.is_zero_shot:
            training = result.trained_on or result.task
            settings = digest(result.protocol)
            key = (result.state, training, settings, result.learning_rate, result.seed)
            trained.setdefault(key, result)
    return list(trained.values())


def zero_shot_runs(records: StudyRecords) -> list[ResultRecord]:
    """Return each result of a zero-shot task once; arms may share it."""
    results = records.results_of(records.runs)
    return [*{one.id: one for one in results if one.is_zero_shot}.values()]


def cost_rows(records: StudyRecords) -> Iterator[tuple[ArmData, str, LedgerEntry, int | None]]:
    """Yield the cost of each trained arm's phases, then their sum, `total`, if it has several."""
    # Last is what was supervised; None for the sum of a phase on tokens and one on texts of pairs.
    for arm in records.arms:
        for entry in arm.ledger:
            what = f"{entry.phase + 1} · {objective_name(entry.objective)}"
            yield arm, what, entry, entry.supervised_tokens
        if len(arm.ledger) > 1:
            names = ("steps", "documents", "tokens", "supervised_tokens", "flops")
            sums = {name: sum(getattr(entry, name) for entry in arm.ledger) for name in names}
            total = arm.ledger[0].model_copy(update=sums)
            on_tokens = {LOSS_UNITS.get(entry.objective, NATS) == NATS for entry in arm.ledger}
            yield arm, "total", total, total.supervised_tokens if len(on_tokens) == 1 else None


def trained_segments(records: StudyRecords) -> list[tuple[TrainedSegment, tuple[str, ...]]]:
    """Return every training segment once, with the labels of the arms that build on it."""
    segments: dict[str, TrainedSegment] = {}
    users: dict[str, list[str]] = defaultdict(list)
    shown = short_names(arm.label for arm in records.arms)
    for arm in records.arms:
        for segment in arm.segments:
            segments[segment.state] = segment
            users[segment.state].append(shown[arm.label])
    return [(segment, tuple(users[state])) for state, segment in segments.items()]


def rows_statement(records: StudyRecords) -> tuple[bool, str]:
    """Return whether arms with the same data seed read the same rows, and a sentence about it."""
    # Hashes cover all rows up to a state's step, so only arms of equal length are comparable.
    by_step: dict[int, dict[tuple[int | None, str], list[str]]]
    by_step = defaultdict(lambda: defaultdict(list))
    shown = short_names(arm.label for arm in records.arms)
    for arm in records.arms:
        if arm.state is not None and arm.segments:
            read = arm.record.seeds.get("data_seed"), arm.state.rows_sha256
            by_step[arm.state.step][read].append(shown[arm.label])
    agrees = all(len({seed for seed, _ in groups}) == len(groups) for groups in by_step.values())
    return agrees, words().rows_read(by_step)


def task_line(records: StudyRecords, scores: Scores, dataset: DatasetInfo) -> str:
    """Describe a task, or an average, in one line."""
    shares = scores.shares(dataset).values()
    task = records.task(dataset.name)
    return words().task_line(task, len(shares), len({*shares}) > 1, scores.unit)


def task_notes(records: StudyRecords, name: str) -> list[str]:
    """Return notes for a task's scores: transfer, overlaps, truncated inputs."""
    task = records.task(name)
    if task is None:
        return []
    # Arms differ in what the limit cuts if they have other tokenizers.
    cuts: dict[str, list[str]] = defaultdict(list)
    shown = short_names(arm.label for arm in records.arms)
    for arm in records.arms:
        results = records.results_of(records.by_cell.get((arm.name, task.name), ()))
        for cut in dict.fromkeys(truncations(result.num_truncated) for result in results):
            cuts[cut].append(shown[arm.label])
    return words().task_notes(task, cuts, _MOST_NAMED).splitlines()
