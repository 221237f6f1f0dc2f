"""`biphasic study tune`: short trials at several peak rates, and the choice of the best rates."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from biphasic.analysis.figures.tuning import (
    FLAT_NATS,
    FORMAT,
    CurveRecord,
    TrialRecord,
    TuneRecord,
    curve_csv,
    draw_curves,
)
from biphasic.config import dump_settings, load_settings
from biphasic.errors import ConfigError, StoppedError, StudyError
from biphasic.execution.executor import Local
from biphasic.execution.job import Failure
from biphasic.execution.scheduler import RetryPolicy
from biphasic.files import expanded, read_json_object, write_bytes, write_json, write_text
from biphasic.locks import sole_writer
from biphasic.shown import Shown, inline
from biphasic.store import STATE, Store, is_complete, read_state_record
from biphasic.study.plan.plan import Plan
from biphasic.study.resolve import resolve
from biphasic.study.run.run import execute_study
from biphasic.study.settings.load import INCLUDE, load_study
from biphasic.study.settings.study import StudyConfig
from biphasic.study.settings.tuned_rates import ObjectiveRate, TunedRate
from biphasic.study.study import Study
from biphasic.study.tune.trials import (
    RateGroup,
    Tuning,
    rate_digits,
    trial_name,
    trial_schedule,
    trial_study,
)
from biphasic.training.recipe import PretrainedModel

KEY, _TUNED_WITH = "tuned_rates", "tuned_with"
ENDING = ".rates.yaml"


def rates_file(file: Path) -> Path:
    """Return the place of the rates of a study file."""
    return file.with_name(file.stem + ENDING)


def write_rates(
    target: Path, file: Path, config: StudyConfig, rates: Sequence[TunedRate], *, curve: Path
) -> str:
    """Write the rates of a study; return what to do so that its file uses them, if anything."""
    losses = Path(os.path.relpath(curve.resolve(), target.resolve().parent)).as_posix()
    settings = {
        KEY: [_as_written(rate, file.resolve().parent) for rate in rates],
        _TUNED_WITH: config.of_tuning(),
    }
    head = f"# Chosen by `biphasic study tune`; the losses at all rates: {losses}\n"
    write_text(target, head + dump_settings(settings))
    # Read back: whether the study uses the file depends on its own settings and includes.
    if load_study(file).tuned_rates == tuple(rates):
        return ""
    place = Path(os.path.relpath(target.resolve(), file.resolve().parent)).as_posix()
    own = f"delete its own {KEY}, which take precedence, and " if KEY in load_settings(file) else ""
    return f"to use them, {own}add to {file}: {INCLUDE}: {place}"


def _as_written(rate: TunedRate, folder: Path) -> dict[str, Any]:
    """Return the settings of a rate; paths in included files are relative to the study's folder."""
    settings = rate.model_dump(mode="json", exclude_defaults=True)
    if not isinstance(rate, ObjectiveRate):
        return settings
    phase = {"objective": rate.phase.objective, **settings["phase"]}
    if (share := getattr(rate.phase, "mlm_probability", None)) is not None:
        phase["mlm_probability"] = share  # even if it is the default
    model = rate.model
    # Relative, so that study and rates can be moved or shared together. Only if that names the same
    # model from the study's folder.
    if isinstance(model, PretrainedModel) and Path(model.pretrained).is_absolute():
        relative = {"pretrained": os.path.relpath(model.pretrained, folder)}
        if model.model_copy(update=relative).anchored(folder) == model:
            settings["model"] |= relative
    return {**settings, "phase": phase}


LADDER = (0.25, 0.5, 1.0, 2.0, 4.0)  # Default rates to try, as factors of the study's rate.
# Maximum number of rates to try beyond the list when its lowest or highest rate is the best.
MAX_EXTENSIONS = 3
_DIGITS = 12  # of rates beyond the list, which are products
_LOST = "lost.json"
_MOST_RATE = 1e6

Rates = Mapping[str, Sequence[float]]
Edge = Literal["", "lowest", "highest"]


@dataclass(frozen=True)
class TuneOutcome:
    """The outcome of `tune_study`."""

    record: TuneRecord  # The trials, their losses and the chosen rates.
    folder: Path  # The folder of the trials, with the loss curves.
    num_executed: int
    file: Path  # The file with the chosen rates.
    advice: str  # What to do so that the study uses them; empty if it does.


def tune_study(
    tuning: Tuning,
    rates: Rates,
    file: Path,
    root: Path,
    *,
    extend: bool,
    out: Path | str | None,
    local: Local,
    console: Console,
) -> TuneOutcome:
    """Choose the peak rates of the arms of a study file and write them, like `tune`."""
    target = rates_file(file) if out is None else expanded(out)
    # The file is written anew, so a file with other settings would lose them.
    if target.exists() and not load_settings(target).keys() <= {KEY, _TUNED_WITH}:
        raise ConfigError(f"{target}: holds more than rates; name another file with --out")
    # Locked first: a place that cannot be written ends the command before the trials.
    with sole_writer(target):
        # Replicates of an arm share a rate, which is tuned with the seeds of the first.
        trials = _Trials(tuning, root.resolve(), local, console)
        by_group = trials.try_rates(rates, extend=extend)
        record = _record(tuning, by_group)
        write_json(trials.folder / "curve.json", record.model_dump(mode="json"))
        write_text(trials.folder / "curve.csv", curve_csv(record))
        for ending, content in draw_curves(record).items():
            write_bytes(trials.folder / f"curve.{ending}", content)
        if lost := [curve.name for curve in record.curves if curve.choice is None]:
            raise StudyError(
                f"every trial of {', '.join(lost)} diverged, so no rate was chosen or "
                f"written; give lower --rates (losses: {trials.folder / 'curve.csv'})"
            )
        chosen = tuple(
            group.tuned(curve.choice, trials=len(curve.trials))
            for group, curve in zip(tuning.groups, record.curves, strict=True)
            if curve.choice is not None
        )
        rates_now = (*tuning.kept_rates, *chosen)
        curve = trials.folder / "curve.csv"
        advice = write_rates(target, file, tuning.config, rates_now, curve=curve)
        return TuneOutcome(record, trials.folder, trials.num_executed, target, advice)


def first_rates(tuning: Tuning, rates: Sequence[float] | None) -> dict[str, tuple[float, ...]]:
    """Return the first rates to try, by group: `rates`, or rates around its own."""
    own = None if rates is None else _checked(rates, rates)
    peaks = {group.name: group.schedule.peak for group in tuning.groups}
    return {
        name: own or tuple(sorted(factor * peak for factor in LADDER))
        for name, peak in peaks.items()
    }


@dataclass
class _Trials:
    """The trials in the store."""

    tuning: Tuning
    root: Path
    local: Local
    console: Console
    num_executed: int = 0
    last: frozenset[str] | None = None

    @property
    def folder(self) -> Path:
        return self.root / self.tuning.name

    def try_rates(
        self, rates: Mapping[str, Sequence[float]], *, extend: bool
    ) -> dict[str, list[TrialRecord]]:
        """Train the trials at the given rates, and beyond them while an edge is the best."""
        rates = dict(rates)
        trials = self._try(rates)
        for _ in range(MAX_EXTENSIONS if extend else 0):
            # All groups get the further rates of each, so their curves have the same rates.
            more = {rate for tried in trials.values() if (rate := next_rate(tried))}
            if not more:
                break
            rates = {name: sorted({*tried, *more}) for name, tried in rates.items()}
            trials = self._try(rates)
        self._train(rates, is_last=True)
        return trials

    def _try(self, rates: Rates) -> dict[str, list[TrialRecord]]:
        """Train the missing trials; return those of each group, by ascending rate."""
        plan = self._train(rates)
        lost = self._diverged()
        folders = {arm.name: Store(plan.store).folder(STATE, arm.state) for arm in plan.arms}
        return {
            group.name: [_trial(group, rate, folders, lost) for rate in rates[group.name]]
            for group in self.tuning.groups
        }

    def _train(self, rates: Rates, *, is_last: bool = False) -> Plan:
        """Run the missing trials; the last call runs the whole study to update its report."""
        study, lost = Study(trial_study(self.tuning, rates), self.root), self._diverged()
        plan = resolve(study, missing="placeholder").plan
        kept = [arm for arm in plan.arms if arm.state not in lost]
        names = frozenset(arm.name for arm in kept)
        are_done = all(Store(plan.store).has(STATE, arm.state) for arm in kept)
        if not kept or names == self.last or (are_done and not is_last):
            return plan
        arms = tuple(arm.config for arm in kept)
        outcome = execute_study(
            Study(study.config.model_copy(update={"arms": arms}), self.root),
            executor=self.local,
            policy=RetryPolicy(),
            console=self.console,
        )
        self.num_executed += outcome.num_executed
        self.last = names
        if outcome.is_stopped:
            raise StoppedError(f"{study.config.name}: stopped; run the command again to resume")
        plan = resolve(study, missing="placeholder").plan  # before, data may have been placeholders
        if outcome.failed:
            self._note_diverged(plan, outcome.failed)
        return plan

    def _note_diverged(self, plan: Plan, failures: Sequence[Failure]) -> None:
        """Record which trials diverged; they are not retried."""
        reasons = {failure.id: failure.divergence for failure in failures}
        # Only divergence tells about a rate. Choosing without a trial that crashed would favour the
        # others.
        if not all(reasons.values()):
            errors = "; ".join(map(str, failures))
            raise StudyError(
                f"trials failed, so no rate was chosen; run the command again to retry: {errors}"
            )
        lost = self._diverged()
        for arm in plan.arms:
            # A trial is lost as well if it diverged in a segment that it shares with others.
            for identity in plan.path(arm.state):
                if reason := reasons.get(identity):
                    lost[arm.state] = reason
        write_json(self.folder / _LOST, lost)

    def _diverged(self) -> dict[str, str]:
        path = self.folder / _LOST
        if not path.is_file():
            return {}
        remedy = "delete it and run again to retry the trials that diverged"
        return read_json_object(path, remedy=remedy)


def _trial(
    group: RateGroup, rate: float, folders: Mapping[str, Path], lost: Mapping[str, str]
) -> TrialRecord:
    """Return the record of a trial; `folders` are those of the trials' states, by name."""
    name = trial_name(group, rate)
    folder, state = folders[name], folders[name].name
    if not is_complete(folder):
        if state not in lost:
            raise StudyError(f"trial '{name}' is not trained; run the command again to resume")
        return TrialRecord(arm=name, peak=rate, loss=None, state=state, lost=lost[state])
    heldout = read_state_record(folder, identity=state).heldout
    if missing := sorted(group.weights.keys() - heldout.keys()):
        raise StudyError(f"{folder}: no held-out loss of {', '.join(missing)}")
    loss = sum(weight * heldout[name] for name, weight in group.weights.items())
    return TrialRecord(arm=name, peak=rate, loss=loss, heldout=heldout, state=state)


def _record(tuning: Tuning, trials: Mapping[str, Sequence[TrialRecord]]) -> TuneRecord:
    schedule = trial_schedule(tuning, tuning.groups[0].schedule)
    return TuneRecord(
        format=FORMAT,
        study=tuning.config.name,
        by=tuning.by,
        share=tuning.share,
        budget=tuning.budget,
        steps=tuning.steps,
        warmup_steps=schedule.warmup_steps,
        decay_steps=schedule.decay_steps,
        curves=tuple(_curve(start, trials[start.name]) for start in tuning.groups),
        untuned=dict(tuning.untuned),
        later_schedules=tuning.later_schedules,
    )


def _curve(group: RateGroup, trials: Sequence[TrialRecord]) -> CurveRecord:
    chosen = best(trials)
    return CurveRecord(
        name=group.name,
        measure=group.measure,
        unit=group.unit,
        arms=tuple(arm.name for arm in group.arms),
        trials=tuple(trials),
        choice=chosen.peak if chosen else None,
        equals=as_good(trials, unit=group.unit),
        edge=edge_of(trials),
    )


def parse_rates(text: str) -> tuple[float, ...]:
    """Parse a list of rates such as `5e-4,1e-3,2e-3`."""
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    return _checked(rates, text)


def _checked(rates: Sequence[float], given: object) -> tuple[float, ...]:
    """Return rates in ascending order."""
    if not rates or not all(0 < rate < _MOST_RATE for rate in rates):
        expected = f"expected positive numbers below {_MOST_RATE:g} such as 5e-4,1e-3"
        raise ConfigError(f"--rates: {expected} (got '{given}')")
    if len({rate_digits(rate) for rate in rates}) < len(rates):
        raise ConfigError(f"--rates: lists a rate twice, to six digits ({given})")
    return tuple(sorted(rates))


def best(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the trial with the lowest loss; ties go to the lower rate."""
    finished = [(trial.loss, trial.peak, trial) for trial in trials if trial.loss is not None]
    return min(finished, key=lambda entry: entry[:2])[2] if finished else None


def as_good(trials: Sequence[TrialRecord], *, unit: str) -> tuple[float, ...]:
    """Return the other rates within `FLAT_NATS` of the lowest loss; none in other units."""
    chosen = best(trials)
    if chosen is None or chosen.loss is None or not unit.startswith("nats"):
        return ()
    return tuple(
        trial.peak
        for trial in trials
        if trial is not chosen and trial.loss is not None and trial.loss <= chosen.loss + FLAT_NATS
    )


def edge_of(trials: Sequence[TrialRecord]) -> Edge:
    """Return whether the best rate is the lowest or the highest of all rates tried."""
    # A diverged trial counts as a worse one. If all trials diverged, the best rate is lower.
    chosen = best(trials)
    rates = sorted(trial.peak for trial in trials)
    if chosen is None or chosen.peak == rates[0]:
        return "lowest"
    return "highest" if chosen.peak == rates[-1] else ""


def next_rate(trials: Sequence[TrialRecord]) -> float | None:
    """Return the next rate to try beyond the best one; None if the best one is not at an edge."""
    # The list goes on by the ratio of the two rates at its edge.
    edge = edge_of(trials)
    if not edge:
        return None
    rates = sorted(trial.peak for trial in trials)
    if edge == "lowest":
        ratio = rates[1] / rates[0] if len(rates) > 1 else 2.0
        # Rounded, as products of floats that should be equal may differ in their last digits.
        return float(f"{rates[0] / ratio:.{_DIGITS}g}")
    ratio = rates[-1] / rates[-2] if len(rates) > 1 else 2.0
    return float(f"{rates[-1] * ratio:.{_DIGITS}g}")


@dataclass(frozen=True, repr=False)
class Tuned(Shown):
    """What `tune` returns: trials of learning rates, and the chosen ones.

    Attributes:
        planned: What would be trained, with `dry_run`; else empty.
        outcome: The trials, their folder, and the file with the rates; None with `dry_run`.
    """

    planned: tuple[str, ...]
    outcome: TuneOutcome | None

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each trial."""
        curves = () if self.outcome is None else self.outcome.record.curves
        return [
            {
                "name": curve.name,
                "rate": trial.peak,
                "loss": trial.loss,
                "is_chosen": trial.peak == curve.choice,
            }
            for curve in curves
            for trial in curve.trials
        ]

    def lines(self) -> Iterator[str]:
        """Return the trials, and the file with the rates."""
        from biphasic.study.tune.trials import result_lines  # noqa: PLC0415

        yield from self.planned
        if self.outcome is not None:
            yield from result_lines(self.outcome.record)
            yield f"curves: {self.outcome.folder / 'curve.png'}"
            yield f"rates:  {self.outcome.file}"
            if self.outcome.advice:
                yield self.outcome.advice

    def drawing(self) -> str:
        """Return the losses by rate."""
        if self.outcome is None:
            return ""
        return inline((self.outcome.folder / "curve.svg").read_text(encoding="utf-8"))
