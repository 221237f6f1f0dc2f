"""Vectors and predictions of trained models on files of texts, and fine-tuned models' folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from html import escape
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import nn

from biphasic.config import parse_config
from biphasic.data.tokens.shards import text_batches
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import REPAIR, DataError, ModelError, ModelFilesError, one_line, reading
from biphasic.files import read_json
from biphasic.model.compute.device import computing_on, on_compute_device, parse_device
from biphasic.model.contract import check_contract
from biphasic.model.loading.build import load_encoder
from biphasic.model.loading.hub import check_intact
from biphasic.progress import AmountReport
from biphasic.records import parse_record
from biphasic.rows import Row
from biphasic.shown import Shown
from biphasic.tasks.embedding import EmbeddingSettings, Precision, load_embedder
from biphasic.tasks.encoding import Encoder, FinetunedModel, LongTexts, head_layers
from biphasic.tasks.inputs import (
    AnyInput,
    Summary,
    Windows,
    check_rows,
    new_file,
    open_input,
    refuse_long,
    require_columns,
    row_writer,
)
from biphasic.tasks.kinds.kind import BY_LABEL
from biphasic.tasks.kinds.registry import KINDS, KindName
from biphasic.tasks.kinds.text import USUAL_TEXTS
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import HeadRecord, HeadWeights
from biphasic.training.memory import tune_allocator
from biphasic.training.recipe import FinetunePrecision
from biphasic.training.step.optimizer import set_head_precision, set_precision

HEAD_RECORD = "head.json"
HEAD_FORMAT = "biphasic.head/1"


class _Head(HeadRecord):
    kind: KindName


def read_head(folder: Path) -> HeadRecord:
    """Read a folder's `head.json` without loading the model."""
    if not folder.is_dir():
        what = "a file, not a fine-tuned model" if folder.is_file() else "no such folder"
        raise DataError(f"{folder}: {what}")
    path = folder / HEAD_RECORD
    if not path.is_file():
        raise DataError(
            f"{folder}: no fine-tuned model here (no {HEAD_RECORD}); 'biphasic finetune' makes one"
        )
    raw = read_json(path)
    if not isinstance(raw, dict) or raw.get("format") != HEAD_FORMAT:
        raise DataError(f"{path}: not in the format {HEAD_FORMAT}; fine-tune again")
    known = parse_record(_Head, raw, where=str(path))
    record = HeadRecord.model_construct(known.model_fields_set, **dict(known))
    num_outputs = 0 if record.head is None else record.head.num_outputs
    needed = KINDS[record.kind].facts.num_outputs(record.labels)
    if num_outputs != needed:
        raise DataError(
            f"{path}: {num_outputs} outputs for {len(record.labels)} labels, where a model of kind "
            f"'{record.kind}' has {needed}; {REPAIR}"
        )
    return record


def load_finetuned(folder: Path, *, precision: FinetunePrecision | None = None) -> FinetunedModel:
    """Load a fine-tuned model with the batching and precision it was scored with, or another."""
    record = read_head(folder)
    check_intact(folder)
    protocol = parse_config(FinetuneProtocol, record.protocol, where=f"{folder}: protocol")
    precision = precision or protocol.precision
    tokenizer = TextTokenizer.load(folder)
    model = on_compute_device(load_encoder(folder, batching=protocol.batching))
    check_contract(model, causal=False)
    set_precision(model, precision)
    model.eval()
    with reading(folder / HEAD_RECORD, ModelFilesError):
        head = _load_head(folder, record.head, hidden_size=model.config.hidden_size)
    head.to(model.device)
    set_head_precision(head, precision)
    return FinetunedModel(record, protocol, tokenizer, Encoder(model, tokenizer.pad_id), head)


def _load_head(folder: Path, weights: HeadWeights | None, *, hidden_size: int) -> nn.Module:
    if weights is None:
        return nn.Identity()
    path, rows = folder / weights.file, weights.num_outputs
    names = {"weight": weights.weight, "bias": weights.bias}
    try:
        with safe_open(path, framework="pt") as stored:
            linear = {key: stored.get_tensor(name)[:rows] for key, name in names.items()}
            dense = {
                key: stored.get_tensor(f"{weights.dense}.{key}") for key in names if weights.dense
            }
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: cannot be read ({one_line(error)})") from None
    head = head_layers(hidden_size, rows, is_dense=bool(dense))
    layers = {"classifier": linear, "dense": dense} if dense else {"": linear}
    for name, tensors in layers.items():
        head.get_submodule(name).load_state_dict(tensors)
    return head


# Examples sorted by length together: the maximum held in memory.
_WINDOW = 65_536
_CHARACTERS = 64 * 2**20


class TextColumns:
    """The input columns of a task's fields; chosen by the first row.

    By default those that the task file named, those of the fields, or those with the usual names.
    """

    def __init__(self, record: HeadRecord, chosen: Sequence[str] = ()) -> None:
        """Choose columns, in the order of the fields; by default by the first row."""
        kind = KINDS[record.kind]
        self.fields = record.fields or kind.examples.fields
        self._trained = {field: record.columns.get(field, field) for field in self.fields}
        self._ready_field = None if chosen else kind.examples.ready_field
        if chosen and len(chosen) != len(self.fields):
            raise DataError(
                f"--column: this model reads {len(self.fields)} ({', '.join(self.fields)}), "
                f"{len(chosen)} given"
            )
        self._chosen = dict(zip(self.fields, chosen, strict=True)) if chosen else {}

    def renamed(self, row: Row) -> Row:
        """Return a row with the task's fields under their own names."""
        if self._ready_field in row.value:
            return row
        if not self._chosen:
            self._chosen = self._choose(row)
        require_columns(row, self._chosen.values())
        return row.with_value({field: row.value[column] for field, column in self._chosen.items()})

    def is_empty(self, row: Row) -> bool:
        """Return whether all of a row's fields are empty."""
        value = self.renamed(row).value
        texts = [value.get(field) for field in self.fields if field in value]
        return bool(texts) and not any(isinstance(text, str) and text.strip() for text in texts)

    def _choose(self, row: Row) -> dict[str, str]:
        there = row.value
        # The columns of training go first: a file may also have others, with the fields' names.
        for columns in (self._trained, {field: field for field in self.fields}):
            if all(column in there for column in columns.values()):
                return columns
        usual = [
            names
            for names in USUAL_TEXTS
            if self.fields in {("text",), ("text_a", "text_b")}
            and len(names) == len(self.fields)
            and all(name in there for name in names)
        ]
        if len(usual) == 1:
            return dict(zip(self.fields, usual[0], strict=True))
        listed = ", ".join(map(repr, there)) or "none"
        missing = next(field for field in self.fields if field not in there)
        raise row.error(f"no column '{missing}'; there are {listed}; name it with --column")


def predict_file(
    folder: Path,
    source: AnyInput,
    out: Path | list[Mapping[str, Any]] | None,
    *,
    columns: Sequence[str] = (),
    top: int | None = None,
    long_texts: LongTexts | None = None,
    device: str | None = None,
    report: AmountReport | None = None,
    loaded: Callable[[Path], FinetunedModel] | None = None,
) -> Summary:
    """Predict on every example of an input, in order, one output row each."""
    target = parse_device(device)
    record = _head(folder)
    kind = KINDS[record.kind]
    columns_of = kind.learner.predicted
    by_label = [name for name, form in columns_of.items() if form == BY_LABEL]
    if top and not by_label:
        raise DataError(f"--top: a {kind.facts.title} model gives labels no probabilities")
    remedy = _remedy(record, long_texts)
    chosen = TextColumns(record, columns)
    total = check_rows(source, lambda row: _example(row, chosen, record))
    tune_allocator()
    windows = Windows(source.path, total=total, report=report)
    with computing_on(target):
        finetuned = (loaded or load_finetuned)(folder)
    encoder = replace(finetuned.encoder, watch=windows.watch)
    finetuned = replace(finetuned, encoder=encoder, long_texts=long_texts)
    limit = kind.learner.limit(finetuned.protocol)
    longest = limit or finetuned.protocol.max_seqlen
    limits = {"limit": longest, "field": kind.learner.limited}
    refuse = partial(refuse_long, **limits, remedy=remedy, total=total)
    if limit and long_texts is None and not source.is_stream:
        refuse(_long_rows(source, chosen, finetuned))
    forms = {**columns_of, **dict.fromkeys(by_label, dict.fromkeys(record.labels, float))}
    with row_writer(out, {"id": str, **forms, "truncated": bool}) as write:

        def predict(window: list[Row]) -> tuple[int, int]:
            examples = [_example(row, chosen, record) for row in window]
            with torch.inference_mode():
                read = [example for _, example in examples]
                predicted, cut = kind.learner.predict(finetuned, read)
            if long_texts != "truncate":
                refuse(zip(window, cut, strict=True))
            for row, name in product(predicted, by_label if top else ()):
                best = sorted(row[name].items(), key=lambda item: -item[1])
                row[name] = dict(best[:top])
            write(
                [
                    {"id": id_, **row, "truncated": is_cut}
                    for (id_, _), row, is_cut in zip(examples, predicted, cut, strict=True)
                ]
            )
            return sum(cut), sum(map(chosen.is_empty, window))

        return windows.run(_windows(source.rows()), predict, max_seqlen=longest)


def _remedy(record: HeadRecord, long_texts: LongTexts | None) -> str:
    """Return what to do about texts that are too long, and refuse what the model cannot do."""
    facts = KINDS[record.kind].facts
    fields = [f"{{{field}}}" for field in record.fields]
    # A window of a text with words of a template around it would lack some of them.
    if facts.is_pooled and len(fields) < 2 and record.template in {None, *fields}:
        return "--long-texts mean or max reads windows of it, and truncate reads its beginning"
    if long_texts in {"mean", "max"}:
        why = f"a {facts.title} model reads all windows without it"
        if facts.is_pooled:
            parts = record.template or ", ".join(record.fields)
            why = f"no window has all that the model reads ({parts})"
        raise DataError(f"--long-texts {long_texts}: {why}; give truncate, or leave it out")
    return "shorten it, or read its beginning with --long-texts truncate"


def fields_of(folder: Path) -> tuple[str, ...]:
    """Return the names of the texts that a fine-tuned model reads of an example."""
    record = _head(folder)
    return record.fields or KINDS[record.kind].examples.fields


def _head(folder: Path) -> HeadRecord:
    record = read_head(folder)
    kind = KINDS[record.kind]
    if not kind.learner.predicted:
        raise DataError(
            f"{folder}: a {kind.facts.title} model predicts nothing; use 'biphasic encode'"
        )
    return record


def _example(row: Row, columns: TextColumns, record: HeadRecord) -> tuple[str, Any]:
    return _id_of(row), KINDS[record.kind].examples.example(columns.renamed(row), record)


def _long_rows(
    source: AnyInput, columns: TextColumns, finetuned: FinetunedModel
) -> Iterator[tuple[Row, bool]]:
    """Yield each row, and whether it is too long for a model."""
    learner = KINDS[finetuned.record.kind].learner
    for window in _windows(source.rows()):
        examples = [_example(row, columns, finetuned.record)[1] for row in window]
        yield from zip(window, learner.is_cut(finetuned, examples), strict=True)


def _windows(rows: Iterable[Row]) -> Iterator[list[Row]]:
    sized = ((row, str(row.value)) for row in rows)
    for window in text_batches(sized, characters=_CHARACTERS, most=_WINDOW):
        yield [row for row, _ in window]


@dataclass(frozen=True, repr=False)
class Predictions(Shown):
    """The result of `predict`.

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

        return [row.value for row in open_input(str(self.out)).rows()]

    def lines(self) -> Iterator[str]:
        """Return the number of predictions, and the first ones."""
        place = "" if self.out is None else f"{self.out}: "
        yield f"{place}{self.num_examples:,} predictions"
        yield from (str(dict(row)) for row in self.rows)


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
    report: AmountReport | None = None,
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

    def read() -> Iterator[list[tuple[Row, str]]]:
        texts = ((row, _text_of(row, field)) for row in source.rows())
        return text_batches(texts, characters=_WINDOW_CHARACTERS, most=_WINDOW_TEXTS)

    if not source.is_stream:
        embedder.refuse_long(read(), total=total)
    with _writer(out, embedder.width) as write:

        def encode(window: list[tuple[Row, str]]) -> tuple[int, int]:
            rows, texts = zip(*window, strict=True)
            vectors, num_cut = embedder.embed(texts, rows)
            write([_id_of(row) for row in rows], vectors)
            return num_cut, sum(not text.strip() for text in texts)

        return windows.run(read(), encode, max_seqlen=settings.max_seqlen)


def _text_of(row: Row, field: str) -> str:
    require_columns(row, [field])
    _id_of(row)
    return row.text(field)


def _id_of(row: Row) -> str:
    return str(row.number) if row.value.get("id") is None else row.id()


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
    """The result of `encode`.

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
