"""What a study found and cost, in plain sentences and rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from biphasic.analysis.load import ArmData, Segment, StudyRecords
from biphasic.analysis.stats import Cell, Estimate, overlap, ranking
from biphasic.analysis.tables import best_arms, lowest_loss
from biphasic.analysis.text import (
    OBJECTIVES,
    amount,
    count,
    duration,
    listing,
    metric_name,
    objective_name,
    points,
    scientific,
    score_cell,
    short,
    truncations,
)
from biphasic.records import ZERO_SHOT, ResultRecord, TaskRecord

Table = Mapping[tuple[str, str], Cell]


@dataclass(frozen=True)
class Verdict:
    """The outcome of one task in words."""

    winner: str
    score: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class CostRow:
    """What one phase of one arm cost; `phase` is None in an arm's total."""

    arm: str
    phase: int | None
    objective: str
    steps: int
    documents: int
    tokens: int
    supervised_tokens: int
    flops: float


@dataclass(frozen=True)
class SegmentRow:
    """A segment with the arms that use it."""

    segment: Segment
    arms: tuple[str, ...]


def verdict(records: StudyRecords, table: Table, task: TaskRecord) -> Verdict:
    """Say which arm is best on a task, by how much, and whether intervals overlap."""
    labels = {arm.name: short(arm.label) for arm in records.arms}
    order = ranking(table, task.name)
    if not order:
        return Verdict("No result", "–", ("No fine-tuning has finished on this task.",))
    best = best_arms(order)
    (name, first), rest = order[0], [entry for entry in order if entry[0] not in best]
    winner = listing([labels[arm] for arm, _ in order if arm in best])
    sentences = []
    if len(best) > 1:
        sentences.append(f"{winner} share the highest mean.")
    if rest:
        second, other = rest[0]
        sentences.append(
            f"{_ahead(first, other)} ahead of {labels[second]}; {_overlap(first, other)}."
        )
    sentences += _against_floor(records, dict(order), name, is_second=_floor_name(rest))
    return Verdict(winner, score_cell(first), tuple(sentences))


def _floor_name(rest: list[tuple[str, Estimate]]) -> str:
    return rest[0][0] if rest else ""


def _ahead(first: Estimate, second: Estimate) -> str:
    return f"{points(first.mean - second.mean)} points"


def _overlap(first: Estimate, second: Estimate) -> str:
    return {
        True: "their 95 % intervals overlap",
        False: "their 95 % intervals do not overlap",
        None: "without two seeds each there is no interval to compare",
    }[overlap(first, second)]


def _against_floor(
    records: StudyRecords, estimates: Mapping[str, Estimate], best: str, *, is_second: str
) -> list[str]:
    """Compare with the untrained encoder, unless the sentence before has done so."""
    floors = [arm.name for arm in records.arms if arm.is_untrained and arm.name in estimates]
    if not floors:
        return []
    floor = estimates[floors[0]]
    trained = [a.name for a in records.arms if not a.is_untrained and a.name in estimates]
    clear = [
        name for name in trained
        if overlap(estimates[name], floor) is False and estimates[name].mean > floor.mean
    ]  # fmt: skip
    sentences = []
    if best != floors[0] and is_second != floors[0]:
        gap = _ahead(estimates[best], floor)
        sentences.append(f"{gap} above the untrained encoder; {_overlap(estimates[best], floor)}.")
    if trained and floor.half_width is not None:
        sentences.append(
            f"{len(clear)} of {count(len(trained), 'trained arm')} "
            f"{'is' if len(clear) == 1 else 'are'} above the untrained encoder "
            "without overlap of intervals."
        )
    return sentences


def headline(records: StudyRecords, table: Table) -> str:
    """Say which arms score highest on which tasks."""
    wins: dict[str, list[str]] = defaultdict(list)
    labels = {arm.name: short(arm.label) for arm in records.arms}
    for task in records.tasks:
        for name in best_arms(ranking(table, task.name)):
            wins[name].append(f"“{short(task.title)}”")
    return " ".join(
        f"{labels[arm.name]} scores highest on {_all_or(wins[arm.name], len(records.tasks))}."
        for arm in records.arms
        if arm.name in wins
    )


def loss_sentences(records: StudyRecords) -> list[str]:
    """Say which arm ends with the lowest held-out loss, for each objective."""
    sentences = [_lowest_sentence(records, objective) for objective in OBJECTIVES]
    return [sentence for sentence in sentences if sentence]


def _all_or(titles: list[str], num_tasks: int) -> str:
    return f"all {num_tasks} tasks" if len(titles) == num_tasks > 1 else listing(titles)


def _lowest_sentence(records: StudyRecords, objective: str) -> str:
    lowest = lowest_loss(records, objective)
    losses = sorted(
        (arm.final_heldout[objective], index, short(arm.label))
        for index, arm in enumerate(records.arms)
        if objective in arm.final_heldout
    )
    if lowest is None or len(losses) < 2:
        return ""
    (best, _, label), (second, _, next_label) = losses[:2]
    gap = f"{second - best:.3f} below" if second > best else "level with"
    return (
        f"{label} ends with the lowest held-out {objective_name(objective)} loss: {best:.3f} "
        f"nats per token, {gap} {next_label}."
    )


def cost_sentence(records: StudyRecords) -> str:
    """Say what training and fine-tuning took, and what sharing saved."""
    rows = segment_rows(records)
    tokens = sum(row.segment.tokens for row in rows)
    shared = sum(row.segment.tokens * (len(row.arms) - 1) for row in rows)
    parts = []
    if rows:
        flops = sum(row.segment.flops for row in rows)
        seconds = sum(row.segment.seconds for row in rows)
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
    return " ".join(parts)


def finetunings(records: StudyRecords) -> list[ResultRecord]:
    """Return one result for each fine-tuning.

    Several tasks may be scored after one, and zero-shot ones after none.
    """
    trained: dict[tuple[str, str, float, int], ResultRecord] = {}
    for outcome in records.outcomes:
        result = outcome.result
        if result is not None and result.kind != ZERO_SHOT:
            training = result.trained_on or result.task
            key = (result.state, training, result.learning_rate, result.seed)
            trained.setdefault(key, result)
    return list(trained.values())


def caveats(records: StudyRecords) -> list[str]:
    """Say what the intervals do not cover."""
    found = []
    if any(not arm.is_untrained for arm in records.arms):
        found.append(
            "Each arm was pretrained once: intervals cover fine-tuning seeds, not the luck of "
            "pretraining. Intervals that overlap do not prove arms equal."
        )
    return found


def cost_rows(records: StudyRecords) -> list[CostRow]:
    """List each trained arm's phases, then its total where it has several."""
    rows = []
    for arm in records.arms:
        phases = [_cost_row(arm, index) for index in range(len(arm.ledger))]
        rows += phases
        if len(phases) > 1:
            rows.append(
                CostRow(
                    arm=arm.name,
                    phase=None,
                    objective="all",
                    steps=sum(row.steps for row in phases),
                    documents=sum(row.documents for row in phases),
                    tokens=sum(row.tokens for row in phases),
                    supervised_tokens=sum(row.supervised_tokens for row in phases),
                    flops=sum(row.flops for row in phases),
                )
            )
    return rows


def _cost_row(arm: ArmData, index: int) -> CostRow:
    entry = arm.ledger[index]
    return CostRow(
        arm=arm.name,
        phase=entry.phase,
        objective=objective_name(entry.objective),
        steps=entry.steps,
        documents=entry.documents,
        tokens=entry.tokens,
        supervised_tokens=entry.supervised_tokens,
        flops=entry.flops,
    )


def segment_rows(records: StudyRecords) -> list[SegmentRow]:
    """List every training segment once, with the arms that build on it."""
    segments: dict[str, Segment] = {}
    users: dict[str, list[str]] = defaultdict(list)
    for arm in records.arms:
        for segment in arm.segments:
            segments[segment.state] = segment
            users[segment.state].append(short(arm.label))
    return [SegmentRow(segment, tuple(users[state])) for state, segment in segments.items()]


def rows_statement(records: StudyRecords) -> tuple[bool, str]:
    """Say whether all arms read the same rows: (they agree, the sentence).

    Hashes count all rows up to a state's step, so only arms of equal length can be compared.
    """
    by_step: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for arm in records.arms:
        if arm.state is not None and arm.segments:
            by_step[arm.state.step][arm.state.rows_sha256].append(short(arm.label))
    if not by_step:
        return True, "No arm was trained, so there are no rows to compare."
    sentences = []
    agrees = True
    for step, hashes in sorted(by_step.items()):
        if len(hashes) > 1:
            agrees = False
            groups = [f"{listing(arms)} ({rows[:12]})" for rows, arms in hashes.items()]
            sentences.append(f"After {step} steps the arms had read different rows: "
                             f"{'; '.join(groups)}.")  # fmt: skip
            continue
        ((rows, arms),) = hashes.items()
        who = f"All {len(arms)} trained arms" if len(by_step) == 1 else listing(arms)
        if len(arms) == 1:
            sentences.append(f"{arms[0]} alone trained for {step} steps (rows {rows[:12]}).")
        else:
            sentences.append(
                f"{who} read the same rows in the same order ({step} steps, SHA-256 {rows[:12]}…)."
            )
    return agrees, " ".join(sentences)


def task_line(task: TaskRecord) -> str:
    """Describe a task in one line."""
    sizes = {"train": task.num_train, "validation": task.num_validation, "test": task.num_test}
    there = {split: size for split, size in sizes.items() if size}
    numbers = " / ".join(f"{size:,}" for size in there.values()).replace(",", "\u202f")
    return f"{metric_name(task.metric)} · {numbers} {' / '.join(there)}"


def task_notes(records: StudyRecords, task: TaskRecord) -> list[str]:
    """Say what a reader of a task's scores must know: transfer, overlaps, inputs that were cut."""
    notes = []
    if task.is_zero_shot:
        notes.append("Zero-shot: mean-pooled states as they are, no fine-tuning.")
    if task.trained_on:
        notes.append(f"Fine-tuned on {short(task.trained_on)}.")
    for pair, number in task.overlaps.items():
        earlier, later = pair.split("/")
        size = getattr(task, f"num_{later}")
        examples = f"{number:,} of {size:,} {later} examples".replace(",", "\u202f")
        notes.append(f"{examples} also stand in {earlier}.")
    results = (o.result for o in records.outcomes if o.run.task == task.name and o.result)
    if cut := truncations(next((result.num_truncated for result in results), {})):
        notes.append(f"Cut by the length limit: {cut}.")
    return notes
