"""Human-readable plans and results of tuning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from biphasic.amounts import amount, percent, rate
from biphasic.analysis.text import listing
from biphasic.analysis.tune_record import FLAT_NATS, CurveRecord, TuneBy, TuneRecord
from biphasic.objectives.phases import Phase
from biphasic.store import is_trained
from biphasic.study.plan.preview import preview_study
from biphasic.study.plan.summary import summarise_plan
from biphasic.study.spec.arms import ArmConfig
from biphasic.study.study import Study
from biphasic.study.tune.trials import RateGroup, Tuning, bare_phase, trial_schedule, trial_study

_MOST = 4  # names in a list
_IN_TRIALS = {"learning_rate", "seeds"}  # settings of which trials have their own


def plan_lines(tuning: Tuning, rates: Mapping[str, Sequence[float]], root: Path) -> Iterator[str]:
    """Yield the lines that describe the trials to run in a root."""
    plan = preview_study(Study(trial_study(tuning, rates), root))
    summary = summarise_plan(plan)
    schedule = trial_schedule(tuning, tuning.groups[0].schedule)
    yield (
        f"{tuning.name}: {len(plan.arms):,} trials of {tuning.steps:,} steps "
        f"({percent(tuning.share)} of {tuning.budget:,}), {schedule.warmup_steps:,} of them "
        f"warm-up and {schedule.decay_steps:,} decay"
    )
    for note in summary.assumed:
        yield f"  assumed  {note}"
    for group in tuning.groups:
        tried = ", ".join(map(rate, rates[group.name]))
        yield f"  {group.name}: {tried}; compared by held-out {group.measure}"
        yield f"    for {tuned_arms(tuning.by, [arm.name for arm in group.arms])}"
        if others := differing_arms(group):
            first = group.arms[0].name
            yield (
                f"    trials have the settings of '{first}'; other settings than rate, schedule "
                f"and seeds differ in {listing(others, most=_MOST)}"
            )
    yield from untuned_lines(tuning.untuned, tuning.later_schedules)
    cost = summary.shared
    flops = "" if cost.flops is None else f", {cost.flops:.2e} FLOPs"
    yield f"in all {cost.steps:,} steps, {amount(cost.tokens)} tokens{flops}"
    done = sum(is_trained(plan.store, arm.state) for arm in plan.arms)
    yield f"done   {done:,} of {len(plan.arms):,} trials"


def result_lines(record: TuneRecord) -> Iterator[str]:
    """Yield the lines that describe the trials and the chosen rates."""
    yield (
        f"{record.study}: trials of {record.steps:,} steps ({percent(record.share)} of "
        f"{record.budget:,}), held-out losses"
    )
    for curve in record.curves:
        yield f"  {curve.name}, by {curve.measure}{curve.unit and f', in {curve.unit}'}"
        if record.by != "objective" and len(curve.arms) > 1:
            yield f"    for {tuned_arms(record.by, curve.arms)}"
        for trial in curve.trials:
            mark = "  <- chosen" if trial.peak == curve.choice else ""
            loss = f"{trial.loss:.4f}" if trial.loss is not None else f"diverged: {trial.lost}"
            yield f"    {rate(trial.peak):<10} {loss}{mark}"
        yield from (f"    {remark}" for remark in remarks(curve))
    yield from untuned_lines(record.untuned, record.later_schedules)


def remarks(curve: CurveRecord) -> Iterator[str]:
    """Yield remarks about a chosen rate."""
    if curve.equals:
        rates = ", ".join(map(rate, curve.equals))
        yield f"flat: {rates} within {FLAT_NATS:g} of its loss, so these rates are about as good"
    if curve.edge:
        beyond = "lower" if curve.edge == "lowest" else "higher"
        yield (
            f"the chosen rate is the {curve.edge} one tried, so the best may be {beyond}; "
            f"try {beyond} --rates"
        )


def untuned_lines(untuned: Mapping[str, str], later: Sequence[str]) -> Iterator[str]:
    """Yield the lines that list the rates that are not tuned, with reasons."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in untuned.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        yield f"  not tuned: {listing(names, most=_MOST)} ({reason})"
    if later:
        arms = listing(later, most=_MOST)
        yield f"  not tuned: later phases that set learning_rate themselves, in {arms}"


def tuned_arms(by: TuneBy, names: Sequence[str]) -> str:
    """Return the names of arms with one rate, and the seeds of replicates that trials have."""
    seeds = (
        "" if by == "objective" or len(names) == 1 else f"; trials have the seeds of '{names[0]}'"
    )
    return listing(names, most=_MOST) + seeds


def differing_arms(group: RateGroup) -> list[str]:
    """Return the arms whose recipe differs from the trials' in other settings than the schedule."""
    first = group.arms[0]
    return [arm.name for arm in group.arms if _matters(arm) != _matters(first)]


def _matters(arm: ArmConfig) -> tuple[dict[str, object], Phase]:
    kept = {name: value for name, value in arm.recipe.items() if name not in _IN_TRIALS}
    return kept, bare_phase(arm.phases[0], 1)
