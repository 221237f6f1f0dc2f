"""Predictions of a fine-tuned model on files of texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch

from biphasic.errors import DataError
from biphasic.model.compute.device import computing_on, parse_device
from biphasic.rows import Row
from biphasic.shown import Shown
from biphasic.tasks.encoding import FinetunedModel
from biphasic.tasks.finetuned import load_finetuned, read_head
from biphasic.tasks.inputs import AnyInput, check_rows, open_input, require_columns
from biphasic.tasks.kinds.kind import BY_LABEL
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.kinds.text import USUAL_TEXTS
from biphasic.tasks.outputs import Report, Summary, Windows, row_writer
from biphasic.tasks.records import HeadRecord
from biphasic.training.memory import tune_allocator

# Examples sorted by length together: the maximum held in memory.
_WINDOW = 65_536


class TextColumns:
    """The input columns of a task's fields; chosen by the first row.

    By default those that the task file named, those of the fields, or those with the usual names.
    """

    def __init__(self, record: HeadRecord, given: Sequence[str] = ()) -> None:
        """Choose columns, in the order of the fields; by default by the first row."""
        kind = KINDS[record.kind]
        self.fields = record.fields or kind.examples.fields
        self._trained = {field: record.columns.get(field, field) for field in self.fields}
        self._ready_field = None if given else kind.examples.ready_field
        if given and len(given) != len(self.fields):
            raise DataError(
                f"--column: this model reads {len(self.fields)} ({', '.join(self.fields)}), "
                f"{len(given)} given"
            )
        self._chosen = dict(zip(self.fields, given, strict=True)) if given else {}

    def renamed(self, row: Row) -> Row:
        """Return a row with its id and the task's fields under their own names."""
        if self._ready_field in row.value:
            return row
        if not self._chosen:
            self._chosen = self._choose(row)
        require_columns(row, self._chosen.values())
        value = {field: row.value[column] for field, column in self._chosen.items()}
        if row.value.get("id") is not None:
            value["id"] = row.value["id"]
        return replace(row, value=value)

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
    device: str | None = None,
    report: Report | None = None,
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
    chosen = TextColumns(record, columns)
    total = check_rows(source, lambda row: _example(row, chosen, record))
    tune_allocator()
    windows = Windows(source.path, total=total, report=report)
    with computing_on(target):
        finetuned = (loaded or load_finetuned)(folder)
    finetuned = replace(finetuned, encoder=replace(finetuned.encoder, watch=windows.watch))
    forms = {**columns_of, **dict.fromkeys(by_label, dict.fromkeys(record.labels, float))}
    with row_writer(out, {"id": str, **forms, "truncated": bool}) as write:

        def predict(window: list[Row]) -> tuple[int, int]:
            examples = [_example(row, chosen, record) for row in window]
            with torch.inference_mode():
                read = [example for _, example in examples]
                predicted, cut = kind.learner.predict(finetuned, read)
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

        rows = _windows(source.rows())
        return windows.run(rows, predict, max_seqlen=finetuned.protocol.max_seqlen)


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
    renamed = columns.renamed(row)
    return renamed.id(), KINDS[record.kind].examples.example(renamed, record)


def _windows(rows: Iterable[Row]) -> Iterator[list[Row]]:
    stream = iter(rows)
    while window := list(islice(stream, _WINDOW)):
        yield window


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

        return [row.value for row in open_input(str(self.out)).rows()]

    def lines(self) -> Iterator[str]:
        """Return the number of predictions, and the first ones."""
        place = "" if self.out is None else f"{self.out}: "
        yield f"{place}{self.num_examples:,} predictions"
        yield from (str(dict(row)) for row in self.rows)
