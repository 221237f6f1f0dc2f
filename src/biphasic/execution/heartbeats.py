"""Heartbeats of the ranks of a process group: reports ranks that hang or lag.

Time-outs of gloo and nccl name no rank, and `torch.distributed.monitored_barrier` would send one
more message in every step.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from biphasic.amounts import duration
from biphasic.config import DURATION, duration_seconds
from biphasic.distributed import Activity
from biphasic.errors import ConfigError

# Environment variable: how long a rank may stay at one place of a step, as HH:MM:SS.
TIMEOUT = "BIPHASIC_RANK_TIMEOUT"
_DEFAULT = "00:10:00"
_LONG_SECONDS = 30 * 60.0
# Activities that may take long, and that one rank does while the others wait.
_LONG = frozenset({Activity.STARTING, Activity.HELDOUT, Activity.SAVING})
_WINDOW_STEPS = 20
_WINDOW_SECONDS = 60.0
_SLOW = 1.5
_SLOW_SHARE = 0.1  # a slow rank is named if it costs this share of all time
_LONGEST_TICK = 1.0


@dataclass(frozen=True)
class _Beat:
    """The latest heartbeat of a rank, and when it was heard; see `distributed.Heartbeat`."""

    step: int
    activity: Activity
    waits: bool
    own_seconds: float
    heard: float


class Heartbeats:
    """Latest heartbeats of all ranks."""

    # Time passes only while `tick` is called: a process that was itself stopped, or waited for a
    # slow disk, does not take its ranks for hanging.

    def __init__(self, num_ranks: int) -> None:
        """Begin with ranks that start."""
        text = os.environ.get(TIMEOUT) or _DEFAULT
        if not re.match(DURATION, text) or not duration_seconds(text):
            raise ConfigError(
                f"{TIMEOUT} {text}: give a time as HH:MM:SS, or unset it for {_DEFAULT}"
            )
        self._limit = float(duration_seconds(text))
        self._now, self._ticked = 0.0, time.monotonic()
        starting = _Beat(0, Activity.STARTING, waits=False, own_seconds=0.0, heard=0.0)
        self._beats = dict.fromkeys(range(num_ranks), starting)
        self._window: dict[int, _Beat] = {}
        self._told_slow: set[int] = set()

    def tick(self) -> None:
        """Let the time since the last call pass, at most a second."""
        now = time.monotonic()
        self._now += min(now - self._ticked, _LONGEST_TICK)
        self._ticked = now

    def hear(self, rank: int, message: Mapping[str, Any]) -> None:
        """Take a heartbeat in; ranks send one only if they have moved."""
        self._beats[rank] = _Beat(
            message["step"],
            Activity(message["activity"]),
            waits=message["waits"],
            own_seconds=message["own_seconds"],
            heard=self._now,
        )

    def hang(self) -> str | None:
        """Describe the ranks that hang; None if there are none."""
        late: dict[int, _Beat] = {}
        for rank, beat in self._beats.items():
            is_long = beat.activity in _LONG and not beat.waits
            limit = max(3 * self._limit, _LONG_SECONDS) if is_long else self._limit
            if self._now - beat.heard > limit:
                late[rank] = beat
        hanging = {rank: beat for rank, beat in late.items() if not beat.waits}
        if not hanging and len(late) < len(self._beats):
            return None
        resume = "run again to resume from the latest checkpoint"
        if not hanging:
            first = min(late.values(), key=lambda beat: beat.heard)
            return (
                f"no rank has moved since step {first.step} for {self._age(first)}: all wait for "
                f"each other (is the network between them down?); {resume}"
            )
        whose = "; ".join(
            f"rank {rank} has not moved"
            + ("" if beat.activity == Activity.STARTING else f" since step {beat.step}")
            + f" for {self._age(beat)} (it was {beat.activity})"
            for rank, beat in list(hanging.items())[:3]
        )
        more = f"; and {len(hanging) - 3} more" if len(hanging) > 3 else ""
        waiting = {rank: beat for rank, beat in self._beats.items() if beat.waits}
        return f"{whose}{more}{_waiting(waiting, 'it' if len(hanging) == 1 else 'them')}; {resume}"

    def slow(self) -> str | None:
        """Describe a rank that is much slower than the others, once for each rank."""
        # Own work in the same steps, without waiting; on CUDA, the host's part of a step.
        if any(beat.activity == Activity.STARTING for beat in self._beats.values()):
            return None
        if not self._window:
            self._window = dict(self._beats)
        pairs = {rank: (self._window[rank], beat) for rank, beat in self._beats.items()}
        if any(
            last.step - first.step < _WINDOW_STEPS or last.heard - first.heard < _WINDOW_SECONDS
            for first, last in pairs.values()
        ):
            return None
        self._window = dict(self._beats)
        means = {
            rank: (last.own_seconds - first.own_seconds) / (last.step - first.step)
            for rank, (first, last) in pairs.items()
        }
        slowest = max(means, key=lambda rank: means[rank])
        others = median(mean for rank, mean in means.items() if rank != slowest)
        first, last = pairs[slowest]
        cost = (means[slowest] - others) * (last.step - first.step) / (last.heard - first.heard)
        if slowest in self._told_slow or means[slowest] < _SLOW * others or cost < _SLOW_SHARE:
            return None
        self._told_slow.add(slowest)
        return (
            f"rank {slowest} is slow: its part of a step takes {means[slowest]:.3g} s, that of the "
            f"other ranks {others:.3g} s (median), and they wait for it"
        )

    def _age(self, beat: _Beat) -> str:
        return duration(self._now - beat.heard)


def _waiting(beats: Mapping[int, _Beat], whom: str) -> str:
    """Say who waits, in which steps."""
    if not beats:
        return ""
    steps = " and ".join(map(str, sorted({beat.step + 1 for beat in beats.values()})))
    if len(beats) == 1:
        return f"; rank {next(iter(beats))} waits for {whom} in step {steps}"
    ranks = list(map(str, beats))
    if len(ranks) > 8:
        ranks = [*ranks[:2], f"... {ranks[-1]}"]
    return f"; ranks {', '.join(ranks)} wait for {whom} in step {steps}"
