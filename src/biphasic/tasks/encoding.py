"""Token sequences of a task, and running rows of them through a model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from biphasic.data.packing import TokenIds, lengths_of, pack_sequences
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import TrainingError
from biphasic.model.compute.forward import (
    Pooling,
    batching_of,
    hidden_states,
    padded_states,
    pooled,
)
from biphasic.model.compute.layers import recorded_states
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import HeadRecord
from biphasic.training.memory import release_excess

# Training rows are as long as the batch's longest sequence, rounded up to this many tokens.
# Few lengths of rows, so that kernels and allocators meet the same shapes again.
_ROW_MULTIPLE = 16
# A bound on the memory of a batch; results do not depend on it but by rounding.
_EVALUATION_TOKENS = 4096
LongTexts = Literal["mean", "max", "truncate"]  # how texts that are too long for a model are read


@dataclass(frozen=True, slots=True)
class Encoder:
    """A model on sequences, packed or padded as it was loaded."""

    model: PreTrainedModel
    pad_id: int
    watch: Callable[[int, int], None] = lambda *_: None
    causal: bool = False
    pooling: Pooling = "mean"
    layers: tuple[int, ...] = ()  # those read side by side, 0 for embeddings; () for the last

    @property
    def width(self) -> int:
        """The number of values of a state."""
        return self.model.config.hidden_size * max(1, len(self.layers))

    def states(
        self, sequences: Sequence[TokenIds], *, row_multiple: int = _ROW_MULTIPLE
    ) -> tuple[Tensor, NDArray[np.int64]]:
        """Return states in fp32, [num_tokens, width], and spans, int64 [num_sequences, 2]."""
        if not self.layers:
            return self._last_states(sequences, row_multiple)
        with recorded_states(self.model) as recorded:
            last, spans = self._last_states(sequences, row_multiple)
        inner = [states.flatten(0, 1).float() for states in recorded[:-1]]
        every = [*inner, last]  # after the final norm, as transformers' `hidden_states`
        return torch.cat([every[layer] for layer in self.layers], dim=1), spans

    def _last_states(
        self, sequences: Sequence[TokenIds], row_multiple: int
    ) -> tuple[Tensor, NDArray[np.int64]]:
        if batching_of(self.model) == "padded":
            hidden, spans = padded_states(self.model, sequences, pad_id=self.pad_id)
            return hidden.float(), spans
        longest = max(len(sequence) for sequence in sequences)
        row_length = -(-longest // row_multiple) * row_multiple
        # Several short sequences share a row, so little padding is computed.
        batch = pack_sequences(sequences, row_length=row_length, pad_id=self.pad_id)
        return hidden_states(self.model, batch, causal=self.causal).float(), batch.spans

    def batches(
        self, sequences: Sequence[TokenIds], *, batch_tokens: int | None = None
    ) -> Iterator[tuple[NDArray[np.int64], Tensor, NDArray[np.int64]]]:
        """Yield indices of sequences, longest first, and their states and spans as in `states`."""
        # Sorted by length, the sequences of a batch are nearly equal, so that rows as long as the
        # longest hold little padding. A sequence above `batch_tokens` is a batch of its own.
        lengths = lengths_of(sequences)
        order = np.argsort(-lengths, kind="stable")
        limit = batch_tokens or _EVALUATION_TOKENS
        start = 0
        while start < len(order):
            count = max(1, limit // int(lengths[order[start]]))
            indices = order[start : start + count]
            hidden, spans = self.states([sequences[index] for index in indices], row_multiple=1)
            # Scores of NaN would be ranks and maxima without meaning, and no error.
            if not bool(torch.isfinite(hidden).all()):
                raise TrainingError("the model's states are not finite")
            yield indices, hidden, spans
            release_excess()
            start += count
            self.watch(min(start, len(order)), len(order))

    def pooled(self, sequences: Sequence[TokenIds], *, batch_tokens: int | None = None) -> Tensor:
        """Return the vector of each sequence, [num_sequences, width]; usually its mean."""
        device = self.model.device
        vectors = torch.empty(len(sequences), self.width, device=device)
        for indices, hidden, spans in self.batches(sequences, batch_tokens=batch_tokens):
            places = torch.from_numpy(indices).to(device)
            vectors[places] = pooled(hidden, spans, pooling=self.pooling)
        return vectors


@dataclass(frozen=True)
class FinetunedModel:
    """A fine-tuned model, ready to predict."""

    record: HeadRecord
    protocol: FinetuneProtocol  # how its inputs are encoded
    tokenizer: TextTokenizer
    encoder: Encoder
    head: nn.Module  # takes pooled or single states in fp32
    long_texts: LongTexts | None = None

    def windows(self, ids: Sequence[int]) -> list[tuple[int, TokenIds]]:
        """Return where each window of a text starts, and its tokens between BOS and EOS."""
        begin, end, protocol = [self.tokenizer.bos_id], [self.tokenizer.eos_id], self.protocol
        limits = {"max_seqlen": protocol.max_seqlen, "overlap": protocol.window_overlap}
        return windows_of(ids, begin, end, **limits)


def token_ids(sequences: Sequence[TokenIds]) -> TokenIds:
    """Return the distinct tokens of sequences, in ascending order."""
    return np.flatnonzero(np.bincount(np.concatenate(sequences)))


def head_layers(hidden_size: int, num_outputs: int, *, is_dense: bool) -> nn.Module:
    """Return the layers of a head; `is_dense` puts a layer with a GELU before the linear one."""
    classifier = nn.Linear(hidden_size, num_outputs)
    if not is_dense:
        return classifier
    layers = {"dense": nn.Linear(hidden_size, hidden_size), "activation": nn.GELU()}
    return nn.Sequential(OrderedDict({**layers, "classifier": classifier}))


def new_head(
    hidden_size: int, num_outputs: int, *, is_dense: bool = False, generator: torch.Generator
) -> nn.Module:
    """Return a head with weights from normal(0, 0.02) and zero biases; none for 0 outputs."""
    if not num_outputs:
        return nn.Identity()
    head = head_layers(hidden_size, num_outputs, is_dense=is_dense)
    for parameter in head.parameters():
        if parameter.ndim == 1:
            nn.init.zeros_(parameter)
        else:
            # 0.02 as BERT and its successors initialise heads (`initializer_range`).
            nn.init.normal_(parameter, 0.0, 0.02, generator=generator)
    return head


def frame(ids: Sequence[int], tokenizer: TextTokenizer, *, max_seqlen: int) -> TokenIds:
    """Put ids between BOS and EOS, cut to fit."""
    return np.array([tokenizer.bos_id, *ids[: max_seqlen - 2], tokenizer.eos_id], dtype=np.int64)


def encode_texts(
    texts: Sequence[str], tokenizer: TextTokenizer, *, max_seqlen: int
) -> tuple[list[TokenIds], list[bool]]:
    """Return the framed sequence of each text, and which were cut."""
    encoded = tokenizer.encode_many(texts)
    cut = [len(ids) + 2 > max_seqlen for ids in encoded]
    return [frame(ids, tokenizer, max_seqlen=max_seqlen) for ids in encoded], cut


def are_long(
    texts: Sequence[str], encode: Callable[[Sequence[str]], list[list[int]]], *, room: int
) -> list[bool]:
    """Return which texts have more tokens than there is room for, without tokenising short ones."""
    # A token has at least one byte. Only a normalizer that lengthens texts can make more of them:
    # such a text is missed here, and found when it is read.
    may_be_long = [len(text.encode()) > room for text in texts]
    lengths = map(len, encode([*compress(texts, may_be_long)]))
    return [is_long and next(lengths) > room for is_long in may_be_long]


def window_borders(num_tokens: int, capacity: int, *, overlap: int) -> list[tuple[int, int]]:
    """Cover a text with windows of at most `capacity` tokens; neighbours share `overlap`."""
    borders = [(0, min(capacity, num_tokens))]
    while borders[-1][1] < num_tokens:
        start = borders[-1][1] - overlap
        borders.append((start, min(start + capacity, num_tokens)))
    return borders


def windows_of(
    ids: Sequence[int], begin: Sequence[int], end: Sequence[int], *, max_seqlen: int, overlap: int
) -> list[tuple[int, TokenIds]]:
    """Return where each window of a text starts, and its tokens between `begin` and `end`."""
    # Windows overlap by at most half, so no token is in three of them.
    capacity = max_seqlen - len(begin) - len(end)
    borders = window_borders(len(ids), capacity, overlap=min(overlap, capacity // 2))
    return [
        (start, np.array([*begin, *ids[start:stop], *end], dtype=np.int64))
        for start, stop in borders
    ]


def over_windows(values: Tensor, windows: Sequence[Sequence[TokenIds]], how: str) -> Tensor:
    """Return the `mean` or `max` of the values of each text's windows, [num_texts, width]."""
    numbers = torch.tensor([len(of_text) for of_text in windows], device=values.device)
    return torch.segment_reduce(values, how, lengths=numbers)
