"""Findings and costs of a study, as plain sentences and rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import fmean

from biphasic.amounts import amount, count, duration, scientific
from biphasic.analysis.records import ArmData, StudyRecords, TrainedSegment
from biphasic.analysis.scores.table import DatasetInfo, Scores
from biphasic.analysis.text import (
    OBJECTIVES,
    listing,
    objective_name,
    short,
    short_names,
    truncations,
)
from biphasic.facts import LOSS_UNITS, NATS
from biphasic.files import digest
from biphasic.records import FEW_HELDOUT, LedgerEntry, ResultRecord

_MOST_NAMED = 4  # maximum arms that a note names


def loss_sentences(records: StudyRecords, scores: Scores) -> list[str]:
    """Describe which finished arm ends with the lowest held-out loss, for each objective."""
    # If `scores` are of recipes, losses are means over pretraining runs.
    groups = scores.runs.replicates if scores.runs else ()
    recipe_of = {model.name: group[0].name for group in groups for model in group}
    labels = {**{arm.name: arm.label for arm in records.arms}, **scores.labels}
    shown = short_names(labels.values())
    sentences = []
    for objective in OBJECTIVES:
        by_recipe: dict[str, list[float]] = defaultdict(list)
        for arm in records.arms:
            if arm.record.is_final and objective in arm.final_heldout:
                by_recipe[recipe_of.get(arm.name, arm.name)].append(arm.final_heldout[objective])
        means = {name: fmean(losses) for name, losses in by_recipe.items()}
        if len(means) < 2:
            continue
        first, second, *_ = sorted(means, key=means.__getitem__)
        gap = means[second] - means[first]
        size = f"{gap:.3f}" if gap >= 0.0005 else "less than 0.001"
        ahead = f"{size} below" if gap else "level with"
        mean = f" over {scores.unit}s" if groups else ""
        sentences.append(
            f"{shown[labels[first]]} ends with the lowest held-out {objective_name(objective)} "
            f"loss{mean}: {means[first]:.3f} nats per token, {ahead} {shown[labels[second]]}."
        )
    return sentences


def heldout_note(records: StudyRecords) -> str:
    """Return a warning if held-out losses use very few documents; otherwise empty."""
    data = records.study.provenance.get("data")
    corpus = data.get("held-out corpus") if isinstance(data, dict) else None
    number = corpus.get("documents") if isinstance(corpus, dict) else None
    if not isinstance(number, int) or number >= FEW_HELDOUT:
        return ""
    return f"Held-out losses are of {count(number, 'document')} only, and say little of other text."


def cost_sentence(records: StudyRecords) -> str:
    """Describe the cost of training, fine-tuning and scoring, and the savings by sharing."""
    segments = trained_segments(records)
    tokens = sum(segment.tokens for segment, _ in segments)
    shared = sum(segment.tokens * (len(arms) - 1) for segment, arms in segments)
    parts = []
    if segments:
        flops = sum(segment.flops for segment, _ in segments)
        seconds = sum(segment.seconds for segment, _ in segments)
        parts.append(
            f"Pretraining read {amount(tokens)} tokens ({scientific(flops)} FLOPs) "
            f"in {duration(seconds)}"
            + (f"; states that arms share saved another {amount(shared)}" if shared else "")
            + "."
        )
    tuned = finetunings(records)
    if tuned:
        seconds = sum(result.seconds for result in tuned)
        parts.append(f"{count(len(tuned), 'fine-tuning')} took {duration(seconds)}.")
    scored = zero_shot_runs(records)
    if scored:
        seconds = sum(result.seconds for result in scored)
        parts.append(f"{count(len(scored), 'zero-shot run')} took {duration(seconds)}.")
    return " ".join(parts)


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
    if not by_step:
        return True, "No arm was trained, so there are no rows to compare."
    sentences = []
    agrees = True
    for step, groups in sorted(by_step.items()):
        num_seeds = len({seed for seed, _ in groups})
        arms = [arm for group in groups.values() for arm in group]
        all_arms = "Both trained arms" if len(arms) == 2 else f"All {len(arms)} trained arms"
        who = all_arms if len(by_step) == 1 else listing(arms, most=6)
        if len(groups) > num_seeds:
            agrees = False
            parts = [f"{listing(group)} ({rows[:12]})" for (_, rows), group in groups.items()]
            sentences.append(f"After {step:,} steps the arms had read different rows: "
                             f"{'; '.join(parts)}.")  # fmt: skip
        elif len(arms) == 1:
            [(_, rows)] = groups
            sentences.append(f"Only {arms[0]} trained for {step:,} steps (rows {rows[:12]}).")
        elif len(arms) == num_seeds:
            sentences.append(f"{who} have different data seeds ({step:,} steps).")
        else:
            others = " as the others of their data seed" if num_seeds > 1 else ""
            hashes = listing([f"{rows[:12]}…" for _, rows in groups])
            sentences.append(
                f"{who} read the same rows in the same order{others} ({step:,} steps, SHA-256 "
                f"{hashes})."
            )
    return agrees, " ".join(sentences)


def task_line(records: StudyRecords, scores: Scores, dataset: DatasetInfo) -> str:
    """Describe a task, or an average, in one line."""
    task = records.task(dataset.name)
    if task is None:
        number = len(shares := scores.shares(dataset).values())
        alike = "" if len({*shares}) == 1 else ", in which each task has the same weight"
        return f"mean of {number} datasets{alike}; each {scores.unit} is averaged over them first"
    sizes = {"train": task.num_train, "validation": task.num_validation, "test": task.num_test}
    there = {split: size for split, size in sizes.items() if size}
    numbers = " / ".join(f"{size:,}" for size in there.values())
    return f"{task.metric_title} · {numbers} {' / '.join(there)}"


def task_notes(records: StudyRecords, name: str) -> list[str]:
    """Return notes for a task's scores: transfer, overlaps, truncated inputs."""
    task, notes = records.task(name), []
    if task is None:
        return []
    if task.is_zero_shot:
        notes.append("Zero-shot: scored without fine-tuning.")
    if task.trained_on:
        notes.append(f"Fine-tuned on {short(task.trained_on)}.")
    for pair, number in task.overlaps.items():
        earlier, later = pair.split("/")
        size = getattr(task, f"num_{later}")
        notes.append(f"{number:,} of {size:,} {later} examples also occur in {earlier}.")
    if task.num_seen is not None:
        number = f"{task.num_seen:,} of {task.num_test:,}"
        notes.append(f"{number} test examples occur in the training corpus.")
    # Arms differ in what the limit cuts if they have other tokenizers.
    arms: dict[str, list[str]] = defaultdict(list)
    shown = short_names(arm.label for arm in records.arms)
    for arm in records.arms:
        results = records.results_of(records.by_cell.get((arm.name, task.name), ()))
        for cut in dict.fromkeys(truncations(result.num_truncated) for result in results):
            arms[cut].append(shown[arm.label])
    parts = [
        f"{cut} ({listing(of, most=_MOST_NAMED)})" if len(arms) > 1 else cut
        for cut, of in arms.items()
        if cut
    ]
    if parts:
        notes.append(f"Cut by the length limit: {'; '.join(parts)}.")
    return notes
