"""Encodes files of texts to files of vectors, in windows of bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from biphasic.data.tokens.shards import text_batches
from biphasic.model.compute.device import computing_on, parse_device
from biphasic.rows import Row
from biphasic.shown import Shown
from biphasic.tasks.embedding import EmbeddingSettings, Precision, load_embedder
from biphasic.tasks.inputs import AnyInput, check_rows, require_columns
from biphasic.tasks.outputs import Report, Summary, Windows, new_file
from biphasic.training.memory import tune_allocator

SUFFIXES = (".npy", ".parquet")
# Texts sorted by length together: the maximum held in memory.
_WINDOW_TEXTS = 16_384
_WINDOW_CHARACTERS = 16 * 2**20
_DTYPE = "<f4"

_Write = Callable[[Sequence[str], NDArray[np.float32]], None]
Encoded = list[tuple[Sequence[str], NDArray[np.float32]]]


def encode_file(
    settings: EmbeddingSettings,
    source: AnyInput,
    out: Path | Encoded,
    *,
    field: str = "text",
    precision: Precision = "float32",
    batch_tokens: int | None = None,
    device: str | None = None,
    report: Report | None = None,
) -> Summary:
    """Write a vector for each text of an input, in order, to a `.npy` or `.parquet` file."""
    # `out` may be a list instead, which gets the ids and the vectors of each window.
    chosen = parse_device(device)
    total = check_rows(source, lambda row: _text_of(row, field))
    tune_allocator()
    windows = Windows(source.path, total=total, report=report)
    with computing_on(chosen):
        embedder = load_embedder(
            settings, precision=precision, batch_tokens=batch_tokens, watch=windows.watch
        )
    texts = (_text_of(row, field) for row in source.rows())
    batches = text_batches(texts, characters=_WINDOW_CHARACTERS, most=_WINDOW_TEXTS)
    with _writer(out, embedder.width) as write:

        def encode(window: list[tuple[str, str]]) -> tuple[int, int]:
            vectors, num_cut = embedder.embed([text for _, text in window])
            write([id_ for id_, _ in window], vectors)
            return num_cut, sum(not text.strip() for _, text in window)

        return windows.run(batches, encode, max_seqlen=settings.max_seqlen)


def _text_of(row: Row, field: str) -> tuple[str, str]:
    require_columns(row, [field])
    return row.id(), row.text(field)


@contextmanager
def _writer(out: Path | Encoded, width: int) -> Iterator[_Write]:
    if isinstance(out, list):
        yield lambda ids, vectors: out.append((ids, vectors))
        return
    writer = _parquet_writer if out.suffix.lower() == ".parquet" else _npy_writer
    with new_file(out) as partial, writer(partial, width) as write:
        yield write


@contextmanager
def _parquet_writer(path: Path, width: int) -> Iterator[_Write]:
    vector = pa.list_(pa.float32(), width)
    schema = pa.schema([("id", pa.string()), ("embedding", vector)])
    with pq.ParquetWriter(path, schema) as writer:

        def write(ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
            column = pa.FixedSizeListArray.from_arrays(vectors.ravel(), type=vector)
            writer.write_table(pa.table([pa.array(ids, pa.string()), column], schema=schema))

        yield write


@contextmanager
def _npy_writer(path: Path, width: int) -> Iterator[_Write]:
    """Append rows, and write their number into the header at the end: numpy leaves room for it."""
    with path.open("w+b") as stream:
        num_rows = 0

        def head() -> int:
            stream.seek(0)
            shape = {"descr": _DTYPE, "fortran_order": False, "shape": (num_rows, width)}
            np.lib.format.write_array_header_1_0(stream, shape)
            return stream.tell()

        def write(_ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
            nonlocal num_rows
            stream.write(vectors.astype(_DTYPE, copy=False).tobytes())
            num_rows += len(vectors)

        begin = head()
        yield write
        assert head() == begin  # noqa: S101 - numpy's promise; else the first rows are lost


@dataclass(frozen=True, repr=False)
class Vectors(Shown):
    """What `encode` returns.

    Attributes:
        windows: Ids and vectors; none if they were written to `out`.
        out: The file they were written to.
        seconds: Time of the computation, without loading the model.
        notes: How many texts were truncated or empty, and doubts about the model.
    """

    windows: tuple[tuple[Sequence[str], NDArray[np.float32]], ...]
    out: Path | None
    num_texts: int
    seconds: float
    notes: tuple[str, ...] = ()

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The ids of the texts; numbers from 0 of a `.npy` file."""
        if self._has_ids:
            return tuple(self._columns["id"].to_pylist())
        listed = [id_ for ids, _ in self.windows for id_ in ids]
        return tuple(listed or map(str, range(self.num_texts)))

    @cached_property
    def vectors(self) -> NDArray[np.float32]:
        """The vectors, float32 [num_texts, width], in order; a `.npy` file is mapped, not read."""
        if self.out is None:
            return np.concatenate([vectors for _, vectors in self.windows])
        if self._has_ids:
            return np.stack(self._columns["embedding"].to_numpy())
        return np.load(self.out, mmap_mode="r")

    @property
    def _has_ids(self) -> bool:
        return self.out is not None and self.out.suffix.lower() == ".parquet"

    @cached_property
    def _columns(self) -> Any:
        import pyarrow.parquet as pq  # noqa: PLC0415

        return pq.read_table(self.out)

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each text, with a column for each dimension."""
        rows = zip(self.ids, self.vectors, strict=True)
        return [
            {"id": id_, **{str(place): value for place, value in enumerate(vector.tolist())}}
            for id_, vector in rows
        ]

    def lines(self) -> Iterator[str]:
        """Return the number of vectors, and the speed."""
        place = "" if self.out is None else f"{self.out}: "
        speed = self.num_texts / max(self.seconds, 1e-9)
        yield f"{place}{self.num_texts:,} vectors, {speed:,.0f} texts/s"

    def _repr_html_(self) -> str:
        """Return the text, as a table of vectors says little."""
        return f"<pre>{escape(str(self))}</pre>"
