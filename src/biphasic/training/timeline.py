"""Positions of the phases in a run, and the settings of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from biphasic.data.building.config import corpus_name
from biphasic.data.rows import BatchShape
from biphasic.errors import ConfigError
from biphasic.objectives.lr import LearningRateConfig, check_learning_rate, learning_rate
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.phases import MOST_TOKENS_PER_STEP, Phase


@dataclass(frozen=True)
class PlacedPhase:
    """A phase with its position in the run."""

    index: int
    phase: Phase
    start: int  # number of updates before it
    at_lora_border: bool  # whether LoRA begins or ends before it, so that other parameters train
    batches: BatchShape  # shape of its rows
    longest: int  # longest rows so far, in tokens; the model needs as many positions
    rope_theta: float | None  # base of the rotary frequencies; None if no phase has changed it yet
    schedule: LearningRateConfig
    schedule_start: int  # first update of the schedule
    schedule_end: int  # update at which it ends (exclusive)

    @property
    def end(self) -> int:
        """Index of the update after its last one."""
        return self.start + self.phase.steps

    @property
    def corpus(self) -> str | None:
        """Name of its corpus, or folder of its pairs; None for the run's own corpus."""
        if self.phase.reading is not None:
            return str(self.phase.reading.folder)
        return None if self.phase.corpus is None else corpus_name(self.phase.corpus)

    def learning_rate(self, step: int) -> float:
        """Return the rate of update `step` of the run."""
        total = self.schedule_end - self.schedule_start
        rate = learning_rate(self.schedule, step - self.schedule_start, total_steps=total)
        return self.phase.learning_rate_scale * rate

    def objective(self, step: int) -> ObjectiveConfig:
        """Return the objective of update `step` of the run."""
        return self.phase.at(step - self.start, num_steps=self.phase.steps)

    def resets_optimizer(self, step: int) -> bool:
        """Return whether the optimizer has no moments before update `step`."""
        resets = self.at_lora_border or self.phase.optimizer_state == "reset"
        return step == self.start and resets


def place_phases(
    phases: Sequence[Phase],
    learning_rate: LearningRateConfig,
    *,
    max_seqlen: int,
    rows_per_step: int,
) -> tuple[PlacedPhase, ...]:
    """Place phases one after another."""
    # The other settings are for phases that set none.
    starts = [sum(phase.steps for phase in phases[:index]) for index in range(len(phases) + 1)]
    restarts = [index for index in range(1, len(phases)) if phases[index].learning_rate]
    placed: list[PlacedPhase] = []
    rope_theta, longest = None, max_seqlen
    for index, phase in enumerate(phases):
        # The rows of pairs differ in number and length; these are at least as many and as long.
        usual = phase.reading.most_texts if phase.reading else rows_per_step
        shape = BatchShape(
            phase.max_seqlen or max_seqlen, phase.rows_per_step or usual, phase.steps
        )
        rope_theta = phase.rope_theta or rope_theta
        longest = max(longest, shape.max_seqlen)
        # The running schedule is that of the last phase that has started one.
        first = max((restart for restart in restarts if restart <= index), default=0)
        after = min((restart for restart in restarts if restart > index), default=len(phases))
        placed.append(
            PlacedPhase(
                index=index,
                phase=phase,
                start=starts[index],
                at_lora_border=any(each.lora for each in phases[max(index - 1, 0) : index + 1]),
                batches=shape,
                longest=longest,
                rope_theta=rope_theta,
                schedule=phases[first].learning_rate or learning_rate,
                schedule_start=starts[first],
                schedule_end=starts[after],
            )
        )
    return tuple(placed)


def check_phases(placed: Sequence[PlacedPhase]) -> None:
    """Raise an error if a phase's settings are invalid for any data."""
    for phase in placed:
        try:
            # Each schedule once, at the phase that starts it: its warm-up and decay may span
            # several phases.
            if phase.schedule_start == phase.start:
                total = phase.schedule_end - phase.schedule_start
                check_learning_rate(phase.schedule, total_steps=total)
            for name in ("corpus", "rows_per_step") if phase.phase.reading else ():
                if getattr(phase.phase, name) is not None:
                    raise ConfigError(f"{name}: a phase that reads pairs has none; remove it")
            if phase.phase.lora and phase.phase.freeze:
                raise ConfigError("freeze: lora trains no weight of the model; remove freeze")
            rows = phase.batches.rows_per_step
            if not phase.phase.reading:  # how many pairs there are limits those
                check_step_size(rows, max_seqlen=phase.batches.max_seqlen)
            phase.phase.check(num_steps=phase.phase.steps, rows_per_step=rows)
        except ConfigError as error:
            where = f"phases.{phase.index}." if phase.index else ""
            raise ConfigError(f"{where}{error}") from None


def check_step_size(rows_per_step: int, *, max_seqlen: int) -> None:
    """Raise an error for more tokens in a step than any training has: a mistyped number."""
    if rows_per_step * max_seqlen > MOST_TOKENS_PER_STEP:
        raise ConfigError(
            f"rows_per_step: {rows_per_step:,} rows of up to {max_seqlen:,} tokens are too many; "
            f"a step has at most {MOST_TOKENS_PER_STEP:,} tokens"
        )
