"""Packing of whole sequences, separated by `cu_seqlens`, into rows of fixed capacity."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from biphasic.errors import DataError

TokenIds = NDArray[np.int64]  # token ids of a sequence, int64 [num_tokens]
Attention = Literal["bidirectional", "causal"]  # which tokens of a sequence each token sees
# Several sequences per row, kept apart by our attention function; or one sequence per row, padded
# to the longest, with the model's own attention.
Batching = Literal["packed", "padded"]


@dataclass(frozen=True)
class PackedBatch:
    """Rows of packed sequences."""

    input_ids: NDArray[np.int64]  # int64 [num_rows, row_length]
    position_ids: NDArray[np.int64]  # int64 [num_rows, row_length]; restart at 0 for every sequence
    # int32 [num_segments + 1]; borders in the flattened rows. The padding at the end of a row is a
    # separate segment, so every token belongs to exactly one.
    # int32, which torch's variable-length kernel requires.
    cu_seqlens: NDArray[np.int32]
    # int64 [num_sequences, 2]; start and end of each sequence in the flattened rows, in input
    # order.
    spans: NDArray[np.int64]

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.input_ids.shape[0]

    @property
    def row_length(self) -> int:
        """Length of a row in tokens."""
        return self.input_ids.shape[1]

    @property
    def max_seqlen(self) -> int:
        """Length of the longest segment in tokens."""
        return int(np.diff(self.cu_seqlens).max())

    @property
    def num_tokens(self) -> int:
        """Number of tokens without padding."""
        return int((self.spans[:, 1] - self.spans[:, 0]).sum())

    def part(self, start: int, end: int) -> PackedBatch:
        """Return rows `start` to `end`."""
        first, last = start * self.row_length, end * self.row_length
        borders, spans = self.cu_seqlens, self.spans
        return PackedBatch(
            input_ids=self.input_ids[start:end],
            position_ids=self.position_ids[start:end],
            cu_seqlens=borders[(borders >= first) & (borders <= last)] - np.int32(first),
            spans=spans[(spans[:, 0] >= first) & (spans[:, 0] < last)] - first,
        )


def best_fit(
    lengths: NDArray[np.int64], *, capacity: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Assign items to bins by best-fit decreasing.

    Longest items come first (ties in input order), each into the fullest bin with room; of equally
    full bins, into the one filled last.

    Args:
        lengths: int64 [num_items]; each between 1 and `capacity`.
        capacity: Size of a bin.

    Returns:
        Items of all bins in turn, as indices into `lengths`; and int64 [num_bins + 1], the borders
        of the bins in them.

    Reference: Johnson 1973, "Near-optimal bin packing algorithms"; used for packing of documents
    in Ding et al. 2024, arXiv:2404.10830, section 3.
    """
    if len(lengths) and int(lengths.max()) > capacity:
        raise DataError(f"a sequence of {int(lengths.max())} tokens does not fit in {capacity}")
    sizes, counts = np.unique(lengths, return_counts=True)
    bins = _place(sizes[::-1].tolist(), counts[::-1].tolist(), capacity=capacity)
    # Stable sorts: rows are part of identities, so ties must not depend on the platform.
    longest_first = np.argsort(-lengths, kind="stable")
    items = longest_first[np.argsort(bins, kind="stable")]
    return items, np.concatenate([[0], np.cumsum(np.bincount(bins))])


def _place(sizes: list[int], counts: list[int], *, capacity: int) -> NDArray[np.int64]:
    """Return the bin of each item, largest first; bins are numbered as they are opened."""
    # Items of equal size are placed together: a bin that takes one is then the fullest with room
    # for the next, until it has no room.
    visited: list[int] = []
    taken: list[int] = []
    num_bins = 0
    bins_by_room: dict[int, list[int]] = {}
    rooms: list[int] = []  # distinct remaining capacities of bins, sorted
    for size, count in zip(sizes, counts, strict=True):
        left = count
        while left:
            place = bisect_left(rooms, size)
            is_new = place == len(rooms)
            room = capacity if is_new else rooms[place]
            items_per_bin = min(room // size, left)
            needed = left // items_per_bin
            if is_new:
                bins = list(range(num_bins, num_bins + needed))
                num_bins += needed
            else:
                bins = bins_by_room[room][: -needed - 1 : -1]
                del bins_by_room[room][-needed:]
                if not bins_by_room[room]:
                    del rooms[place]
            visited += bins
            taken += [items_per_bin] * len(bins)
            left -= items_per_bin * len(bins)
            if room_left := room - items_per_bin * size:
                if not bins_by_room.setdefault(room_left, []):
                    insort(rooms, room_left)
                bins_by_room[room_left] += bins
    return np.repeat(np.array(visited, dtype=np.int64), taken)


def lay_out(
    sequences: Sequence[NDArray[np.integer]],
    rows: Sequence[Sequence[int]],
    *,
    row_length: int,
    pad_id: int,
) -> PackedBatch:
    """Write sequences into rows; `rows` are the indices of each row's sequences, in order."""
    input_ids = np.full((len(rows), row_length), pad_id, dtype=np.int64)
    position_ids = np.zeros((len(rows), row_length), dtype=np.int64)
    spans = np.zeros((len(sequences), 2), dtype=np.int64)
    borders = [0]
    for row, members in enumerate(rows):
        cursor = 0
        for member in members:
            sequence = sequences[member]
            end = cursor + len(sequence)
            input_ids[row, cursor:end] = sequence
            position_ids[row, cursor:end] = np.arange(len(sequence))
            spans[member] = (row * row_length + cursor, row * row_length + end)
            borders.append(row * row_length + end)
            cursor = end
        if cursor < row_length:
            # Padding is a segment with positions of its own. A token behind the last border would
            # have NaN gradients in torch's variable-length kernel.
            position_ids[row, cursor:] = np.arange(row_length - cursor)
            borders.append((row + 1) * row_length)
    return PackedBatch(
        input_ids=input_ids,
        position_ids=position_ids,
        cu_seqlens=np.asarray(borders, dtype=np.int32),
        spans=spans,
    )


def lengths_of(sequences: Sequence[NDArray[np.integer]]) -> NDArray[np.int64]:
    """Return the number of tokens of each sequence."""
    return np.array([len(sequence) for sequence in sequences], dtype=np.int64)


def pack_sequences(
    sequences: Sequence[NDArray[np.integer]], *, row_length: int, pad_id: int
) -> PackedBatch:
    """Pack sequences into rows by best-fit decreasing."""
    items, borders = best_fit(lengths_of(sequences), capacity=row_length)
    rows = [items[start:end].tolist() for start, end in pairwise(borders.tolist())]
    return lay_out(sequences, rows, row_length=row_length, pad_id=pad_id)
