"""Results as reproducible files, and as a table for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from biphasic.amounts import count, percent
from biphasic.analysis.estimate import METHODS, estimate, expected_coverage
from biphasic.analysis.records import StudyRecords
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.scores.table import AT_END
from biphasic.analysis.statistics.doubts import doubt_notes
from biphasic.analysis.text import OBJECTIVES, csv_text, objective_name, plain, points_cell
from biphasic.records import PRETRAINING

ZERO_SHOT_NOTE = "Zero-shot tasks have one run, nothing random in it, and so no interval."
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


def seeds_note(records: StudyRecords) -> str:
    """Describe the number of seeds, and how the intervals were computed."""
    tasks, convention = {task.name: task for task in records.tasks}, records.study.convention
    cells = study_scores(records).cells.items()
    known = [(tasks[task], score) for (_, task), score in cells if task in tasks]
    tuned = [score for task, score in known if not task.is_zero_shot]
    numbers = sorted({score.estimate.num_seeds for score in tuned if score.estimate})
    if not numbers:
        return "No fine-tuning has finished yet." if tuned else ZERO_SHOT_NOTE
    seeds = count(numbers[0], "seed")
    if len(numbers) > 1:
        seeds = f"{numbers[0]} to {count(numbers[-1], 'seed')}"
    how = METHODS[convention]
    if convention == "paper":
        how += ", as in arXiv:2507.00994"
        if numbers[0] > 1:
            covered = expected_coverage(numbers[0], convention="paper")
            how += f"; with {numbers[0]} seeds it covers about {percent(round(covered, 2))}"
    note = f"{seeds} per cell; convention '{convention}' ({how})."
    if numbers[0] < 2:
        note += " One seed gives no interval."
    if any(not score.is_complete for _, score in known):
        note += " †: runs are missing or diverged; the number is provisional."
    return f"{note} {ZERO_SHOT_NOTE}" if any(t.is_zero_shot for t in records.tasks) else note


def lowest_losses(records: StudyRecords) -> dict[str, float]:
    """Return the lowest held-out loss of any finished arm, for each objective with losses."""
    known = {name: [a for a in records.arms if name in a.final_heldout] for name in OBJECTIVES}
    return {  # infinite if only intermediate arms have one
        name: min((a.final_heldout[name] for a in arms if a.record.is_final), default=math.inf)
        for name, arms in known.items()
        if arms
    }
