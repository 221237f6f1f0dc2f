"""Token classification: a linear head on the first token of each word, entity F1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray
from torch import Tensor, nn

from biphasic.data.tokenizer import TextTokenizer
from biphasic.tasks.encoding import Encoder, SplitScores, TokenIds, frame
from biphasic.tasks.metrics import entity_f1, sentence_token_f1
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, TaggedSentence, TaggingTask, TaskInfo

_LOST = -1


@dataclass(frozen=True, slots=True)
class _Sentences:
    """Sentences of a split; `positions` has each word's first token, or -1 where it was cut."""

    ids: tuple[str, ...]
    sequences: list[TokenIds]
    positions: list[NDArray[np.int64]]
    tags: list[NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class EncodedTagging:
    """A tagging task as token sequences with words aligned to tokens."""

    info: TaskInfo
    labels: tuple[str, ...]
    pad_id: int
    num_truncated: dict[str, int]
    splits: dict[str, _Sentences]

    @property
    def num_outputs(self) -> int:
        """Number of tags."""
        return len(self.labels)

    @property
    def num_train(self) -> int:
        """Number of training sentences."""
        return len(self.splits["train"].sequences)

    def loss(self, encoder: Encoder, head: nn.Module, indices: NDArray[np.int64]) -> Tensor:
        """Return the mean cross-entropy over words."""
        train = self.splits["train"]
        hidden, spans = encoder.states([train.sequences[index] for index in indices])
        rows = _word_rows([train.positions[index] for index in indices], spans)
        tags = np.concatenate([train.tags[index] for index in indices])
        kept = torch.from_numpy(rows[rows != _LOST]).to(hidden.device)
        labels = torch.from_numpy(tags[rows != _LOST]).to(hidden.device)
        total = F.cross_entropy(head(hidden.index_select(0, kept)), labels, reduction="sum")
        return total / max(1, len(labels))

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score validation and test: for each sentence its token F1."""
        return {split: self._evaluate(encoder, head, split) for split in SPLITS[1:]}

    def _evaluate(self, encoder: Encoder, head: nn.Module, split: str) -> SplitScores:
        sentences = self.splits[split]
        # A word that was cut is predicted `O`: where it belongs to an entity, that is a miss.
        predicted = [np.full(len(tags), self.labels.index("O")) for tags in sentences.tags]
        for indices, hidden, spans in encoder.batches(sentences.sequences):
            positions = [sentences.positions[index] for index in indices]
            rows = _word_rows(positions, spans)
            logits = head(hidden.index_select(0, torch.from_numpy(rows.clip(0)).to(hidden.device)))
            tags = logits.cpu().numpy().argmax(axis=1)
            borders = np.cumsum([len(words) for words in positions])[:-1]
            for index, given in zip(indices, np.split(tags, borders), strict=True):
                seen = sentences.positions[index] != _LOST
                predicted[index][seen] = given[seen]
        scores = sentence_token_f1(sentences.tags, predicted, num_labels=len(self.labels))
        metrics = {
            "entity_f1": entity_f1(self._names(sentences.tags), self._names(predicted)),
            "sentence_token_f1": float(scores.mean()),
        }
        return SplitScores(metrics, sentences.ids, scores)

    def _names(self, tags: Sequence[NDArray[np.int64]]) -> list[list[str]]:
        return [[self.labels[tag] for tag in sentence.tolist()] for sentence in tags]


def encode_tagging(
    task: TaggingTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
) -> EncodedTagging:
    """Tokenise a tagging task once, for every run on it."""
    splits, num_truncated = {}, {}
    for split, records in task.splits.items():
        sentences = _Sentences(tuple(record.id for record in records), [], [], [])
        num_truncated[split] = 0
        for record in records:
            sequence, positions = _align(record, tokenizer, max_seqlen=protocol.max_seqlen)
            sentences.sequences.append(sequence)
            sentences.positions.append(positions)
            sentences.tags.append(np.array(record.tags, dtype=np.int64))
            num_truncated[split] += int(positions[-1] == _LOST)
        splits[split] = sentences
    return EncodedTagging(
        info=task.info,
        labels=task.labels,
        pad_id=tokenizer.pad_id,
        num_truncated=num_truncated,
        splits=splits,
    )


def _align(
    record: TaggedSentence, tokenizer: TextTokenizer, *, max_seqlen: int
) -> tuple[TokenIds, NDArray[np.int64]]:
    """Join words by spaces, and find the first token of each by character offsets.

    Offsets may or may not count a leading space to its token, and a character cut into several
    tokens repeats in the offsets of each: the first token of a word is in every case the first
    that ends after the word's beginning.
    """
    ids, offsets = tokenizer.encode_offsets(" ".join(record.words))
    lengths = np.array([len(word) for word in record.words])
    word_ends = np.cumsum(lengths + 1) - 1
    word_starts = word_ends - lengths
    token_starts, token_ends = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
    first = np.searchsorted(token_ends, word_starts, side="right")
    # A word that the tokenizer drops (nothing but stripped characters) has no token of its own.
    has_token = first < min(len(ids), max_seqlen - 2)
    has_token[has_token] &= token_starts[first[has_token]] < word_ends[has_token]
    positions = np.where(has_token, first + 1, _LOST)  # + 1: BOS stands before
    return frame(ids, tokenizer, max_seqlen=max_seqlen), positions


def _word_rows(
    positions: Sequence[NDArray[np.int64]], spans: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the row of the states that stands for each word of a batch, or -1."""
    starts = np.repeat(spans[:, 0], [len(words) for words in positions])
    flat = np.concatenate(positions)
    return np.where(flat == _LOST, _LOST, flat + starts)
