"""Rows of the pairs of a step: a pure function of pairs, settings, `data_seed` and step.

Pairs are taken in a seeded order, epoch after epoch. A text that several pairs of a step share is
read once in each role. Texts are tokenised when they are read. Some queries may be held out, by
their hash: all pairs of a query are on one side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from biphasic.data.building.selection import CorpusSplit, digest_of, split_of
from biphasic.data.packing import pack_sequences
from biphasic.data.pairs.folder import Pairs
from biphasic.data.rows import Piece, RowBatch
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError
from biphasic.seeds import permute, stream

_ROW_MULTIPLE = 16
"""Rows are as long as the longest text of a step, rounded up to this many tokens."""

_FRAME = 2  # tokens around each text


@dataclass(frozen=True)
class PairReading:
    """How a phase reads pairs.

    Attributes:
        folder: Folder of the pairs.
        batch: Pairs per step.
        prompts: Text before each query, and before each document.
        heldout_fraction: Share of the queries, by hash, whose pairs are held out.
        hard_negatives: Most negatives of a pair that are read; None for all.
        margins: Whether a teacher's margins of positives over negatives are needed.
    """

    folder: Path
    batch: int
    prompts: tuple[str, str]
    heldout_fraction: float
    hard_negatives: int | None = None
    margins: bool = False

    @property
    def most_texts(self) -> int:
        """Texts of a step, at most; without a limit one negative of each pair is assumed."""
        negatives = 1 if self.hard_negatives is None else self.hard_negatives
        return self.batch * (2 + negatives)


@dataclass(frozen=True)
class PairBatch(RowBatch):
    """Rows of the different texts of a step: its queries, and after them its documents.

    Attributes:
        queries: int64 [num_queries]; rows of the texts in the folder of pairs.
        documents: int64 [num_documents]; positives and negatives, likewise.
        pairs: int64 [num_pairs, 2]; query and positive of each pair, as indices of the two.
        vectors: float32 [num_texts, width], a teacher's; None without one.
        is_positive: bool [num_queries, num_documents]; whether they are a pair, of any step.
        triples: int64 [num_margins, 3]; query, positive and negative, as indices of the two.
        margins: float32 [num_margins]; a teacher's score of the positive minus the negative's.
            None are read unless they are needed.
    """

    queries: NDArray[np.int64]
    documents: NDArray[np.int64]
    pairs: NDArray[np.int64]
    vectors: NDArray[np.float32] | None
    is_positive: NDArray[np.bool_]
    triples: NDArray[np.int64]
    margins: NDArray[np.float32]


def count_cut(
    pairs: Pairs, tokenizer: TextTokenizer, *, prompts: tuple[str, str], max_seqlen: int
) -> tuple[int, int]:
    """Return how many texts are longer than a row with their prompts, and how many there are."""
    negatives = [row for number in range(len(pairs)) for row in pairs.negatives(number)]
    documents = np.concatenate([pairs.positives, np.array(negatives, dtype=np.int64)])
    num_cut, num_texts = 0, 0
    for prompt, rows in zip(prompts, (pairs.queries, documents), strict=True):
        encoded = tokenizer.encode_many([prompt + text for text in pairs.texts(np.unique(rows))])
        num_cut += sum(len(ids) > max_seqlen - _FRAME for ids in encoded)
        num_texts += len(encoded)
    return num_cut, num_texts


def chosen_pairs(pairs: Pairs, heldout_fraction: float, split: CorpusSplit) -> NDArray[np.int64]:
    """Return the numbers of the pairs of a split, ascending."""
    if not heldout_fraction:
        return np.arange(len(pairs) if split == "train" else 0)
    queries, of_pair = np.unique(pairs.queries, return_inverse=True)
    splits = [split_of(digest_of(text), heldout_fraction) for text in pairs.texts(queries)]
    return np.flatnonzero((np.array(splits) == split)[of_pair])


class PairReader:
    """Batches of pairs for a phase."""

    def __init__(
        self,
        pairs: Pairs,
        tokenizer: TextTokenizer,
        reading: PairReading,
        *,
        first_place: int,
        max_seqlen: int,
        data_seed: int,
        split: CorpusSplit = "train",
    ) -> None:
        """Prepare reading; `first_place` counts the pairs that earlier phases have read."""
        self._chosen = chosen_pairs(pairs, reading.heldout_fraction, split)
        if reading.batch > len(self._chosen):
            raise ConfigError(
                f"batch: {reading.batch:,} is more than the {len(self._chosen):,} pairs of "
                f"{pairs.folder}"
            )
        self._pairs, self._tokenizer, self._reading = pairs, tokenizer, reading
        self._first_place = first_place
        self._max_seqlen, self._data_seed = max_seqlen, data_seed

    def batch(self, step: int) -> PairBatch:
        """Return the batch of a step of the phase."""
        place = self._first_place + step * self._reading.batch
        numbers, epoch = self._numbers(place), place // len(self._chosen)
        negatives = [row for number in numbers.tolist() for row in self._negatives(number)]
        queries, owners = np.unique(self._pairs.queries[numbers], return_inverse=True)
        positives = self._pairs.positives[numbers]
        documents = np.unique(np.concatenate([positives, np.array(negatives, dtype=np.int64)]))
        codes = queries[:, None] * self._pairs.num_texts + documents
        known = self._pairs.known  # sorted, so that a step sorts nothing
        places = np.searchsorted(known, codes).clip(max=len(known) - 1)
        sequences = self._sequences(queries, documents)
        row_length = -(-max(map(len, sequences)) // _ROW_MULTIPLE) * _ROW_MULTIPLE
        packed = pack_sequences(
            sequences,
            row_length=min(row_length, self._max_seqlen),
            pad_id=self._tokenizer.pad_id,
        )
        rows, vectors = np.concatenate([queries, documents]), self._pairs.vectors
        triples, margins = self._margins(numbers, queries, documents)
        return PairBatch(
            packed=packed,
            pieces=tuple(
                Piece(epoch, row, 0, len(sequence) - 2)
                for row, sequence in zip(rows.tolist(), sequences, strict=True)
            ),
            texts=packed.spans + np.array([1, -1]),
            queries=queries,
            documents=documents,
            pairs=np.stack([owners, np.searchsorted(documents, positives)], axis=1),
            is_positive=known[places] == codes,
            vectors=None if vectors is None else vectors[rows],
            triples=triples,
            margins=margins,
        )

    def _margins(
        self, numbers: NDArray[np.int64], queries: NDArray[np.int64], documents: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return triples and their margins, by the scores of pairs or else by vectors."""
        triples: list[tuple[int, int, int]] = []
        margins: list[float] = []
        vectors = self._pairs.vectors
        for number in numbers.tolist() if self._reading.margins else ():
            query, positive = int(self._pairs.queries[number]), int(self._pairs.positives[number])
            negatives, scores = self._negatives(number), self._pairs.scores(number)
            if not scores and vectors is not None:
                scores = (vectors[[positive, *negatives]] @ vectors[query]).tolist()
            for negative, score in zip(negatives, scores[1:], strict=False):
                triples.append((query, positive, negative))
                margins.append(scores[0] - score)
        found = np.array(triples, dtype=np.int64).reshape(-1, 3).T
        sides = (queries, documents, documents)
        places = [np.searchsorted(*both) for both in zip(sides, found, strict=True)]
        return np.stack(places, axis=1), np.array(margins, dtype=np.float32)

    def _numbers(self, place: int) -> NDArray[np.int64]:
        """Return the pairs of a batch; it may end an epoch and begin the next."""
        places = np.arange(place, place + self._reading.batch)
        epochs, indices = np.divmod(places, len(self._chosen))
        shuffle = partial(stream, "training pairs", self._data_seed)
        parts = [
            permute(shuffle(epoch), indices[epochs == epoch], len(self._chosen))
            for epoch in np.unique(epochs).tolist()
        ]
        return self._chosen[np.concatenate(parts)]

    def _negatives(self, number: int) -> list[int]:
        return self._pairs.negatives(number)[: self._reading.hard_negatives]

    def _sequences(
        self, queries: NDArray[np.int64], documents: NDArray[np.int64]
    ) -> list[NDArray[np.int64]]:
        """Return the tokens of texts after their prompts, framed, and cut to fit."""
        texts = [
            prompt + text
            for prompt, rows in zip(self._reading.prompts, (queries, documents), strict=True)
            for text in self._pairs.texts(rows)
        ]
        begin, end, room = self._tokenizer.bos_id, self._tokenizer.eos_id, self._max_seqlen - _FRAME
        encoded = self._tokenizer.encode_many(texts)
        return [np.array([begin, *ids[:room], end], dtype=np.int64) for ids in encoded]
