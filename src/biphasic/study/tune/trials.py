"""The trials of `biphasic study tune`: one for each model, first objective, optimizer and rate.

They are the arms of a study without tasks, so they run, stop and resume like other arms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count

from biphasic.config import parse_config
from biphasic.errors import ConfigError
from biphasic.objectives.alternate import Alternate
from biphasic.objectives.clm import Clm
from biphasic.objectives.mix import Mix
from biphasic.objectives.mlm import Mlm
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.phases import Phase
from biphasic.study.spec.arms import ArmConfig, merge_settings
from biphasic.study.spec.naming import recipe_name
from biphasic.study.spec.study import StudyConfig
from biphasic.study.spec.tuned_rates import TunedRate, first_objective, tuned_by, why_not_tuned
from biphasic.training.recipe import Recipe
from biphasic.training.records.heldout import HELDOUT_MLM_PROBABILITY

_SUFFIX = "-tune"
_LONGEST_NAME = 80 - len(_SUFFIX)
_SKIP = "skip_steps"
"""Setting that trials leave out: another rate has other faults, and a trial ends earlier."""
_NO_MEASURE = "held-out losses are of CLM and MLM, and its first objective is neither"


@dataclass(frozen=True)
class Beginning:
    """A model, a first objective and an optimizer, with the arms that begin with them.

    Attributes:
        name: Short name such as `nano-mlm40`.
        weights: Weight of each held-out loss in the comparison of trials, by objective.
        arms: The arms, in the study's order; trials have the settings of the first.
        recipe: Recipe of the first arm, at the shared rate.
    """

    name: str
    weights: Mapping[str, float]
    arms: tuple[ArmConfig, ...]
    recipe: Recipe

    @property
    def measure(self) -> str:
        """Human-readable description of the loss that trials are compared by."""
        names = {"clm": "CLM", "mlm": f"MLM at {100 * HELDOUT_MLM_PROBABILITY:g} %"}
        parts = [
            names[objective] if weight == 1 else f"{weight:.3g} x {names[objective]}"
            for objective, weight in self.weights.items()
        ]
        return " + ".join(parts)

    def tuned(self, peak: float) -> TunedRate:
        """Return the entry of the study file for a rate."""
        return TunedRate.model_validate(
            {
                "model": self.recipe.model,
                "phase": first_objective(self.recipe),
                "optimizer": self.recipe.optimizer.name,
                "peak": peak,
            }
        )


@dataclass(frozen=True)
class Tuning:
    """The plan of a tuning.

    Attributes:
        share: Length of a trial, as a share of the longest budget.
        budget: Steps of the longest schedule to tune.
        beginnings: Models and objectives that get a rate.
        untuned: Arms that keep their rate, with the reason.
    """

    config: StudyConfig
    share: float
    budget: int
    beginnings: tuple[Beginning, ...]
    untuned: Mapping[str, str]

    @cached_property
    def steps(self) -> int:
        """Optimizer steps of a trial."""
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
            for beginning in self.beginnings
            for arm in beginning.arms
            if any(phase.learning_rate for phase in arm.phases[1:])
        )


def plan_tuning(config: StudyConfig, share: float) -> Tuning:
    """Plan the tuning of a study; `share` is a trial's length, as in `Tuning`.

    Raises:
        ConfigError: The share is invalid, or no arm can be tuned.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"--share: expected a share in (0, 1] of the budget (got {share:g})")
    if len(config.name) > _LONGEST_NAME:
        raise ConfigError(
            f"study '{config.name}': the study of its trials is named NAME{_SUFFIX}, and names "
            f"have at most 80 characters; shorten this one to {_LONGEST_NAME}"
        )
    untuned: dict[str, str] = {}
    groups: list[tuple[Recipe, Mapping[str, float], list[ArmConfig]]] = []
    budget = 0
    for arm in config.arms:
        # At the shared rate: rates of an earlier tuning must not affect the grouping.
        recipe = arm.recipe_from(config.recipe)
        reason = why_not_tuned(arm)
        weights = {} if reason or not recipe.phases else heldout_weights(recipe.phases[0])
        if reason or not weights:
            untuned[arm.name] = reason or _NO_MEASURE
            continue
        budget = max(budget, recipe.placed_phases[0].schedule_end)
        for known, _, arms in groups:
            if tuned_by(known) == tuned_by(recipe):
                arms.append(arm)
                break
        else:
            groups.append((recipe, weights, [arm]))
    if not groups:
        reasons = "; ".join(f"'{name}': {reason}" for name, reason in untuned.items())
        raise ConfigError(f"study '{config.name}': no arm has a rate to tune ({reasons})")
    names = _names([recipe for recipe, _, _ in groups])
    beginnings = tuple(
        Beginning(name, weights, tuple(arms), recipe)
        for name, (recipe, weights, arms) in zip(names, groups, strict=True)
    )
    return Tuning(config, share, budget, beginnings, untuned)


def heldout_weights(objective: ObjectiveConfig) -> dict[str, float]:
    """Return the weights of the held-out losses that measure an objective; empty if none does.

    MLM at any rate is measured at the masking rate of held-out losses. Mixtures weight their
    objectives by rows, alternations by turns.
    """
    if isinstance(objective, Clm | Mlm):
        return {objective.objective: 1.0}
    if isinstance(objective, Mix):
        parts = list(zip(objective.shares, objective.objectives, strict=True))
    elif isinstance(objective, Alternate):
        turns = objective.objectives
        parts = [(1 / len(turns), turn) for turn in turns]
    else:
        return {}
    weights: dict[str, float] = {}
    for share, part in parts:
        part_weights = heldout_weights(part)
        if not part_weights:
            return {}
        for name, weight in part_weights.items():
            weights[name] = weights.get(name, 0.0) + share * weight
    return {name: weights[name] for name in sorted(weights)}


def _names(recipes: Sequence[Recipe]) -> list[str]:
    names: list[str] = []
    for recipe in recipes:
        # The name has only model, objective and optimizer, not the step.
        plain = recipe.model_copy(update={"phases": (bare_phase(recipe.phases[0], 1),)})
        name = recipe_name(plain).removesuffix("-1")[:50]
        if recipe.optimizer.name != "adamw":
            name += f"-{recipe.optimizer.name}"
        candidates = (name if number == 1 else f"{name}-{number}" for number in count(1))
        names.append(next(candidate for candidate in candidates if candidate not in names))
    return names


def bare_phase(phase: Phase, steps: int) -> Phase:
    """Return a phase with another length and without its own schedule."""
    return phase.model_copy(update={"steps": steps, "learning_rate": None})


def trial_schedule(tuning: Tuning, recipe: Recipe) -> tuple[int, int]:
    """Return the warm-up and decay steps of a trial, scaled down from the study's schedule."""
    schedule = recipe.learning_rate
    factor = tuning.steps / tuning.budget
    return round(factor * schedule.warmup_steps), round(factor * schedule.decay_steps)


def trial_study(tuning: Tuning, rates: Mapping[str, Sequence[float]]) -> StudyConfig:
    """Return the study whose arms are the trials.

    Raises:
        ConfigError: A trial is too short for its schedule or phase.
    """
    config = tuning.config
    arms = [
        _trial_arm(tuning, beginning, rate)
        for beginning in tuning.beginnings
        for rate in rates[beginning.name]
    ]
    raw = {
        "name": tuning.name,
        "title": f"Peak rates for {config.name}",
        "description": f"Trials of {tuning.steps:,} steps at several peak rates.",
        "corpus": config.corpus,
        "recipe": config.recipe.model_copy(update={_SKIP: ()}),
        "arms": arms,
        "checkpoint_every": config.checkpoint_every,
        "heldout_every": 0,
        "compute": config.compute,
    }
    try:
        return parse_config(StudyConfig, raw, where="tune")
    except ConfigError as error:
        raise ConfigError(
            f"{error} (trials have {tuning.steps:,} steps; give a larger --share)"
        ) from None


def trial_name(beginning: Beginning, rate: float) -> str:
    """Return the name of the trial of a beginning at a rate."""
    return f"{beginning.name}-lr{rate:.6g}"


def _trial_arm(tuning: Tuning, beginning: Beginning, rate: float) -> ArmConfig:
    warmup, decay = trial_schedule(tuning, beginning.recipe)
    schedule = {"peak": rate, "warmup_steps": warmup, "decay_steps": decay}
    own = beginning.arms[0].recipe
    return ArmConfig(
        name=trial_name(beginning, rate),
        label=f"{beginning.name}, peak {rate:g}",
        group=beginning.name,
        recipe=merge_settings(
            {name: value for name, value in own.items() if name != _SKIP},
            {"learning_rate": schedule},
        ),
        phases=(bare_phase(beginning.recipe.phases[0], tuning.steps),),
    )
