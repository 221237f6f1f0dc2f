"""Pairs of texts on disk: queries and the texts that answer them, immutable, hashed in order.

Layout of a folder of pairs (see docs/formats.md):

- `texts.arrow`: column `text`; each text once;
- `pairs.arrow`: columns `query`, `positive` and `negatives`, as rows of the texts; `scores` of
  positive and negatives by a teacher, empty if there are none; `source`;
- `vectors.npy`: float32, a teacher's vector of each text, of length 1; only if there is a teacher;
- `pairs.json`: counts, provenance, content hash;
- `manifest.json`: SHA-256 of every file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from biphasic.errors import ConfigError, DataError, reading
from biphasic.files import read_json_object, write_json
from biphasic.locks import Say, sole_writer
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
        hasher.update(len(encoded).to_bytes(8, "little"))
        hasher.update(encoded)
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
    """What `pairs.build`, `mine`, `teach` and `inspect` return.

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
