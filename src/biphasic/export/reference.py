"""Reference outputs that an exported model must reproduce: hidden states, embeddings, token ids."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from biphasic.data.packing import Batching
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.export.source import Source
from biphasic.export.tokenizer import pair_ids
from biphasic.model.checks.contract import load_checked_encoder
from biphasic.model.compute.forward import batching_of
from biphasic.model.loading.build import load_encoder
from biphasic.seeds import stream
from biphasic.tasks.encoding import Encoder, encode_texts

Dtype = Literal["float32", "bfloat16"]

TEXTS = (
    "An encoder reads a sentence in both directions.",
    "Zwölf Boxkämpfer: 世界, naïve cafés & 3.14 😀",
    "def add(a, b):\n    return a + b  # two\tspaces",
    "again and again " * 800 + "the end",
    "",
)
PAIR = ("Who reads it?", "An encoder reads it, in both directions.")
_SHORT, _MIDDLE, _LONG = 5, 23, 48
_LONGEST = 1024
"""Longest sequence read, in tokens; longer ones would take minutes."""


@dataclass(frozen=True)
class Reference:
    """Outputs of the source model in biphasic.

    Attributes:
        batching: How the model reads sequences in biphasic.
        sequences: Token ids, of several lengths; one is longer than any window of up to 1,015.
        alone: Final states of each sequence on its own, fp32 [length, hidden_size].
        many: Final states of all sequences in one batch. They differ from `alone` where rotary
            frequencies depend on the longest sequence of a batch (Phi-3's long context).
        embedded: The texts of `TEXTS` that are short enough to embed quickly.
        embeddings: Means of their states, fp32 [num_texts, hidden_size].
        text_ids: Ids of each of `TEXTS`, cut to the longest input.
        pair_ids: Ids of `PAIR`.
        spelt: A text that spells the mask token.
        spelt_ids: Its ids as plain text.
    """

    batching: Batching
    hidden_size: int
    sequences: list[list[int]]
    alone: list[Tensor] = field(repr=False)
    many: list[Tensor] = field(repr=False)
    embedded: list[str]
    embeddings: Tensor = field(repr=False)
    text_ids: list[list[int]]
    pair_ids: list[int]
    spelt: str
    spelt_ids: list[int]

    @property
    def probe(self) -> list[int]:
        """The short sequence."""
        return self.sequences[0]


@torch.no_grad()
def read_reference(source: Source, *, dtype: Dtype) -> Reference:
    """Run a model as fine-tuning and evaluation do, and probe its attention.

    Weights are rounded to `dtype`.

    Raises:
        ModelError: It cannot be an encoder; the message names the layer that stays causal.
    """
    model = load_checked_encoder(source.folder)
    round_weights(model, dtype)
    tokenizer, limit = source.tokenizer, source.max_seqlen
    sequences = [each.tolist() for each in _sequences(tokenizer, model.config, limit=limit)]
    read, _ = encode_texts(TEXTS, tokenizer, max_seqlen=limit or 1 << 30)
    embedded = [text for text, ids in zip(TEXTS, read, strict=True) if len(ids) <= _LONGEST]
    outputs = _outputs(model, source, sequences=sequences, embedded=embedded)
    spelt = f"a {tokenizer.special_tokens['mask']} b"
    return Reference(
        batching=batching_of(model),
        hidden_size=outputs["embeddings"].shape[1],
        sequences=sequences,
        **outputs,
        embedded=embedded,
        text_ids=[ids.tolist() for ids in read],
        pair_ids=pair_ids(tokenizer, *PAIR),
        spelt=spelt,
        spelt_ids=[tokenizer.bos_id, *tokenizer.encode(spelt), tokenizer.eos_id],
    )


@torch.no_grad()
def read_double(source: Source, reference: Reference, *, dtype: Dtype) -> Reference:
    """Compute states and embeddings of a reference in fp64, where rounding is negligible.

    `dtype` is as in `read_reference`, which has probed the model.
    """
    model = load_encoder(source.folder, batching=reference.batching)
    round_weights(model, dtype)
    outputs = _outputs(
        model.double(), source, sequences=reference.sequences, embedded=reference.embedded
    )
    return replace(reference, **outputs)


def _outputs(
    model: PreTrainedModel, source: Source, *, sequences: list[list[int]], embedded: list[str]
) -> dict[str, Any]:
    encoder = Encoder(model.eval(), source.tokenizer.pad_id)
    ids = [np.array(sequence, dtype=np.int64) for sequence in sequences]
    hidden, spans = encoder.states(ids)
    cut, _ = encode_texts(embedded, source.tokenizer, max_seqlen=source.limits.longest_input)
    return {
        "alone": [_part(*encoder.states([sequence]), 0) for sequence in ids],
        "many": [_part(hidden, spans, number) for number in range(len(ids))],
        "embeddings": encoder.pooled(cut),
    }


@torch.no_grad()
def round_weights(model: PreTrainedModel, dtype: Dtype) -> None:
    """Round weights to a precision in place; they stay fp32 tensors."""
    if dtype == "float32":
        return
    for tensor in model.state_dict().values():  # shares memory with the model
        if tensor.is_floating_point():
            tensor.copy_(tensor.to(getattr(torch, dtype)))


def _part(hidden: Tensor, spans: NDArray[np.int64], number: int) -> Tensor:
    start, end = spans[number].tolist()
    return hidden[start:end].clone()


def _sequences(
    tokenizer: TextTokenizer, config: PretrainedConfig, *, limit: int | None
) -> list[NDArray[np.int64]]:
    """Draw token ids between BOS and EOS in three lengths, the last longer than short windows."""
    windows = [getattr(config, name, None) or 0 for name in ("sliding_window", "local_attention")]
    beyond = [window + 9 for window in windows if window + 9 <= _LONGEST]
    lengths = [min(length, limit or length) for length in (_SHORT, _MIDDLE, max(_LONG, *beyond, 0))]
    special = set(tokenizer.special_ids.values())
    plain = np.array(sorted(set(tokenizer.vocabulary().values()) - special), dtype=np.int64)
    sequences = []
    for number, length in enumerate(lengths):
        draws = stream("export", number).random_raw(length - 2) % np.uint64(len(plain))
        inner = plain[draws.astype(np.int64)]
        sequences.append(np.array([tokenizer.bos_id, *inner, tokenizer.eos_id], dtype=np.int64))
    return sequences
