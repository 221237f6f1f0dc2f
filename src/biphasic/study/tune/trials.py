"""The trials of `biphasic study tune`: one for each objective or arm, and rate.

They are the arms of a study without tasks, so they run, stop and resume like other arms. The end
of the file has their plans and results as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

from biphasic.amounts import percent
from biphasic.amounts import rate as rate_text
from biphasic.analysis.figures.tuning import FLAT_NATS, TuneBy, TuneRecord
from biphasic.config import parse_config
from biphasic.errors import ConfigError
from biphasic.facts import LOSS_UNITS, only
from biphasic.objectives.lr import LearningRateConfig
from biphasic.objectives.phases import Phase, loss_units
from biphasic.store import STATE, Store
from biphasic.study import lines_of
from biphasic.study.plan.summary import summarise_plan
from biphasic.study.resolve import resolve
from biphasic.study.settings.arms import ArmConfig, merge_settings, recipe_name
from biphasic.study.settings.study import StudyConfig
from biphasic.study.settings.tuned_rates import (
    ArmRate,
    ObjectiveRate,
    TunedRate,
    is_of_last,
    why_not_tuned,
    with_first_peak,
)
from biphasic.study.study import Study
from biphasic.training.heldout import HELDOUT_MLM_PROBABILITY
from biphasic.training.recipe import Recipe, Seeds

_SUFFIX = "-tune"
_LONGEST_NAME = 80 - len(_SUFFIX)
_LONGEST_GROUP = 64
# Setting that trials leave out where they have a rate of their own, which has other faults.
_SKIP = "skip_steps"
_NO_MEASURE = "its {} objective has no held-out loss"
_NO_PAIRS = "it trains on all pairs; set `heldout_fraction` in the phase, such as 0.05"


@dataclass(frozen=True)
class RateGroup:
    """Arms that get one rate: those with the same first objective, or the replicates of one arm."""

    by: TuneBy  # Whether trials have the first objective alone, or all phases.
    name: str  # Short name: of an objective, such as `nano-mlm40`, or of the first arm.
    # Weight of each held-out loss in the comparison of trials, by objective.
    weights: Mapping[str, float]
    # The arms, in the study's order; trials have the settings of the first.
    arms: tuple[ArmConfig, ...]
    recipe: Recipe  # Recipe of the first arm, at the shared rate.

    @property
    def schedule(self) -> LearningRateConfig:
        """The schedule whose peak is tuned, as the study has it."""
        return self.recipe.placed_phases[0].schedule

    @property
    def measure(self) -> str:
        """Human-readable description of the loss that trials are compared by."""
        names = {"clm": "CLM", "mlm": f"MLM at {percent(HELDOUT_MLM_PROBABILITY)}"}
        reading = _deciding(self.recipe.phases, self.by).reading
        suffix = " loss" if reading is None else " loss of pairs"
        parts = [
            name if weight == 1 else f"{weight:.3g} x {name}"
            for objective, weight in self.weights.items()
            for name in (names.get(objective, f"{objective}{suffix}"),)
        ]
        return " + ".join(parts)

    @property
    def unit(self) -> str:
        """Unit of this loss."""
        own = loss_units(self.recipe.phases)
        return only({own.get(name, LOSS_UNITS.get(name, "")) for name in self.weights})

    def tuned(self, peak: float, *, trials: int) -> ArmRate | ObjectiveRate:
        """Return the entry of the study file for a rate."""
        if self.by == "objective":
            return ObjectiveRate.of(self.recipe, peak=peak, trials=trials)
        return ArmRate(arms=tuple(arm.name for arm in self.arms), peak=peak, trials=trials)


@dataclass(frozen=True)
class Tuning:
    """The plan of a tuning."""

    config: StudyConfig
    by: TuneBy
    share: float  # Length of a trial, as a share of the longest budget.
    budget: int  # Steps of the longest schedule to tune.
    groups: tuple[RateGroup, ...]  # Those of objectives or arms that get a rate.
    untuned: Mapping[str, str]  # Arms that keep their rate, with the reason.

    @cached_property
    def steps(self) -> int:
        """Optimizer steps of a trial; of the longest, if arms have different lengths."""
        return max(round(self.share * self.budget), 1)

    @property
    def name(self) -> str:
        """Name of the study of trials."""
        return f"{self.config.name}{_SUFFIX}"

    @property
    def later_schedules(self) -> tuple[str, ...]:
        """Tuned arms with a later phase that has its own schedule, which is not tuned."""
        return tuple(
            arm.name
            for group in self.groups
            for arm in group.arms
            if any(phase.learning_rate for phase in arm.phases[1:])
        )

    @property
    def kept_rates(self) -> tuple[TunedRate, ...]:
        """Tuned rates of the study that this tuning leaves as they are: of last schedules."""
        return tuple(rate for rate in self.config.tuned_rates if is_of_last(rate))


def plan_tuning(config: StudyConfig, share: float, *, by: TuneBy = "objective") -> Tuning:
    """Plan the tuning of a study; `share` is a trial's length, as in `Tuning`."""
    if not 0 < share <= 1:
        raise ConfigError(f"--share: expected a share in (0, 1] of the budget (got {share:g})")
    if len(config.name) > _LONGEST_NAME:
        raise ConfigError(
            f"study '{config.name}': the study of its trials is named NAME{_SUFFIX}, and names "
            f"have at most 80 characters; shorten this one to {_LONGEST_NAME}"
        )
    untuned: dict[str, str] = {}
    grouped: dict[str, tuple[Recipe, list[ArmConfig]]] = {}
    # Rates of an earlier tuning must not affect grouping or trials.
    before = config.model_copy(update={"tuned_rates": ()})
    for arm in config.arms:
        if reason := _why_not_tuned(arm, by):
            untuned[arm.name] = reason
            continue
        recipe = before.recipe_of(arm)
        shared = (
            ObjectiveRate.of(recipe, peak=1.0)
            if by == "objective"
            else recipe.model_copy(update={"seeds": Seeds(), _SKIP: ()})  # as of replicates
        )
        grouped.setdefault(repr(shared), (recipe, []))[1].append(arm)
    if not grouped:
        reasons = "; ".join(f"'{name}': {reason}" for name, reason in untuned.items())
        raise ConfigError(f"study '{config.name}': no arm has a rate to tune ({reasons})")
    tuned = [before.recipe_of(arm) for _, arms in grouped.values() for arm in arms]
    steps = [r.total_steps if by == "arm" else r.placed_phases[0].schedule_end for r in tuned]
    # Objectives may differ in options that a short name does not show.
    names = _distinct(_group_name(recipe, arms[0], by) for recipe, arms in grouped.values())
    groups = tuple(
        RateGroup(by, name, _deciding(recipe.phases, by).heldout_weights, tuple(arms), recipe)
        for name, (recipe, arms) in zip(names, grouped.values(), strict=True)
    )
    return Tuning(config, by, share, max(steps), groups, untuned)


def _why_not_tuned(arm: ArmConfig, by: TuneBy) -> str | None:
    reason = why_not_tuned(arm)
    if reason is not None:
        return reason
    deciding = _deciding(arm.phases, by)
    if deciding.heldout_weights:
        return None
    if deciding.reading is not None:
        return _NO_PAIRS
    reason = _NO_MEASURE.format("first" if by == "objective" else "last")
    return (
        reason if deciding.plugin is None else f"{reason}; declare `heldout_weights` in its class"
    )


def _deciding(phases: Sequence[Phase], by: TuneBy) -> Phase:
    """Return the phase whose objective decides between trials."""
    return phases[0 if by == "objective" else -1]


def _group_name(recipe: Recipe, arm: ArmConfig, by: TuneBy) -> str:
    if by != "objective":
        return arm.name[:_LONGEST_GROUP]
    # The name has only model, objective and optimizer, not the step.
    plain = recipe.model_copy(update={"phases": (bare_phase(recipe.phases[0], 1),)})
    name = recipe_name(plain).removesuffix("-1")[:_LONGEST_GROUP]
    optimizer = recipe.optimizer.short_name
    return name if optimizer == "adamw" else f"{name}-{optimizer}"


def _distinct(names: Iterable[str]) -> list[str]:
    """Return the names, with a number after each that is already in use."""
    distinct: list[str] = []
    for name in names:
        candidates = (name if number == 1 else f"{name}-{number}" for number in count(1))
        distinct.append(next(candidate for candidate in candidates if candidate not in distinct))
    return distinct


def bare_phase(phase: Phase, steps: int) -> Phase:
    """Return a phase with another length and without its own schedule."""
    return phase.model_copy(update={"steps": steps, "learning_rate": None})


def trial_schedule(tuning: Tuning, schedule: LearningRateConfig) -> LearningRateConfig:
    """Return a schedule of the study with warm-up and decay shortened to those of a trial."""
    # Warm-up and decay keep their shares: with the whole warm-up, a short trial might never reach
    # its rate.
    factor = tuning.steps / tuning.budget
    return LearningRateConfig(
        peak=schedule.peak,
        warmup_steps=round(factor * schedule.warmup_steps),
        decay_steps=round(factor * schedule.decay_steps),
    )


def _trial_phases(tuning: Tuning, group: RateGroup) -> tuple[Phase, ...]:
    """Return a trial's phases: the first objective alone, or all phases in proportion."""
    phases = group.recipe.phases
    if group.by == "objective":
        return (bare_phase(phases[0], tuning.steps),)
    shortened: list[Phase] = []
    start = end = 0
    for phase in phases:
        end += phase.steps
        # Ends are rounded, not lengths, whose errors would add up over many phases.
        steps = max(round(tuning.steps / tuning.budget * end) - start, 1)
        own = phase.learning_rate
        schedule = None if own is None else trial_schedule(tuning, own)
        shortened.append(phase.model_copy(update={"steps": steps, "learning_rate": schedule}))
        start += steps
    return tuple(shortened)


def trial_study(tuning: Tuning, rates: Mapping[str, Sequence[float]]) -> StudyConfig:
    """Return the study whose arms are the trials."""
    config = tuning.config
    arms = [
        _trial_arm(tuning, group, rate) for group in tuning.groups for rate in rates[group.name]
    ]
    raw = {
        "name": tuning.name,
        "title": f"Peak rates for {config.name}",
        "description": f"Trials of {tuning.steps:,} steps at several peak rates.",
        "corpus": config.corpus,
        "recipe": config.recipe.model_copy(update={_SKIP: ()}),
        "arms": arms,
        "checkpoint_every": config.checkpoint_every,
        # Trials are compared at their ends; evaluations between would only take time.
        "heldout_every": 0,
        "compute": config.compute,
    }
    try:
        return parse_config(StudyConfig, raw, where="tune")
    except ConfigError as error:
        raise ConfigError(
            f"{error} (trials have {tuning.steps:,} steps; give a larger --share)"
        ) from None


def trial_name(group: RateGroup, rate: float) -> str:
    """Return the name of the trial of a group at a rate."""
    return f"{group.name}-lr{rate_digits(rate)}"


def rate_digits(rate: float) -> str:
    """Return a rate as the names of trials have it."""
    return f"{rate:.6g}"


def _trial_arm(tuning: Tuning, group: RateGroup, rate: float) -> ArmConfig:
    recipe = group.recipe.model_copy(update={"phases": _trial_phases(tuning, group)})
    schedule = trial_schedule(tuning, recipe.learning_rate)
    recipe = with_first_peak(recipe.model_copy(update={"learning_rate": schedule}), rate)
    own = {name: value for name, value in group.arms[0].recipe.items() if name != _SKIP}
    return ArmConfig(
        name=trial_name(group, rate),
        label=f"{group.name}, peak {rate_text(rate)}",
        group=group.name,
        recipe=merge_settings(own, {"learning_rate": recipe.learning_rate.model_dump()}),
        phases=recipe.phases,
    )


_IN_TRIALS = {"learning_rate", "seeds"}  # settings of which trials have their own


def plan_lines(tuning: Tuning, rates: Mapping[str, Sequence[float]], root: Path) -> list[str]:
    """Return the lines that describe the trials to run in a root."""
    plan = resolve(Study(trial_study(tuning, rates), root), missing="placeholder").plan
    return lines_of(
        "tune",
        record=None,
        tuning=tuning,
        num_trials=len(plan.arms),
        schedule=trial_schedule(tuning, tuning.groups[0].schedule),
        cost=summarise_plan(plan),
        rates=rates,
        others=differing_arms,
        untuned=_by_reason(tuning.untuned),
        num_done=sum(Store(plan.store).has(STATE, arm.state) for arm in plan.arms),
    )


def result_lines(record: TuneRecord) -> list[str]:
    """Return the lines that describe the trials and the chosen rates."""
    return lines_of("tune", record=record, flat=FLAT_NATS, untuned=_by_reason(record.untuned))


def _by_reason(untuned: Mapping[str, str]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for name, reason in untuned.items():
        reasons.setdefault(reason, []).append(name)
    return reasons


def differing_arms(group: RateGroup) -> list[str]:
    """Return the arms whose recipe differs from the trials' in other settings than the schedule."""
    first = group.arms[0]
    return [arm.name for arm in group.arms if _matters(arm) != _matters(first)]


def _matters(arm: ArmConfig) -> tuple[dict[str, object], Phase]:
    kept = {name: value for name, value in arm.recipe.items() if name not in _IN_TRIALS}
    return kept, bare_phase(arm.phases[0], 1)
