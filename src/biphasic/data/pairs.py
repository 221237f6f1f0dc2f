"""Pairs of texts: their folder, the batches that steps read, and their rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from biphasic.data.building.selection import CorpusSplit, digest_of, split_of
from biphasic.data.packing import pack_sequences
from biphasic.data.rows import Piece, RowBatch
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, DataError, reading
from biphasic.files import read_json_object, write_json
from biphasic.locks import Say, sole_writer
from biphasic.seeds import permute, stream
from biphasic.shown import Shown
from biphasic.store import PAIRS, complete_folder, is_complete

if TYPE_CHECKING:
    import pyarrow as pa

DETAILS = "pairs.json"
REMEDY = "delete the folder and build the pairs again"
NO_SHARED_WORD = "no_shared_word"  # negatives that BM25 left out
_FORMAT = "biphasic.pairs/1"
_TEXTS, _PAIRS, _VECTORS = "texts.arrow", "pairs.arrow", "vectors.npy"


@dataclass(frozen=True, slots=True)
class Pair:
    """A query and a text that answers it.

    Attributes:
        negatives: Texts that look like answers and are none.
        scores: A teacher's scores of the positive and of each negative; empty for none.
        source: Where the pair comes from.
    """

    query: str
    positive: str
    negatives: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    source: str = ""


class Pairs:
    """Pairs of texts, read through a memory map.

    Attributes:
        queries: int64 [num_pairs]; rows of the texts.
        positives: int64 [num_pairs]; rows of the texts.
        known: int64, sorted; code of each pair, `query * num_texts + positive`.
        vectors: float32 [num_texts, width], of a teacher; None without one.
        details: Content of `pairs.json`.
    """

    def __init__(self, folder: Path) -> None:
        """Open a folder and check every file against its manifest."""
        if not is_complete(folder):
            raise DataError(f"{folder}: no finished pairs here; build them: 'biphasic pairs build'")
        PAIRS.open(folder, remedy=REMEDY).verify()
        self.folder = folder
        self.details: dict[str, Any] = read_json_object(folder / DETAILS, remedy=REMEDY)
        if self.details.get("format") != _FORMAT:
            raise DataError(f"{folder / DETAILS}: not a record of pairs ({_FORMAT}); {REMEDY}")
        self.content_hash: str = self.details["content_hash"]
        with reading(folder, DataError, remedy=REMEDY, failure="damaged"):
            self._texts = _mapped(folder / _TEXTS)["text"].combine_chunks()
            table = _mapped(folder / _PAIRS)
            self.queries, self.positives = (
                table[name].to_numpy().astype(np.int64) for name in ("query", "positive")
            )
            self._negatives, self._scores, self._sources = (
                table[name].combine_chunks() for name in ("negatives", "scores", "source")
            )
            has_vectors = (folder / _VECTORS).is_file()
            self.vectors: NDArray[np.float32] | None = (
                np.load(folder / _VECTORS, mmap_mode="r") if has_vectors else None
            )
        # One number for each pair, so that a batch finds known answers by a binary search.
        self.known = np.unique(self.queries * self.num_texts + self.positives)

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def num_texts(self) -> int:
        """Number of different texts."""
        return len(self._texts)

    def texts(self, rows: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Return texts by row."""
        return self._texts.take(np.asarray(rows, dtype=np.int64)).to_pylist()

    def negatives(self, pair: int) -> list[int]:
        """Return the rows of a pair's negatives."""
        return self._negatives[pair].as_py()

    def scores(self, pair: int) -> list[float]:
        """Return a teacher's scores of a pair's positive and negatives; empty for none."""
        return self._scores[pair].as_py()

    def __iter__(self) -> Iterator[Pair]:
        return map(self.pair, range(len(self)))

    def pair(self, number: int) -> Pair:
        """Return a pair with its texts."""
        negatives = self.negatives(number)
        rows = [int(self.queries[number]), int(self.positives[number]), *negatives]
        query, positive, *others = self.texts(rows)
        scores = tuple(self.scores(number))
        return Pair(query, positive, tuple(others), scores, self._sources[number].as_py())


def write_pairs(
    folder: Path,
    pairs: Iterable[Pair],
    *,
    origin: dict[str, Any],
    counts: Mapping[str, Any] = {},
    further: Mapping[str, Any] = {},
    embed: Callable[[list[str]], NDArray[np.float32]] | None = None,
) -> Pairs:
    """Write a folder of pairs, which appears when complete.

    `counts` of sources and `further` records are written as they are once all pairs are read.
    `embed` gives a teacher's vectors.
    """
    import pyarrow as pa  # noqa: PLC0415 - keeps other commands fast to start

    texts: dict[str, int] = {}
    rows: list[tuple[int, int, list[int], tuple[float, ...], str]] = []
    for pair in pairs:
        of_pair = (pair.query, pair.positive, *pair.negatives)
        # Each text once: documents are answers of one query and negatives of others, and a teacher
        # embeds each of them once.
        query, positive, *negatives = (texts.setdefault(text, len(texts)) for text in of_pair)
        rows.append((query, positive, negatives, pair.scores, pair.source))
    if not rows:
        raise DataError(
            f"{folder.name}: no pairs; the sources have none, or all are repeated or in "
            "evaluation tasks"
        )
    schema = pa.schema({
        "query": pa.int64(), "positive": pa.int64(), "negatives": pa.list_(pa.int64()),
        "scores": pa.list_(pa.float64()), "source": pa.string(),
    })  # fmt: skip
    columns = dict(zip(schema.names, zip(*rows, strict=True), strict=True))
    with complete_folder(folder) as partial:
        # `large_string`, as offsets of 32 bits end at 2 GiB of text.
        _write(partial / _TEXTS, pa.table({"text": pa.array(texts, pa.large_string())}))
        _write(partial / _PAIRS, pa.table(columns, schema=schema))
        content_hash = _content_hash(texts, rows)
        if embed is not None:
            np.save(partial / _VECTORS, vectors := embed(list(texts)))
            content_hash = hashlib.sha256(content_hash.encode() + vectors.tobytes()).hexdigest()
        record = {
            "format": _FORMAT,
            "num_pairs": len(rows),
            "num_texts": len(texts),
            "num_negatives": sum(map(len, columns["negatives"])),
            "content_hash": content_hash,
            "origin": origin,
            "counts": counts,
            **further,
        }
        write_json(partial / DETAILS, record)
    return Pairs(folder)


def written_once(
    folder: Path, origin: dict[str, Any], write: Callable[[Path], Pairs], *, say: Say | None = None
) -> Pairs:
    """Write pairs, or return those in the folder if they have this origin."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with sole_writer(folder, say=say):
        if not is_complete(folder):
            return write(folder)
        pairs = Pairs(folder)
        if pairs.details.get("origin") != origin:
            raise ConfigError(
                f"{folder}: holds other pairs, made from other sources or settings; choose another "
                "folder, or delete it"
            )
        return pairs


def _content_hash(texts: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> str:
    """Hash texts in order with their lengths, and the pairs; not where they come from."""
    hasher = hashlib.sha256()
    for text in texts:
        encoded = text.encode()
        # Lengths first, as "ab" and "c" would otherwise hash like "a" and "bc".
        hasher.update(len(encoded).to_bytes(8, "little"))
        hasher.update(encoded)
    # Where a pair comes from changes no step, so equal pairs of other sources give equal states.
    for *row, _source in rows:
        hasher.update(repr(tuple(row)).encode())
    return hasher.hexdigest()


def _write(path: Path, table: pa.Table) -> None:
    import pyarrow as pa  # noqa: PLC0415

    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def _mapped(path: Path) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415

    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


_WIDTH = 160  # of a text that is shown


@dataclass(frozen=True, repr=False)
class BuiltPairs(Shown):
    """The result of `pairs.build`, `mine`, `teach` and `inspect`.

    Attributes:
        folder: Folder of the pairs.
        pairs: The pairs; `pairs.pair(0).query`, `pairs.pair(0).positive`.
        notes: What is probably not wanted.
        numbers: The pairs that `pairs.inspect` shows, by number; None of pairs that were built.
    """

    folder: Path
    pairs: Pairs
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    numbers: tuple[int, ...] | None = field(default=None, kw_only=True)

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each source: what was read, left out and kept."""
        counts = self.pairs.details.get("counts", {})
        return [{"source": name, **numbers} for name, numbers in counts.items()]

    def lines(self) -> Iterator[str]:
        """Return the counts, and the folder or some pairs."""
        yield from self._counts()
        yield from (f"warning: {note}" for note in self.notes)
        if self.numbers is None:
            yield f"pairs: {self.folder}"
        for number in self.numbers or ():
            pair = self.pairs.pair(number)
            yield f"\npair {number:,} ({pair.source})"
            texts = {"query": [pair.query], "positive": [pair.positive], "negative": pair.negatives}
            for name, values in texts.items():
                for line in (" ".join(text.split()) for text in values):
                    yield f"  {name}: {line[:_WIDTH]}{'...' * (len(line) > _WIDTH)}"

    def _counts(self) -> Iterator[str]:
        details = self.pairs.details
        yield (
            f"{details['num_pairs']:,} pairs of {details['num_texts']:,} texts, with "
            f"{details['num_negatives']:,} negatives"
        )
        for name, counts in details.get("counts", {}).items():
            yield (
                f"{name}: read {counts['read']:,}, in evaluation tasks {counts['judged']:,}, "
                f"repeated {counts['repeated']:,}, kept {counts['kept']:,}"
            )
            for task, count in sorted(counts["by_task"].items()):
                yield f"  {task} {count:,}"
        yield f"content {details['content_hash'][:16]}"


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
    # By query, so that no query is in both splits with different answers.
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
        for role, prompt in zip(("query", "document"), reading.prompts, strict=True):
            # All texts would be cut to the same tokens.
            if (length := len(tokenizer.encode(prompt))) >= max_seqlen - _FRAME:
                raise ConfigError(
                    f"{role}_prompt: its {length} tokens leave no room for a text in {max_seqlen}; "
                    "shorten it, or set a larger max_seqlen"
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
        # Without repeats: the same document twice would be its own negative.
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
        columns = np.array(triples, dtype=np.int64).reshape(-1, 3).T
        sides = (queries, documents, documents)
        places = [np.searchsorted(*both) for both in zip(sides, columns, strict=True)]
        return np.stack(places, axis=1), np.array(margins, dtype=np.float32)

    def _numbers(self, place: int) -> NDArray[np.int64]:
        """Return the pairs of a batch; it may end an epoch and begin the next."""
        places = np.arange(place, place + self._reading.batch)
        epochs, indices = np.divmod(places, len(self._chosen))
        # As for documents: the pairs of a step follow from seed and place alone, also after a
        # resume.
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
