"""Token classification: a linear head on the first token of each word, entity F1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray
from torch import Tensor, nn

from biphasic.data.packing import TokenIds
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.tasks.encoded.encoding import Encoder, frame
from biphasic.tasks.encoded.metrics import (
    NO_PREDICTION,
    SplitScores,
    entity_scores,
    sentence_token_f1,
)
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, ExampleTask, TaskInfo

_LOST = -1


@dataclass(frozen=True, slots=True)
class _Sentences:
    """Sentences of a split; `positions` has each word's first token.

    The position is -1 (a lost word) where the sentence was cut before the word or the tokenizer
    drops it.
    """

    ids: tuple[str, ...]
    sequences: list[TokenIds]
    positions: list[NDArray[np.int64]]
    tags: list[NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class EncodedTagging:
    """A tagging task as token sequences with words aligned to tokens.

    Attributes:
        num_truncated: By split, the number of truncated sentences, and as `SPLIT_lost_words` the
            number of lost words.
    """

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

    @property
    def trained_sequences(self) -> list[TokenIds]:
        """The sequences used in training."""
        return self.splits["train"].sequences

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
        """Score validation and test; a sentence's score is its token F1."""
        return {split: self._evaluate(encoder, head, split) for split in SPLITS[1:]}

    def _evaluate(self, encoder: Encoder, head: nn.Module, split: str) -> SplitScores:
        sentences = self.splits[split]
        predicted = [np.empty(0, dtype=np.int64)] * len(sentences.tags)
        by_sentence = word_logits(encoder, head, sentences.sequences, sentences.positions)
        for index, logits in by_sentence:
            predicted[index] = best_tags(logits, sentences.positions[index])
        token_f1 = sentence_token_f1(sentences.tags, predicted, num_labels=len(self.labels))
        entities = entity_scores(self._names(sentences.tags), self._names(predicted))
        metrics = {"entity_f1": entities.f1, "sentence_token_f1": float(token_f1.mean())}
        columns = {
            "sentence_token_f1": token_f1,
            "num_entities": entities.expected,
            "num_predicted": entities.predicted,
            "num_right": entities.right,
            "num_lost_words": np.array([_num_lost(words) for words in sentences.positions]),
        }
        return SplitScores(metrics, sentences.ids, token_f1, columns, entities.by_type)

    def _names(self, tags: Sequence[NDArray[np.int64]]) -> list[list[str]]:
        # For entity scores, a word without a prediction is outside every entity.
        names = {NO_PREDICTION: "O", **dict(enumerate(self.labels))}
        return [[names[tag] for tag in sentence.tolist()] for sentence in tags]


def word_logits(
    encoder: Encoder,
    head: nn.Module,
    sequences: Sequence[TokenIds],
    positions: Sequence[NDArray[np.int64]],
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Run sentences through a model, longest first.

    `positions` are the first tokens of the words of each sentence, -1 for lost words.

    Yields:
        The index of the sentence and the logits of its words, [num_words, num_tags]. The logits of
        lost words are meaningless.
    """
    for indices, hidden, spans in encoder.batches(sequences):
        chosen = [positions[index] for index in indices]
        rows = torch.from_numpy(_word_rows(chosen, spans).clip(0)).to(hidden.device)
        logits = head(hidden.index_select(0, rows)).cpu().numpy()
        borders = np.cumsum([len(words) for words in chosen])[:-1]
        yield from zip(indices.tolist(), np.split(logits, borders), strict=True)


def best_tags(logits: NDArray[np.floating], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the tag of each word of a sentence, `NO_PREDICTION` for lost words."""
    return np.where(positions == _LOST, NO_PREDICTION, logits.argmax(axis=1))


def encode_tagging(
    task: ExampleTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
) -> EncodedTagging:
    """Tokenise a tagging task once, for every run on it."""
    splits, num_truncated = {}, {}
    for split, records in task.splits.items():
        sentences = _Sentences(tuple(record.id for record in records), [], [], [])
        num_cut = num_lost = 0
        for record in records:
            ids, positions = align_words(record.words, tokenizer, max_seqlen=protocol.max_seqlen)
            sentences.sequences.append(frame(ids, tokenizer, max_seqlen=protocol.max_seqlen))
            sentences.positions.append(positions)
            sentences.tags.append(np.array(record.tags, dtype=np.int64))
            num_cut += len(ids) + 2 > protocol.max_seqlen
            num_lost += _num_lost(positions)
        splits[split] = sentences
        num_truncated |= {split: num_cut, f"{split}_lost_words": num_lost}
    return EncodedTagging(
        info=task.info,
        labels=task.labels,
        pad_id=tokenizer.pad_id,
        num_truncated=num_truncated,
        splits=splits,
    )


def align_words(
    words: Sequence[str], tokenizer: TextTokenizer, *, max_seqlen: int
) -> tuple[list[int], NDArray[np.int64]]:
    """Join words with spaces, and find the first token of each by character offsets.

    Some tokenizers count a leading space as part of the token, and a character split into several
    tokens repeats in the offsets of each. In every case the first token of a word is the first one
    that ends after the word's start.
    """
    ids, offsets = tokenizer.encode_offsets(" ".join(words))
    lengths = np.array([len(word) for word in words])
    word_ends = np.cumsum(lengths + 1) - 1
    word_starts = word_ends - lengths
    token_starts, token_ends = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
    first = np.searchsorted(token_ends, word_starts, side="right")
    # A word that the tokenizer drops (only stripped characters) has no token of its own.
    has_token = first < min(len(ids), max_seqlen - 2)
    has_token[has_token] &= token_starts[first[has_token]] < word_ends[has_token]
    positions = np.where(has_token, first + 1, _LOST)  # + 1 for BOS
    return ids, positions


def _num_lost(positions: NDArray[np.int64]) -> int:
    return int((positions == _LOST).sum())


def _word_rows(
    positions: Sequence[NDArray[np.int64]], spans: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the state row of each word of a batch, or -1."""
    starts = np.repeat(spans[:, 0], [len(words) for words in positions])
    flat = np.concatenate(positions)
    return np.where(flat == _LOST, _LOST, flat + starts)
