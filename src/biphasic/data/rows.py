"""Rows of each step: a pure function of corpus, settings, `data_seed` and step.

Documents are taken in a seeded order, epoch after epoch, in windows of bounded size. Longer ones
are cut into chunks, which are packed by best fit; rows are put in seeded order, and steps take them
one after another. If the next phase has another `max_seqlen`, the unread rows of the window are
packed again, so every document is still read once per epoch.

With `random_length` rows, the documents of a window, each with its BOS and EOS, are one text. It is
cut into rows, and each row at a random place into two sequences, in which documents see each other.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from biphasic.data.corpus import Corpus
from biphasic.data.packing import PackedBatch, best_fit, lay_out
from biphasic.errors import ConfigError, DataError
from biphasic.seeds import permutation, permute, stream, uniforms

ROW_PLAN_VERSION = 1  # increase by hand whenever the same settings would give different rows
WINDOW_DOCUMENTS = 8192  # documents planned together: enough for 98 % fill, few enough for memory
NUM_SPECIAL = 2  # BOS and EOS of every document
SHORTEST = 12  # shortest sequence of `random_length` rows, in tokens (the study's, footnote 6)
# Whole documents kept apart, or one text cut at random places (as in the study).
RowKind = Literal["documents", "random_length"]


@dataclass(frozen=True, order=True)
class Piece:
    """A document, or a part of it: tokens `start` to `end`.

    In a plan of `random_length` rows, `start` and `end` count the document's BOS and EOS, and
    `continues` is true unless the piece is the first of its sequence.
    """

    epoch: int
    document: int
    start: int
    end: int
    continues: bool = False


@dataclass(frozen=True)
class BatchShape:
    """Consecutive steps with rows of the same shape."""

    max_seqlen: int
    rows_per_step: int
    num_steps: int


@dataclass(frozen=True)
class RowBatch:
    """Rows of a step."""

    packed: PackedBatch
    # Provenance of the text. A sequence has one piece if documents are kept apart.
    pieces: tuple[Piece, ...]
    # int64 [num_pieces, 2]; start and end of each piece in the flattened rows, without BOS and EOS.
    texts: NDArray[np.int64]

    @property
    def is_token(self) -> NDArray[np.bool_]:
        """A new array, bool [num_rows * row_length]; False for padding."""
        is_token = np.zeros(self.packed.input_ids.size, dtype=bool)
        for start, end in self.packed.spans.tolist():
            is_token[start:end] = True
        return is_token

    def sha256(self) -> bytes:
        """Hash of tokens and borders, equal for two arms if and only if they read the same."""
        content = hashlib.sha256(self.packed.input_ids.tobytes())
        content.update(self.packed.cu_seqlens.tobytes())
        return content.digest()

    def part(self, start: int, end: int) -> RowBatch:
        """Return rows `start` to `end` as a separate batch."""
        rows = self.texts[:, 0] // self.packed.row_length
        inside = np.flatnonzero((rows >= start) & (rows < end))
        return RowBatch(
            packed=self.packed.part(start, end),
            pieces=tuple(self.pieces[index] for index in inside.tolist()),
            texts=self.texts[inside] - start * self.packed.row_length,
        )


def check_shapes(shapes: Iterable[BatchShape], kind: RowKind) -> None:
    """Raise an error for rows that are too short for any text."""
    for shape in shapes:
        if shape.max_seqlen <= NUM_SPECIAL:
            raise ConfigError(f"max_seqlen {shape.max_seqlen} has no room beside BOS and EOS")
        if kind == "random_length" and shape.max_seqlen < 2 * SHORTEST:
            raise ConfigError(
                f"max_seqlen {shape.max_seqlen} has no room for two sequences of {SHORTEST} "
                "tokens; use rows: documents, or longer rows"
            )


class RowPlan:
    """The rows of every step of a run."""

    def __init__(
        self,
        lengths: NDArray[np.int64],
        shapes: Sequence[BatchShape],
        *,
        data_seed: int,
        window_documents: int = WINDOW_DOCUMENTS,
        kind: RowKind = "documents",
    ) -> None:
        """Prepare the plan; rows are planned on demand.

        `lengths` are int64 [num_documents], in tokens, without special tokens. Neighbouring
        `shapes` that are alike are merged. `window_documents` are planned together, which affects
        the rows.
        """
        check_shapes(shapes, kind)
        self.kind: RowKind = kind
        num_special = NUM_SPECIAL if kind == "random_length" else 0
        order = _DocumentOrder(lengths, data_seed, min(window_documents, len(lengths)), num_special)
        self._shapes: list[_ShapePlan] = []
        # A change of phase alone must not start a new window: arms that differ in their phases read
        # the same rows.
        alike = groupby(shapes, key=lambda shape: (shape.max_seqlen, shape.rows_per_step))
        for size, group in alike:
            merged = BatchShape(*size, num_steps=sum(shape.num_steps for shape in group))
            previous = self._shapes[-1] if self._shapes else None
            self._shapes.append(_ShapePlan(order, merged, previous, kind))

    def rows(self, step: int) -> list[list[Piece]]:
        """Return the pieces of each row that `step` reads."""
        plan, step = self._plan_of(step)
        return plan.rows(step * plan.shape.rows_per_step, plan.shape.rows_per_step)

    def max_seqlen(self, step: int) -> int:
        """Return the length of the rows that `step` reads."""
        return self._plan_of(step)[0].shape.max_seqlen

    def _plan_of(self, step: int) -> tuple[_ShapePlan, int]:
        """Return the plan with a step of the run, and the step's number in it."""
        for plan in self._shapes:
            if step < plan.shape.num_steps:
                return plan, step
            step -= plan.shape.num_steps
        raise DataError(f"the planned run ends {step + 1} steps earlier")


_Pieces = NDArray[np.int64]  # int64 [num_pieces, 4]: epoch, document, start and end of each
_NONE: _Pieces = np.empty((0, 4), dtype=np.int64)


class _DocumentOrder:
    """The infinite seeded order of documents: positions 0, 1, ... cover epoch after epoch."""

    def __init__(
        self, lengths: NDArray[np.int64], data_seed: int, window: int, num_special: int
    ) -> None:
        self.lengths, self.data_seed, self.window = lengths, data_seed, window
        self._num_special = num_special  # that count as a document's tokens

    def pieces(self, first_place: int) -> _Pieces:
        """Return the whole documents of the window that starts at a position."""
        places = np.arange(first_place, first_place + self.window)
        epochs, indices = np.divmod(places, len(self.lengths))
        documents = np.empty_like(indices)
        for epoch in np.unique(epochs).tolist():
            # A new order for each epoch, computed for these places alone: 1e8 documents need no
            # table of it.
            bits = stream("documents", self.data_seed, epoch)
            here = epochs == epoch
            documents[here] = permute(bits, indices[here], len(self.lengths))
        starts = np.zeros_like(documents)
        ends = self.lengths[documents] + self._num_special
        return np.stack([epochs, documents, starts, ends], axis=1)


@dataclass(frozen=True)
class _Window:
    """The rows of a window of documents."""

    pieces: _Pieces  # pieces of all rows, in reading order
    borders: NDArray[np.int64]  # int64 [num_rows + 1]; borders of the rows in `pieces`
    continues: NDArray[np.bool_]  # bool [num_pieces]; see `Piece`
    rest: _Pieces  # pieces that are too short for a row, which the next window reads first

    def __len__(self) -> int:
        return len(self.borders) - 1

    def rows(self, first: int, end: int) -> list[list[Piece]]:
        """Return consecutive rows, as far as they exist."""
        borders = self.borders[first : end + 1]
        inside = slice(borders[0], borders[-1])
        numbers, flags = self.pieces[inside].tolist(), self.continues[inside].tolist()
        pieces = [Piece(*piece, continues=flag) for piece, flag in zip(numbers, flags, strict=True)]
        return [pieces[start:stop] for start, stop in pairwise((borders - borders[0]).tolist())]


class _ShapePlan:
    """The rows of one shape, in windows of documents; window k is `k` windows after the first."""

    def __init__(
        self, order: _DocumentOrder, shape: BatchShape, previous: _ShapePlan | None, kind: RowKind
    ) -> None:
        self.shape = shape
        self._order, self._kind = order, kind
        carried, self._first_place = previous.remainder() if previous else (_NONE, 0)
        self._carried = [carried]  # what each planned window, and the next one, reads besides
        self._row_starts = [0]  # first row of each planned window, and of the next one
        # Two, because the rows of a step may begin in one window and end in the next.
        self._window = lru_cache(maxsize=2)(self._plan_window)

    def rows(self, first: int, count: int) -> list[list[Piece]]:
        """Return rows `first` to `first + count` of the shape."""
        rows: list[list[Piece]] = []
        window = self._window_of(first)
        while len(rows) < count:
            skipped = max(first - self._row_starts[window], 0)
            rows += self._window(window).rows(skipped, skipped + count - len(rows))
            window = self._window_of(self._row_starts[window] + len(self._window(window)))
        return rows

    def remainder(self) -> tuple[_Pieces, int]:
        """Return the unread pieces of the shape's last window, and the position after it."""
        consumed = self.shape.num_steps * self.shape.rows_per_step
        window = self._window_of(consumed)
        planned = self._window(window)
        unread = planned.pieces[planned.borders[consumed - self._row_starts[window]] :]
        # Chunks were cut for the old row length. Joined again, they are cut for the new one.
        unread = _join(np.concatenate([unread, planned.rest]))
        return unread, self._first_place + (window + 1) * self._order.window

    def _window_of(self, row: int) -> int:
        # How many rows a window has is known only when it is packed, so a first step in the middle
        # of a run plans all windows before it.
        while self._row_starts[-1] <= row:
            planned = self._window(len(self._row_starts) - 1)
            self._row_starts.append(self._row_starts[-1] + len(planned))
            self._carried.append(planned.rest)
        return bisect_right(self._row_starts, row) - 1

    def _plan_window(self, window: int) -> _Window:
        first_place = self._first_place + window * self._order.window
        whole = self._order.pieces(first_place)
        if self._kind == "random_length":
            whole = np.concatenate([self._carried[window], whole])
            return _cut_text(whole, self.shape.max_seqlen, self._order.data_seed, first_place)
        whole = np.concatenate([whole, self._carried[window]])
        chunks = _cut(whole, self.shape.max_seqlen - NUM_SPECIAL)
        lengths = chunks[:, 3] - chunks[:, 2] + NUM_SPECIAL
        items, borders = best_fit(lengths, capacity=self.shape.max_seqlen)
        bits = stream("rows", self._order.data_seed, first_place, self.shape.max_seqlen)
        # Best fit puts the longest documents into the first rows, and training should not read by
        # length.
        items, borders = _permute_bins(items, borders, permutation(bits, len(borders) - 1))
        return _Window(chunks[items], borders, np.zeros(len(items), dtype=bool), _NONE)


class RowReader:
    """Batches of a corpus by a plan."""

    def __init__(self, corpus: Corpus, plan: RowPlan, special_ids: dict[str, int]) -> None:
        self._corpus, self._plan = corpus, plan
        self._special_ids = special_ids

    def batch(self, step: int) -> RowBatch:
        """Return the batch of `step`."""
        return self.lay_out(self._plan.rows(step), max_seqlen=self._plan.max_seqlen(step))

    def lay_out(self, rows: Sequence[Sequence[Piece]], *, max_seqlen: int) -> RowBatch:
        """Read the tokens of given rows."""
        grouped = [[*_sequences(row)] for row in rows]
        sequences = [sequence for row in grouped for sequence in row]
        ends = np.cumsum([len(row) for row in grouped]).tolist()
        members = [range(end - len(row), end) for row, end in zip(grouped, ends, strict=True)]
        fragments = [[self._fragment(piece) for piece in sequence] for sequence in sequences]
        packed = lay_out(
            [np.concatenate([tokens for tokens, _, _ in parts]) for parts in fragments],
            members,
            row_length=max_seqlen,
            pad_id=self._special_ids["pad"],
        )
        pieces, texts = [], []
        for (place, _), parts in zip(packed.spans.tolist(), fragments, strict=True):
            starts = accumulate((len(tokens) for tokens, _, _ in parts), initial=place)
            for start, (_, piece, has_bos) in zip(starts, parts, strict=False):
                # Cuts at random places may fall beside BOS or EOS, and such a piece has no text.
                if piece.end > piece.start:  # not BOS or EOS alone
                    first = start + has_bos
                    texts.append((first, first + piece.end - piece.start))
                    pieces.append(piece)
        return RowBatch(packed, tuple(pieces), np.array(texts, dtype=np.int64).reshape(-1, 2))

    def _fragment(self, piece: Piece) -> tuple[NDArray[np.int64], Piece, bool]:
        """Return the tokens of a piece of the plan, its text, and whether it begins with BOS."""
        has_bos = has_eos = True
        if self._plan.kind == "random_length":
            length = int(self._corpus.lengths[piece.document])
            has_bos, has_eos = piece.start == 0, piece.end == length + NUM_SPECIAL
            start, end = max(piece.start - 1, 0), min(piece.end - 1, length)
            piece = Piece(piece.epoch, piece.document, start, end)
        num_tokens = piece.end - piece.start
        tokens = np.empty(has_bos + num_tokens + has_eos, dtype=np.int64)
        tokens[:has_bos] = self._special_ids["bos"]
        tokens[has_bos + num_tokens :] = self._special_ids["eos"]
        tokens[has_bos : has_bos + num_tokens] = self._corpus.tokens(
            piece.document, piece.start, piece.end
        )
        return tokens, piece, has_bos


def _sequences(row: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Yield the pieces of each sequence of a row."""
    starts = [index for index, piece in enumerate(row) if not piece.continues]
    yield from (list(row[start:end]) for start, end in pairwise([*starts, len(row)]))


def _cut_text(pieces: _Pieces, row_length: int, data_seed: int, place: int) -> _Window:
    """Cut pieces, read as one text, into rows of two sequences of random lengths.

    The lengths of a row's sequences sum to its length, and each is uniform from `SHORTEST`.

    Reference: `pack_dataset` with `random_size` in the public code of EuroBERT, the study's.
    """
    ends = np.cumsum(pieces[:, 3] - pieces[:, 2])
    num_rows = int(ends[-1]) // row_length
    widest = row_length - 2 * SHORTEST + 1
    draws = uniforms(stream("cuts", data_seed, place, row_length), num_rows)
    row_starts = row_length * np.arange(num_rows + 1)
    middles = row_starts[:-1] + SHORTEST + (draws * widest).astype(np.int64)
    starts = np.unique(np.concatenate([[0], ends[:-1], row_starts, middles]))
    starts = starts[starts < ends[-1]]
    owners = np.searchsorted(ends, starts, side="right")
    cut = pieces[owners]
    cut[:, 2] += starts - (ends - (pieces[:, 3] - pieces[:, 2]))[owners]
    cut[:, 3] = cut[:, 2] + np.diff(np.append(starts, ends[-1]))
    continues = ~np.isin(starts, np.concatenate([row_starts, middles]))
    borders = np.searchsorted(starts, row_starts)
    items, order = np.arange(borders[-1]), stream("rows", data_seed, place, row_length)
    items, shuffled = _permute_bins(items, borders, permutation(order, num_rows))
    return _Window(cut[items], shuffled, continues[items], cut[borders[-1] :])


def _cut(pieces: _Pieces, room: int) -> _Pieces:
    """Cut pieces into chunks of `room` tokens; the last chunk of each may be shorter."""
    counts = -((pieces[:, 2] - pieces[:, 3]) // room)
    chunks = np.repeat(pieces, counts, axis=0)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    chunks[:, 2] += room * (np.arange(len(chunks)) - first)
    chunks[:, 3] = np.minimum(chunks[:, 2] + room, chunks[:, 3])
    return chunks


def _permute_bins(
    items: NDArray[np.int64], borders: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Reorder bins returned by `best_fit`."""
    sizes = np.diff(borders)[order]
    permuted = np.concatenate([[0], np.cumsum(sizes)])
    shifts = np.repeat(borders[order] - permuted[:-1], sizes)
    return items[np.arange(len(items)) + shifts], permuted


def _join(chunks: _Pieces) -> _Pieces:
    """Undo `_cut` if neighbouring chunks of a document are both present; the result is sorted."""
    chunks = chunks[np.lexsort(chunks.T[::-1])]
    before, after = chunks[:-1], chunks[1:]
    goes_on = (before[:, :2] == after[:, :2]).all(axis=1) & (before[:, 3] == after[:, 2])
    joined = chunks[np.concatenate([[True], ~goes_on])]
    joined[:, 3] = chunks[np.concatenate([~goes_on, [True]]), 3]
    return joined
