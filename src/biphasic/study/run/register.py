"""Registers a study: fixes its questions and plan under a hash, before its first score.

A registration says the smallest difference that each comparison can find, by its own formula.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from biphasic.analysis.estimate import LEVEL
from biphasic.analysis.page.markdown import registration_page
from biphasic.analysis.records import load_records
from biphasic.analysis.scores.source import replicate_of, study_scores
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.statistics.contrast import (
    FEWEST,
    Contrast,
    SumTest,
    other_misses,
    residual_variance,
)
from biphasic.analysis.statistics.paired import NO_SPREAD, noncentral_t
from biphasic.analysis.statistics.replicates import by_recipe
from biphasic.analysis.study_file import read_study
from biphasic.analysis.text import count
from biphasic.errors import ConfigError, DataError, LockHeldError
from biphasic.facts import is_baseline
from biphasic.files import digest
from biphasic.locks import refuse_while_cleaning
from biphasic.numerics import PARTS, running_code
from biphasic.records import AskedRecord, DetectableRecord, RegistrationRecord, StudyRecord
from biphasic.registration import (
    REGISTRATIONS,
    changed_parts,
    fixed_part,
    read_registrations,
    registration_id,
    write_registration,
)
from biphasic.shown import Shown
from biphasic.store import RESULT, Store, sealed_in
from biphasic.study import lines_of
from biphasic.study.plan.finished import Finished
from biphasic.study.plan.plan import Plan
from biphasic.study.resolve import resolve
from biphasic.study.run.record import settings_digest, study_record
from biphasic.study.study import Study
from biphasic.version import __version__


def register_study(
    study: Study, *, console: Console, spread: float | None = None, pilot: Path | None = None
) -> tuple[RegistrationRecord, ...]:
    """Register a study, or amend its registration if it has changed; return all registrations."""
    if not study.config.questions:
        raise ConfigError("questions: none, so there is nothing to register; see docs/studies.md")
    try:
        with study.locked():
            return _register(study, console=console, spread=spread, pilot=pilot)
    except LockHeldError:
        known = read_registrations(study.folder)
        if (spread, pilot) == (None, None) and known and _runs_as_registered(study, known[-1]):
            return known
        raise


def _runs_as_registered(study: Study, last: RegistrationRecord) -> bool:
    """Return whether the process that has the study runs it as it was registered."""
    try:
        running = read_study(study.folder)
    except DataError:  # it has just begun
        return False
    if running.provenance.get("settings_sha256") != settings_digest(study.config):
        return False
    return not _changes(last, fixed_part(running), _code())


def _code() -> dict[str, str]:
    return {"biphasic": __version__, **{part: running_code(part) for part in PARTS}}


def _changes(
    last: RegistrationRecord, fixed: Mapping[str, Any], code: Mapping[str, str]
) -> tuple[str, ...]:
    return (*changed_parts(last.fixed, fixed), *(("code",) if last.code != code else ()))


def _register(
    study: Study, *, console: Console, spread: float | None, pilot: Path | None
) -> tuple[RegistrationRecord, ...]:
    refuse_while_cleaning(study.store)
    study.save()
    known = read_registrations(study.folder)
    resolved = resolve(study, missing="build", console=console)
    written = study_record(resolved)
    fixed, code = fixed_part(written), _code()
    changed = _changes(known[-1], fixed, code) if known else ()
    spread_on, source = _spreads(written, spread, pilot)
    if known and not changed:
        if source not in ("", known[-1].spread_from):
            raise ConfigError(
                f"{known[-1].id[:12]}: this study is registered as it is, and a registration does "
                "not change; omit --spread and --pilot"
            )
        return known
    num_scores = len(_existing_scores(resolved.plan, known))
    if num_scores and not known:
        raise ConfigError(
            f"{study.store}: has {count(num_scores, 'score')} of this study's arms already, so "
            "it cannot be registered before the first one; change the arms or their seeds"
        )
    amends = known[-1].id if known else None
    record = RegistrationRecord(
        format="biphasic.registration/1",
        id=registration_id(fixed, code, amends),
        registered=datetime.now(UTC).isoformat(timespec="seconds"),
        amends=amends,
        changed=changed,
        num_scores=num_scores,
        fixed=fixed,
        code=code,
        detectable=tuple(detectable_differences(written, spread_on)) if spread_on else (),
        spread_from=source,
    )
    write_registration(study.folder, record, number=len(known) + 1)
    return (*known, record)


def could_register(plan: Plan) -> bool:
    """Return whether a study with questions has neither a registration nor a score."""
    if not plan.study.config.questions or sealed_in(plan.study.folder / REGISTRATIONS):
        return False
    return next(Finished.of(plan).planned_results(), None) is None


def _existing_scores(plan: Plan, known: Sequence[RegistrationRecord]) -> list[str]:
    """Return the stored results, of any study, of states planned now or registered before."""
    states = {point.state for point in plan.points}
    states |= {arm["state"] for one in known for arm in one.fixed["arms"].values()}
    planned, store = set(plan.run_ids()), Store(plan.store)
    return [
        name
        for name in sorted(store.walk(RESULT))
        if name in planned or store.result(name).state in states
    ]


def _spreads(
    study: StudyRecord, spread: float | None, pilot: Path | None
) -> tuple[Callable[[str], float] | None, str]:
    """Return the assumed spread of each task, and where it is from."""
    if pilot is not None:
        return pilot_spreads(pilot, study), f"the spreads over runs of the pilot '{pilot.name}'"
    if spread is not None:
        return lambda _: spread, f"a standard deviation over runs of {spread:g} points"
    return None, ""


@dataclass(frozen=True, repr=False)
class Registered(Shown):
    """What `register` returns: the registration of a study, with its amendments.

    Attributes:
        title: Of the study.
        records: The first registration and its amendments, the newest last.
    """

    title: str
    records: tuple[RegistrationRecord, ...]

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the detectable difference of each comparison, and its power with a margin."""
        return [
            {
                "question": one.question,
                "comparison": one.comparison + 1,
                "task": one.task,
                "points": one.points,
                **one.model_dump(include={"power_of_forecast", "power_of_level"}),
            }
            for one in self.records[-1].detectable
        ]

    def to_markdown(self) -> str:
        """Return the page of the registration, to commit."""
        return registration_page(self.title, self.records)

    def lines(self) -> list[str]:
        """Return the hash, what an amendment changed, and what the study can detect."""
        return lines_of("registered", last=self.records[-1], rows=self.table())


def detectable_differences(
    study: StudyRecord, spread_on: Callable[[str], float]
) -> Iterator[DetectableRecord]:
    """Yield the smallest detectable difference of each comparison that has a test over runs."""
    # `spread_on` returns the standard deviation of an arm's score over runs on a task.
    for question in study.questions:
        number = sum(len(one.tasks) for one in question.comparisons)
        for place, one in enumerate(question.comparisons):
            for task in one.tasks:
                own = {
                    side[0]
                    for other in question.comparisons
                    if task in other.tasks
                    for side in (other.first, other.second, *(other.minus or ()))
                    if not is_baseline(side[0])
                }
                design = replace(_design(study, one, task, number), num_own=len(own))
                spread = spread_on(task) if design.num_runs > 1 else 0.0
                design = replace(design, spread=spread)
                if (points := smallest_detectable(design)) is not None:
                    yield DetectableRecord(
                        question=question.name,
                        comparison=place,
                        task=task,
                        points=points,
                        spread=spread,
                        **({} if question.margin is None else powers(design, one, question.margin)),
                    )


def pilot_spreads(folder: Path, study: StudyRecord) -> Callable[[str], float]:
    """Return the spreads that a finished study measured, over what a study's questions are over."""
    scores = by_recipe(study_scores(load_records(folder)))
    asked = [one for question in study.questions for one in question.comparisons]
    has_runs = any(len(side) > 1 for one in asked for side in (one.first, one.second))
    if scores.is_replicated != has_runs:
        raise ConfigError(
            f"--pilot {folder.name}: its spreads are over {scores.unit}s, but the questions are "
            f"over {'pretraining runs' if has_runs else 'seeds'}; give --spread, or another pilot"
        )
    return lambda task: residual_spread(scores, task)


def _design(study: StudyRecord, asked: AskedRecord, task: str, number: int) -> Design:
    sides, weights = [], Counter[str]()
    every = (asked.first, asked.second, *(asked.minus or ()))
    for side, weight in zip(every, (1, -1, -1, 1), strict=False):
        if not is_baseline(side[0]):  # these have no spread over runs
            sides.append(side)
            weights[side[0]] += weight  # an arm may occur twice
    # Finished or asked recipes with several runs, whose variance is pooled if none lacks a run.
    asked_arms = {name for side in sides for name in side}
    encoders = {arm.name for arm in study.arms if arm.is_finished_encoder}
    runs: defaultdict[str, set[str]] = defaultdict(set)  # by recipe, the seeds of each run
    for arm in study.arms:
        if arm.name not in encoders and (arm.is_final or arm.name in asked_arms):
            runs[replicate_of(arm)].add(digest(arm.seeds))
    several = [of for recipe, of in runs.items() if recipe and len(of) > 1]
    # A finished encoder is paired with every run.
    trained = [side for side in sides if side[0] not in encoders]
    num_runs = min(map(len, trained or runs.values()), default=1)
    first = (trained or sides)[0][0]
    seeds = {run.seed for run in study.runs if (run.arm, run.task) == (first, task)}
    return Design(
        weights=tuple(float(weight) for weight in weights.values() if weight),
        num_arms=len(encoders) + len(several) if several[1:] == several[:-1] else 0,
        num_runs=num_runs if num_runs > 1 else len(seeds),
        num_comparisons=number,
        are_blocks=num_runs > 1 and not sum(weights.values()),  # as `blocks_for`
    )


@dataclass(frozen=True)
class Design:
    """A comparison that is still to be computed."""

    weights: tuple[float, ...]  # of the arms in the comparison
    num_arms: int  # arms whose variance is pooled
    num_runs: int  # runs of each arm: pretraining runs (`are_blocks`), or fine-tuning seeds
    num_comparisons: int  # comparisons of its question, which are corrected together
    are_blocks: bool
    # Standard deviation of an arm's score over runs, in percentage points, beside what all arms
    # share.
    spread: float = 1.0
    num_own: int = 0  # arms of the question, whose variance is pooled by itself as well

    @property
    def contrast(self) -> Contrast:
        """The test of the comparison, as if no other one of its question were clear."""
        # Over runs alone: test examples are not covered.
        alone = self.num_runs - 1
        error = self.spread * math.sqrt(sum(of**2 for of in self.weights) / self.num_runs)
        groups = {max(of, len(self.weights)) for of in (self.num_arms, self.num_own)}
        freedoms = [
            (arms - 1) * alone
            for arms in (sorted(groups) if self.are_blocks else ())
            if min(arms, self.num_runs) >= FEWEST
        ]
        return Contrast(
            mean=0.0, by_seed=dict.fromkeys(range(self.num_runs), 0.0),
            tests=tuple(SumTest(error, of, error, of, 1.0, 1.0) for of in freedoms or [alone]),
            example_error=0.0, num_examples=0, num_clusters=0, p_value=1.0, p_over_seeds=1.0,
            p_alone=1.0, is_pooled=bool(freedoms), missing="", family_size=self.num_comparisons,
        )  # fmt: skip


def smallest_detectable(design: Design) -> float | None:
    """Return the difference that is clear with 80 % power, in percentage points."""
    # None with fewer than two runs, which give no test.
    return None if design.num_runs < 2 else design.contrast.detectable


def powers(design: Design, asked: AskedRecord, margin: float) -> dict[str, float]:
    """Return the shares of studies that find the forecast, and that find no difference level."""
    # If spreads do not seem to differ, the harder one of the tests decides.
    found: dict[str, float] = {}
    if expected := abs(asked.forecast.difference) if asked.forecast else 0.0:
        found["power_of_forecast"] = min(
            (1 - other_misses(tests)) * (1 - max(one.miss(expected) for one in tests))
            for tests in design.contrast.criteria()
        )
    # Two one-sided tests: each of them fails as often if there is no difference.
    missed = (
        (tests, max(2 * noncentral_t(c.critical, c.freedom, margin / c.error) for c in tests))
        for tests in design.contrast.criteria(LEVEL)
    )
    found["power_of_level"] = min(
        (1 - other_misses(tests)) * max(1 - share, 0.0) for tests, share in missed
    )
    return found


def residual_spread(scores: Scores, dataset: str) -> float:
    """Return the standard deviation of scores over runs, beside what all models share."""
    found = [scores.get(model.name, dataset).by_seed or {} for model in scores.finished.models]
    known = [by_seed for by_seed in found if len(by_seed) > 1]
    runs = sorted(set.intersection(*map(set, known))) if known else []
    if len(known) < 2 or len(runs) < 2:
        raise DataError(
            f"{scores.source}: the spread on {dataset} needs two models with the same two runs or "
            "more; give --spread"
        )
    table = np.array([[by_seed[run] for run in runs] for by_seed in known])
    spread = float(np.sqrt(residual_variance(table)))
    if spread <= NO_SPREAD:
        raise DataError(f"{scores.source}: no spread over runs on {dataset}; give --spread")
    return spread
