"""Reads loss curves from `metrics.jsonl`, line by line into arrays.

A long run logs hundreds of thousands of lines; 32 bytes are kept per line.
"""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from biphasic.errors import DataError, reading
from biphasic.records import HeldoutLine, TrainingLine, parse_record

_SKIPPED = "the line is skipped"


@dataclass(frozen=True)
class Curve:
    """Loss against training, one point per evaluation or optimizer step."""

    steps: NDArray[np.int64]
    tokens: NDArray[np.int64]
    losses: NDArray[np.float64]
    phases: NDArray[np.int64]
    """Phase of each point; lines are not drawn across phases."""


class Points:
    """Points of a curve in logged order."""

    def __init__(self) -> None:
        self._whole = array("q")
        self._losses = array("d")

    def __len__(self) -> int:
        return len(self._losses)

    def add(self, *, step: int, tokens: int, loss: float, phase: int) -> None:
        """Add a point."""
        self._whole.extend((step, tokens, phase))
        self._losses.append(loss)

    @property
    def last_step(self) -> int:
        """Step of the last point; there must be one."""
        return self._whole[-3]

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return steps, tokens and phases as [num_points, 3], and losses."""
        whole = np.array(self._whole, dtype=np.int64).reshape(-1, 3)
        return whole, np.array(self._losses, dtype=np.float64)


@dataclass
class SegmentLines:
    """Losses logged by one segment."""

    training: dict[str, Points] = field(default_factory=lambda: defaultdict(Points))
    heldout: dict[str, Points] = field(default_factory=lambda: defaultdict(Points))


def read_lines(path: Path, *, where: str, problems: list[str]) -> SegmentLines:
    """Read `metrics.jsonl`; damaged lines are added to `problems` and skipped."""
    parsed = SegmentLines()
    with path.open(encoding="utf-8", errors="replace") as stream:
        for number, text in enumerate(stream, start=1):
            line = f"{where}:{number}"
            try:
                with reading(line, DataError, remedy=_SKIPPED):
                    _add_line(parsed, text, where=line)
            except DataError as error:
                problems.append(str(error))
    return parsed


def _add_line(parsed: SegmentLines, text: str, *, where: str) -> None:
    try:
        raw = json.loads(text)
    except ValueError as error:  # integers of thousands of digits raise it too
        raise DataError(f"{where}: damaged JSON ({error}); {_SKIPPED}") from None
    if isinstance(raw, dict) and "heldout" in raw:
        heldout = parse_record(HeldoutLine, raw, where=where, remedy=_SKIPPED)
        for objective, loss in heldout.heldout.items():
            points = parsed.heldout[objective]
            points.add(step=heldout.step, tokens=heldout.tokens, loss=loss, phase=0)
        return
    line = parse_record(TrainingLine, raw, where=where, remedy=_SKIPPED)
    points = parsed.training[line.objective]
    points.add(step=line.step, tokens=line.tokens, loss=line.loss, phase=line.phase)


def joined_curves(segments: Iterable[Mapping[str, Points]]) -> dict[str, Curve]:
    """Join the points of consecutive segments, by objective.

    A segment that was interrupted and resumed may log a step twice; the later line counts.
    """
    parts: dict[str, list[Points]] = defaultdict(list)
    for segment in segments:
        for objective, points in segment.items():
            if len(points):
                parts[objective].append(points)
    return {objective: _curve(arrays) for objective, arrays in parts.items()}


def _curve(parts: list[Points]) -> Curve:
    arrays = [points.arrays() for points in parts]
    whole = np.concatenate([integers for integers, _ in arrays])
    losses = np.concatenate([values for _, values in arrays])
    order = np.argsort(whole[:, 0], kind="stable")
    steps = whole[order, 0]
    kept = order[np.append(steps[1:] != steps[:-1], True)]
    return Curve(
        steps=whole[kept, 0].copy(),
        tokens=whole[kept, 1].copy(),
        losses=losses[kept],
        phases=whole[kept, 2].copy(),
    )
