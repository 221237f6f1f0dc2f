"""Human-readable plans."""

from __future__ import annotations

from collections.abc import Iterator

from biphasic.study.plan.cost import Cost
from biphasic.study.plan.plan import Plan
from biphasic.study.plan.summary import PlanSummary
from biphasic.study.spec.naming import short_number

_NOT_KNOWN = "not known here"


def plan_lines(
    summary: PlanSummary, plan: Plan, *, rate: float, example_tokens: int, most: int = 60
) -> Iterator[str]:
    """Yield the lines that describe a plan.

    `rate` is the assumed speed of a device, in FLOP/s. At most `most` arms are listed.
    """
    between = summary.num_checkpoints - summary.num_final
    yield (
        f"{summary.name}: {_count(len(plan.arms), 'arm')}, "
        f"{_count(summary.num_final, 'final model')} + {between:,} intermediate = "
        f"{_count(summary.num_checkpoints, 'checkpoint')} to evaluate"
    )
    for note in summary.assumed:
        yield f"  assumed  {note}"
    for note in summary.notes:
        yield f"  note     {note}"
    yield from _arm_lines(plan, most)
    yield ""
    yield from _training_lines(summary)
    yield from _finetuning_lines(summary)
    yield from _resource_lines(summary, rate=rate, example_tokens=example_tokens)
    done = summary.done
    if not done.states and not done.results:
        yield "Done         nothing yet"
        return
    yield (
        f"Done         {done.states:,} of {summary.num_states:,} states, {done.steps:,} of "
        f"{summary.shared.steps:,} steps, {done.results:,} of {summary.num_evaluations:,} results"
    )


def _arm_lines(plan: Plan, most: int) -> Iterator[str]:
    new: dict[str, int] = {}
    for segment in plan.segments:
        new[segment.arm] = new.get(segment.arm, 0) + segment.steps
    stops: dict[str, list[int]] = {}
    for point in plan.points:
        if not point.is_final:
            stops.setdefault(point.arm.name, []).append(point.step)
    width = max(len(arm.config.name) for arm in plan.arms)
    for arm in plan.arms[:most]:
        name, total = arm.config.name, arm.lineage.recipe.total_steps
        shared = total - new.get(name, 0)
        line = f"  {name:{width}}  {total:>8,} steps, {new.get(name, 0):>8,} of them new"
        if shared:
            line += f", after step {shared:,}"
        if name in stops:
            line += f"; also evaluated at {', '.join(map(short_number, stops[name]))}"
        if placed := arm.lineage.recipe.placed_phases:
            line += f"; peak {placed[0].schedule.peak:g}"
        yield line
    if len(plan.arms) > most:
        yield f"  and {len(plan.arms) - most:,} more"


def _training_lines(summary: PlanSummary) -> Iterator[str]:
    unnamed = "no group" if len(summary.groups) > 1 else "all"
    rows = [(group.name or unnamed, group.alone, group.new) for group in summary.groups]
    if len(rows) > 1:
        rows.append(("all", summary.alone, summary.shared))
    width = max(8, *(len(name) for name, _, _ in rows))
    yield f"{'Training':{width + 2}} {'each arm alone':>42}  {'with sharing':>42}"
    for name, alone, shared in rows:
        yield f"  {name:<{width}} {_cost(alone)}  {_cost(shared)}"
    saved = 1 - summary.shared.steps / summary.alone.steps if summary.alone.steps else 0
    yield (
        f"  {_count(summary.num_segments, 'segment')}, "
        f"{_count(summary.num_states, 'state')}; sharing saves {100 * saved:.0f} % of the steps"
    )


def _cost(cost: Cost) -> str:
    flops = _NOT_KNOWN if cost.flops is None else f"{cost.flops:.2e} FLOPs"
    return f"{cost.steps:>9,} steps {_tokens(cost.tokens):>6} tokens {flops:>14}"


def _tokens(number: int) -> str:
    unit, scale = ("B", 1e9) if number >= 1e9 else ("M", 1e6)
    return (
        f"{number / scale:,.1f}{unit}" if number < 100 * scale else f"{number / scale:,.0f}{unit}"
    )


def _finetuning_lines(summary: PlanSummary) -> Iterator[str]:
    if not summary.tasks:
        yield "Fine-tuning: no tasks"
        return
    yield (
        f"Fine-tuning  {_count(summary.num_trainings, 'training')}, "
        f"{_count(summary.num_evaluations, 'evaluation')}"
    )
    for task in summary.tasks:
        on = f", after training on {task.trained_on}" if task.trained_on != task.name else ""
        yield f"  {task.name:<12} {task.kind}  {task.num_runs:>7,} runs{on}"
    if summary.num_reused > 0:
        yield f"  {summary.num_reused:,} evaluations reuse a training of another task"


def _resource_lines(summary: PlanSummary, *, rate: float, example_tokens: int) -> Iterator[str]:
    yield f"Device-hours at {rate:.3g} FLOP/s per device (--rate)"
    tokens = f"fine-tuning, at {example_tokens} tokens an example; scoring is not counted"
    rows = (
        (summary.shared.flops, "training"),
        (summary.alone.flops, "training without sharing"),
        (summary.finetuning_flops, tokens),
    )
    for flops, what in rows:
        hours = summary.hours(flops, rate=rate)
        yield f"  {_NOT_KNOWN if hours is None else _hours(hours):>10}  {what}"
    size = summary.state_bytes
    yield f"Disk         {_NOT_KNOWN if size is None else _bytes(size)} for the states"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _hours(hours: float) -> str:
    if hours < 0.01:
        return "< 0.01 h"
    return f"{hours:,.0f} h" if hours >= 10 else f"{hours:.2g} h"


def _bytes(size: int) -> str:
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:,} bytes"
