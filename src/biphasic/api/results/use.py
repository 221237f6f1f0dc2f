"""What calls that use a model return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.amounts import points
from biphasic.shown import Shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from biphasic.evaluation.benchmark import TaskScore
    from biphasic.tasks.stream import Summary


def length_notes(summary: Summary) -> tuple[str, ...]:
    """Say how many inputs were truncated, and how many are empty."""
    of = f"of {summary.num_examples:,}"
    cut = f"truncated: {summary.num_cut:,} {of}, longer than {summary.max_seqlen} tokens"
    empty = f"empty: {summary.num_empty:,} {of}"
    counts = ((cut, summary.num_cut), (empty, summary.num_empty))
    return tuple(text for text, count in counts if count)


@dataclass(frozen=True, repr=False)
class Predictions(Shown):
    """What `predict` returns.

    Attributes:
        rows: One for each example, in order; empty if they were written to `out`.
        num_examples: Number of examples.
        out: The file they were written to.
        notes: How many examples were truncated or empty.
    """

    rows: tuple[Mapping[str, Any], ...]
    num_examples: int
    out: Path | None
    notes: tuple[str, ...] = ()

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the predictions; those in a file are read."""
        if self.out is None:
            return self.rows
        from biphasic.tasks.inputs import open_input

        return [row.value for row in open_input(str(self.out)).rows()]

    def lines(self) -> Iterator[str]:
        """Return the number of predictions, and the first ones."""
        place = "" if self.out is None else f"{self.out}: "
        yield f"{place}{self.num_examples:,} predictions"
        yield from (str(dict(row)) for row in self.rows)


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
        import numpy as np

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
        import pyarrow.parquet as pq

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


@dataclass(frozen=True, repr=False)
class BenchmarkScores(Shown):
    """What `run_mteb` returns.

    Attributes:
        scores: Of each task, in the order asked for.
        out: Folder of the results of all models.
    """

    scores: tuple[TaskScore, ...]
    out: Path

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each task, with its score in percentage points."""
        return [
            {
                "task": one.task,
                "metric": one.metric,
                "score": 100 * one.score,
                "num_examples": one.num_examples,
            }
            for one in self.scores
        ]

    def lines(self) -> Iterator[str]:
        """Return the scores."""
        for one in self.scores:
            of = f", scores of {one.num_examples:,} examples" if one.num_examples else ""
            yield f"{one.task} {one.metric}: {points(one.score)}{of}"


@dataclass(frozen=True, repr=False)
class Fillings(Shown):
    """What `fill_mask` returns: candidates for each mask, the most probable first.

    Attributes:
        text: The text with its masks.
        candidates: For each mask, tokens and their probabilities.
    """

    text: str
    candidates: tuple[tuple[tuple[str, float], ...], ...]

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each candidate."""
        return [
            {"mask": number, "token": token, "probability": probability}
            for number, found in enumerate(self.candidates)
            for token, probability in found
        ]

    def lines(self) -> Iterator[str]:
        """Return the text, and the candidates."""
        yield self.text
        for row in self.table():
            yield f"  {row['mask']}  {row['probability']:.4f}  {row['token'].strip()}"


@dataclass(frozen=True, repr=False)
class PairScores(Shown):
    """What `score` returns: log-probabilities of both sentences of each pair, in nats.

    Attributes:
        accuracy: Share of pairs whose acceptable sentence is the more probable one; ties count
            half.
        rows: `id`, `good`, `bad` (log-probabilities) and `correct` of each pair.
        reading: How the model gave sentences a probability.
    """

    accuracy: float
    rows: tuple[Mapping[str, Any], ...]
    reading: str

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each pair."""
        return self.rows

    def lines(self) -> Iterator[str]:
        """Return the accuracy."""
        yield f"accuracy {points(self.accuracy)} on {len(self.rows):,} pairs, by {self.reading}"


@dataclass(frozen=True, repr=False)
class Upload(Shown):
    """What `push` returns.

    Attributes:
        repository: Owner and name.
        files: Name and size in bytes of each file.
        notes: What to mend before the upload.
        address: Where the model is; None if only the files were listed.
    """

    repository: str
    revision: str | None
    is_private: bool
    files: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]
    address: str | None

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each file."""
        return [{"file": name, "bytes": num_bytes} for name, num_bytes in self.files]

    def lines(self) -> Iterator[str]:
        """Return the files, their size and the place."""
        width = max(len(name) for name, _ in self.files)
        for name, num_bytes in self.files:
            yield f"  {name:<{width}}  {num_bytes:>15,} bytes"
        branch = f"branch {self.revision}" if self.revision else "main branch"
        private = ", private if new" if self.is_private else ""
        total = sum(num_bytes for _, num_bytes in self.files)
        yield f"{len(self.files)} files, {total:,} bytes, to {self.repository}, {branch}{private}"
