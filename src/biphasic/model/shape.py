"""The matrices of a model, as far as their cost goes: FLOPs follow from these and the rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from biphasic.data.packing import PackedBatch
from biphasic.model.presets import Architecture


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What an update costs, in weights and widths.

    Attributes:
        body: Weights that a token is multiplied with: of experts those that it is sent to, of
            shared layers as often as they run.
        head: Weights that every supervised token is multiplied with.
        attention_width: Query heads times their dimension, in each layer.
        reaches: How many tokens a layer sees on a side of each, None for all; and how many layers
            do so.
    """

    body: int
    head: int
    attention_width: int
    reaches: tuple[tuple[int | None, int], ...]

    def forward_flops(self, rows: PackedBatch, *, supervised_tokens: int, causal: bool) -> int:
        """Count the operations of matrix products in one forward pass: two per multiply-add.

        Attention is counted by the true lengths of the sequences and the windows of the layers;
        norms, softmax and look-ups are left out.
        """
        lengths = (rows.spans[:, 1] - rows.spans[:, 0]).astype(np.int64)
        pairs = sum(count * _pairs(lengths, reach, causal=causal) for reach, count in self.reaches)
        weights = self.body * int(lengths.sum()) + self.head * supervised_tokens
        return 2 * weights + 2 * 2 * self.attention_width * pairs


def architecture_shape(architecture: Architecture, *, vocab_size: int) -> ModelShape:
    """Return the shape of a preset's model, by arithmetic alone."""
    width = architecture.hidden_size
    key_value_width = width // architecture.num_heads * architecture.num_key_value_heads
    matrices = 2 * width * width + 2 * width * key_value_width
    matrices += 3 * width * architecture.intermediate_size
    return ModelShape(
        body=architecture.num_layers * matrices,
        head=width * vocab_size,
        attention_width=width,
        reaches=((None, architecture.num_layers),),
    )


def _pairs(lengths: np.ndarray, reach: int | None, *, causal: bool) -> int:
    """Count the pairs of tokens that see each other."""
    seen = lengths if reach is None else np.minimum(lengths, reach + 1)
    # The first tokens see ever more before them and themselves, the others `seen` each.
    before = int((seen * (seen + 1) // 2 + (lengths - seen) * seen).sum())
    return before if causal else 2 * before - int(lengths.sum())
