"""What an objective makes of a batch: the inputs to show and the tokens to predict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Supervision:
    """Inputs and labels of one batch.

    Attributes:
        input_ids: int64 [num_rows, row_length]; what the model sees.
        positions: int64 [num_supervised]; where it predicts, in the flattened rows, ascending.
        labels: int64 [num_supervised]; what is right there.
    """

    input_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Vocabulary:
    """What objectives know of the tokenizer."""

    size: int
    mask_id: int
    special_ids: frozenset[int]
