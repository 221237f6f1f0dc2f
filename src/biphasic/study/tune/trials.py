"""The trials that `biphasic study tune` trains: one for each model, first objective and rate.

They are the arms of a study without tasks, so that they run, stop and go on as any others do.
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
from biphasic.study.spec.tuned_rates import TunedRate, first_objective, why_not_tuned
from biphasic.training.recipe import Recipe
from biphasic.training.records.heldout import HELDOUT_MLM_PROBABILITY

_SUFFIX = "-tune"
_LONGEST_NAME = 80 - len(_SUFFIX)
_NO_MEASURE = "held-out losses are of CLM and MLM, and its first objective is neither"


@dataclass(frozen=True)
class Beginning:
    """A model and a first objective, with the arms that begin so.

    Attributes:
        name: Short, such as `nano-mlm40`.
        weights: What trials are judged by: the weight of each held-out loss, by objective.
        arms: The arms, in the study's order; the first one's settings are the trials'.
        recipe: Of that arm, at the rate that all arms share.
    """

    name: str
    weights: Mapping[str, float]
    arms: tuple[ArmConfig, ...]
    recipe: Recipe

    @property
    def phase(self) -> Phase:
        """The first phase."""
        return self.recipe.phases[0]

    @property
    def measure(self) -> str:
        """What trials are judged by, for people."""
        names = {"clm": "CLM", "mlm": f"MLM at {100 * HELDOUT_MLM_PROBABILITY:g} %"}
        parts = [
            names[each] if weight == 1 else f"{weight:.3g} x {names[each]}"
            for each, weight in self.weights.items()
        ]
        return " + ".join(parts)

    def tuned(self, peak: float) -> TunedRate:
        """Return the study's entry for a rate."""
        return TunedRate.model_validate(
            {"model": self.recipe.model, "phase": first_objective(self.recipe), "peak": peak}
        )


@dataclass(frozen=True)
class Tuning:
    """What is to be tuned, and on how much.

    Attributes:
        config: The study.
        share: Of the longest budget.
        budget: Steps of the longest schedule that a tuned rate is for.
        beginnings: What has a rate of its own.
        untuned: Arms that keep their rate, and why.
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
        """Tuned arms with a later phase that has a schedule of its own, which stays as it is."""
        return tuple(
            arm.name
            for beginning in self.beginnings
            for arm in beginning.arms
            if any(phase.learning_rate for phase in arm.phases[1:])
        )


def plan_tuning(config: StudyConfig, share: float) -> Tuning:
    """Find what of a study has a rate of its own.

    Args:
        config: The study.
        share: Of the longest budget, in (0, 1].

    Raises:
        ConfigError: The share is none, or no arm can be tuned.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"--share: expected a share in (0, 1] of the budget (got {share:g})")
    if len(config.name) > _LONGEST_NAME:
        raise ConfigError(
            f"study '{config.name}': its trials are the study NAME{_SUFFIX}, and names have at "
            f"most 80 characters; shorten this one to {_LONGEST_NAME}"
        )
    untuned: dict[str, str] = {}
    found: list[tuple[Recipe, Mapping[str, float], list[ArmConfig]]] = []
    budget = 0
    for arm in config.arms:
        # At the shared rate: entries of an earlier tuning must not change what is compared.
        recipe = arm.recipe_from(config.recipe)
        reason = why_not_tuned(arm)
        weights = {} if reason or not recipe.phases else heldout_weights(recipe.phases[0])
        if reason or not weights:
            untuned[arm.name] = reason or _NO_MEASURE
            continue
        budget = max(budget, recipe.placed_phases[0].schedule_end)
        for known, _, arms in found:
            if _begins_as(known, recipe):
                arms.append(arm)
                break
        else:
            found.append((recipe, weights, [arm]))
    if not found:
        told = "; ".join(f"'{name}': {reason}" for name, reason in untuned.items())
        raise ConfigError(f"study '{config.name}': no arm has a rate to tune ({told})")
    names = _names([recipe for recipe, _, _ in found])
    beginnings = tuple(
        Beginning(name, weights, tuple(arms), recipe)
        for name, (recipe, weights, arms) in zip(names, found, strict=True)
    )
    return Tuning(config, share, budget, beginnings, untuned)


def heldout_weights(objective: ObjectiveConfig) -> dict[str, float]:
    """Return with which weights the held-out losses stand for an objective; empty for none.

    MLM at any rate is judged at the one rate that held-out losses have. Mixtures weigh their
    objectives by their rows, alternations by their turns.
    """
    if isinstance(objective, Clm | Mlm):
        return {objective.objective: 1.0}
    if isinstance(objective, Mix):
        parts = list(zip(objective.shares, objective.objectives, strict=True))
    elif isinstance(objective, Alternate):
        turns = objective.objectives
        parts = [(1 / len(turns), each) for each in turns]
    else:
        return {}
    weights: dict[str, float] = {}
    for share, each in parts:
        own = heldout_weights(each)
        if not own:
            return {}
        for name, weight in own.items():
            weights[name] = weights.get(name, 0.0) + share * weight
    return {name: weights[name] for name in sorted(weights)}


def _begins_as(one: Recipe, other: Recipe) -> bool:
    return one.model == other.model and first_objective(one) == first_objective(other)


def _names(recipes: Sequence[Recipe]) -> list[str]:
    names: list[str] = []
    for recipe in recipes:
        # Without the step, model and objective alone are named.
        plain = recipe.model_copy(update={"phases": (bare_phase(recipe.phases[0], 1),)})
        name = recipe_name(plain).removesuffix("-1")[:50]
        candidates = (name if number == 1 else f"{name}-{number}" for number in count(1))
        names.append(next(each for each in candidates if each not in names))
    return names


def bare_phase(phase: Phase, steps: int) -> Phase:
    """Return a phase of another length, without a schedule of its own."""
    return phase.model_copy(update={"steps": steps, "learning_rate": None})


def trial_schedule(tuning: Tuning, recipe: Recipe) -> tuple[int, int]:
    """Return warm-up and decay of a trial in steps: the study's, shortened as the trial is.

    A trial is a run in miniature: it warms up and decays over the same parts of itself.
    """
    schedule = recipe.learning_rate
    factor = tuning.steps / tuning.budget
    return round(factor * schedule.warmup_steps), round(factor * schedule.decay_steps)


def trial_study(tuning: Tuning, rates: Mapping[str, Sequence[float]]) -> StudyConfig:
    """Return the study whose arms are the trials.

    Args:
        tuning: What is tuned.
        rates: By name of each beginning, its peak rates.

    Raises:
        ConfigError: A trial is too short for what it trains.
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
        "recipe": config.recipe,
        "arms": arms,
        "checkpoint_every": config.checkpoint_every,
        "heldout_every": 0,
        "compute": config.compute,
    }
    try:
        return parse_config(StudyConfig, raw, where="tune")
    except ConfigError as error:
        raise ConfigError(
            f"{error} (trials have {tuning.steps:,} steps; a larger --share makes them longer)"
        ) from None


def trial_name(beginning: Beginning, rate: float) -> str:
    """Return the name of the arm that trains a beginning at a rate."""
    return f"{beginning.name}-lr{rate:.6g}"


def _trial_arm(tuning: Tuning, beginning: Beginning, rate: float) -> ArmConfig:
    warmup, decay = trial_schedule(tuning, beginning.recipe)
    schedule = {"peak": rate, "warmup_steps": warmup, "decay_steps": decay}
    return ArmConfig(
        name=trial_name(beginning, rate),
        label=f"{beginning.name}, peak {rate:g}",
        group=beginning.name,
        recipe=merge_settings(beginning.arms[0].recipe, {"learning_rate": schedule}),
        phases=(bare_phase(beginning.phase, tuning.steps),),
    )
