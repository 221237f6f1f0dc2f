"""Rows whose tokens tell where they come from, and what objectives make of rows."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from biphasic.config import Config, parse_config
from biphasic.data.packing import lay_out
from biphasic.data.rows import Piece, RowBatch
from biphasic.errors import ConfigError
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.phases import Phase
from biphasic.objectives.supervision import Supervision, Vocabulary

BOS, EOS, PAD, MASK = 0, 1, 2, 3


class Run(Config):
    """The phases of a recipe."""

    phases: tuple[Phase, ...]


def phase_refusal(**phase: object) -> str:
    """Return the one line with which a phase is refused."""
    with pytest.raises(ConfigError) as caught:
        parse_config(Run, {"phases": [{"steps": 9, **phase}]}, where="x")
    return str(caught.value).removeprefix("x: ")


VOCABULARY = Vocabulary(size=320, mask_id=MASK, special_ids=frozenset({BOS, EOS, PAD, MASK}))


def supervise(
    objective: ObjectiveConfig, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
) -> Supervision:
    """Return the one part that these objectives make."""
    (part,) = objective.supervise(batch, vocabulary, mask_seed=mask_seed)
    return part


def numbered(piece: Piece) -> NDArray[np.int64]:
    """Return tokens that tell document and place, modulo the vocabulary."""
    return 4 + (piece.document * 7 + np.arange(piece.start, piece.end)) % 316


def batch_of(
    rows: list[list[Piece]],
    *,
    row_length: int,
    tokens: Callable[[Piece], NDArray[np.int64]] = numbered,
) -> RowBatch:
    """Lay out the tokens of pieces, each between BOS and EOS."""
    pieces = tuple(piece for row in rows for piece in row)
    sequences = [np.concatenate([[BOS], tokens(piece), [EOS]]) for piece in pieces]
    members, first = [], 0
    for row in rows:
        members.append(range(first, first + len(row)))
        first += len(row)
    packed = lay_out(sequences, members, row_length=row_length, pad_id=PAD)
    return RowBatch(packed, pieces, packed.spans + np.array([1, -1]))


def by_token(batch: RowBatch, supervision: Supervision) -> dict[tuple, tuple[int, int]]:
    """Return (shown, label) of each supervised token by epoch, document and place."""
    found = {}
    shown, labels = (
        supervision.rows.input_ids.reshape(-1),
        dict(zip(supervision.positions.tolist(), supervision.labels.tolist(), strict=True)),
    )
    for (start, end), piece in zip(batch.packed.spans.tolist(), batch.pieces, strict=True):
        for position in range(start, end):
            if position in labels:
                place = piece.start + position - start - 1
                key = (piece.epoch, piece.document, place)
                found[key] = (int(shown[position]), labels[position])
    assert len(found) == len(labels)
    return found
