"""Reads loss curves from `metrics.jsonl`, line by line into arrays.

A long run logs hundreds of thousands of lines; 32 bytes are kept per line.
"""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from biphasic.errors import DataError, reading
from biphasic.records import HeldoutLine, LossLine, parse_record

_SKIPPED = "the line is skipped"


@dataclass(frozen=True)
class Curve:
    """Loss against training, one point per evaluation or optimizer step."""

    steps: NDArray[np.int64]
    tokens: NDArray[np.int64]
    losses: NDArray[np.float64]
    phases: NDArray[np.int64]  # phase of each point; lines are not drawn across phases


LossKind = Literal["training", "heldout"]
Losses = Mapping[tuple[LossKind, str], Curve]  # by kind and objective
_Points = defaultdict[tuple[LossKind, str], tuple["array[int]", "array[float]"]]


def read_losses(path: Path, *, where: str, problems: list[str]) -> Losses:
    """Read a segment's losses in logged order."""
    # Damaged lines are added to `problems` and skipped.
    points: _Points = defaultdict(lambda: (array("q"), array("d")))
    with path.open(encoding="utf-8", errors="replace") as stream:
        for number, text in enumerate(stream, start=1):
            try:
                # Nearly all lines: a check in one call, as a long run logs hundreds of thousands.
                _add(points, LossLine.model_validate_json(text))
            except (ValidationError, OverflowError):
                line = f"{where}:{number}"
                try:
                    with reading(line, DataError, remedy=_SKIPPED):
                        _add(points, _checked(text, where=line))
                except DataError as error:
                    problems.append(str(error))
    curves: dict[tuple[LossKind, str], Curve] = {}
    for key, (integers, losses) in points.items():
        steps, tokens, phases = np.array(integers, dtype=np.int64).reshape(-1, 3).T
        curves[key] = Curve(steps, tokens, np.array(losses), phases)
    return curves


def _checked(text: str, *, where: str) -> LossLine | HeldoutLine:
    """Return a line of either kind, or raise what is wrong with it."""
    try:
        raw = json.loads(text)
    except ValueError as error:  # integers of thousands of digits raise it too
        raise DataError(f"{where}: damaged JSON ({error}); {_SKIPPED}") from None
    kind = HeldoutLine if isinstance(raw, dict) and "heldout" in raw else LossLine
    return parse_record(kind, raw, where=where, remedy=_SKIPPED)


def _add(points: _Points, line: LossLine | HeldoutLine) -> None:
    kind: LossKind
    if isinstance(line, HeldoutLine):
        kind, losses, phase = "heldout", line.heldout, 0
    else:
        kind, losses, phase = "training", {line.objective: line.loss}, line.phase
    integers = array("q", (line.step, line.tokens, phase))
    for objective, loss in losses.items():
        points[kind, objective][0].extend(integers)
        points[kind, objective][1].append(loss)


def joined_losses(segments: Iterable[Losses]) -> Losses:
    """Join the curves of consecutive segments."""
    # A segment that was interrupted and resumed may log a step twice; the later line counts.
    parts: dict[tuple[LossKind, str], list[Curve]] = defaultdict(list)
    for segment in segments:
        for key, curve in segment.items():
            parts[key].append(curve)
    return {key: _joined(curves) for key, curves in parts.items()}


def _joined(curves: list[Curve]) -> Curve:
    columns = [np.concatenate([getattr(c, f.name) for c in curves]) for f in fields(Curve)]
    order = np.argsort(columns[0], kind="stable")
    steps = columns[0][order]
    kept = order[np.append(steps[1:] != steps[:-1], True)]
    return Curve(*(column[kept] for column in columns))
