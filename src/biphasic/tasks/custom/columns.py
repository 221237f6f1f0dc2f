"""Maps the columns of the user's files to canonical field names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt, model_validator

from biphasic.config import Config
from biphasic.errors import DataError
from biphasic.tasks.custom.readers import joined_answers
from biphasic.tasks.formats.rows import Row
from biphasic.tasks.formats.templates import template_fields
from biphasic.tasks.records import TEXT_KINDS, Kind

USUAL_TEXTS = (
    ("text",),
    ("sentence",),
    ("text_a", "text_b"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
)
"""Usual column names of single texts and of pairs."""
_VALUES = (("value",), ("score",), ("label",))
_LABELS = (("labels",), ("label",))
_BY_KIND: dict[str, set[str]] = {
    "sc": {"id", "text", "label"},
    "ml": {"id", "text", "labels"},
    "sr": {"id", "text", "value"},
    "tc": {"id", "tokens", "tags"},
    "qa": {"id", "question", "context", "answers"},
}

Column = Annotated[str, Field(min_length=1)]


class Columns(Config):
    """Column names, where they differ from the usual ones."""

    id: Column | None = Field(default=None, description="By default `id`, else the line number.")
    text: Column | tuple[Column, Column] | None = Field(
        default=None, description="sc, ml, sr: one name, or two for pairs."
    )
    label: Column | None = Field(default=None, description="sc.")
    labels: Column | None = Field(default=None, description="ml: all labels of a text.")
    value: Column | None = Field(default=None, description="sr: the number to predict.")
    tokens: Column | PositiveInt | None = Field(
        default=None, description="tc: in CoNLL files the number of the column, from 1."
    )
    tags: Column | PositiveInt | None = Field(default=None, description="tc: likewise.")
    question: Column | None = Field(default=None, description="qa.")
    context: Column | None = Field(default=None, description="qa.")
    answers: Column | None = Field(default=None, description="qa.")

    @model_validator(mode="after")
    def _different(self) -> Columns:
        if isinstance(self.text, tuple) and self.text[0] == self.text[1]:
            raise ValueError("text: a pair needs two different columns")
        return self

    def check_kind(self, kind: Kind) -> None:
        """Check that only columns of this kind of task are set.

        Raises:
            ValueError: Another kind's column is set.
        """
        for name in self.model_fields_set - _BY_KIND.get(kind, set()):
            raise ValueError(f"columns.{name}: a task of kind {kind} has no such column")


def renamed_rows(
    rows: Sequence[Row], *, path: Path, kind: Kind, columns: Columns, template: str | None
) -> list[Row]:
    """Return rows with the fields of `kind`, named as in docs/formats.md.

    The first row decides which columns these are.

    Raises:
        DataError: A column is missing or ambiguous, or only some rows have ids.
    """
    if not rows:
        return []
    there = rows[0].value.keys()
    chosen = _choose(there, path=path, kind=kind, columns=columns, template=template)
    if "id" not in chosen and (late := next((row for row in rows if "id" in row.value), None)):
        raise late.error("has an 'id', but the first row has none; give every row one, or no row")
    return [_renamed(row, chosen) for row in rows]


def check_same_texts(splits: Mapping[str, Sequence[Row]]) -> None:
    """Check that either all splits have pairs or none do: each file's columns are chosen alone.

    Raises:
        DataError: The training split differs from another.
    """
    train = splits["train"][0]
    for split, (first, *_) in splits.items():
        if ("text_a" in first.value) != ("text_a" in train.value):
            units = ("pairs of texts", "single texts")
            tested, learnt = units if "text_a" in first.value else reversed(units)
            raise first.error(f"the {split} split has {tested}, but {train.path} has {learnt}")


def _choose(
    there: Collection[str], *, path: Path, kind: Kind, columns: Columns, template: str | None
) -> dict[str, str]:
    if kind in TEXT_KINDS:
        chosen = _text_columns(there, path=path, columns=columns, template=template)
        if kind == "sc":
            chosen["label"] = columns.label or "label"
        elif kind == "ml":
            chosen["labels"] = columns.labels or _usual(_LABELS, there, path=path)[0]
        else:
            chosen["value"] = columns.value or _usual(_VALUES, there, path=path)[0]
    else:
        names = sorted(_BY_KIND[kind] - {"id"})
        chosen = {name: str(getattr(columns, name) or name) for name in names}
    if columns.id or "id" in there:
        chosen["id"] = columns.id or "id"
    for column in chosen.values():
        if column not in there:
            raise DataError(f"{path}:1: no column '{column}'; {_available(there)}")
    return chosen


def _text_columns(
    there: Collection[str], *, path: Path, columns: Columns, template: str | None
) -> dict[str, str]:
    fields = template_fields(template) if template is not None else ()
    if columns.text is not None:
        names = (columns.text,) if isinstance(columns.text, str) else columns.text
        chosen = _numbered(names)
    elif fields and all(field in there for field in fields):
        chosen = {}
    else:
        chosen = _numbered(_usual(USUAL_TEXTS, there, path=path))
    if not fields:
        return chosen
    # A template may name any column; columns that it omits are not part of the text.
    return {field: chosen.get(field, field) for field in fields}


def _numbered(names: Sequence[str]) -> dict[str, str]:
    return dict(zip(("text",) if len(names) == 1 else ("text_a", "text_b"), names, strict=True))


def _usual(
    options: Sequence[tuple[str, ...]], there: Collection[str], *, path: Path
) -> tuple[str, ...]:
    """Return the only option whose columns all exist."""
    complete = [names for names in options if all(name in there for name in names)]
    if len(complete) == 1:
        return complete[0]
    if not complete:
        usual = ", ".join(" and ".join(names) for names in options)
        raise DataError(f"{path}:1: no column of the usual names ({usual}); {_available(there)}")
    fitting = " or ".join(" and ".join(names) for names in complete)
    raise DataError(f"{path}:1: columns {fitting} all match; choose in a task file (columns)")


def _available(there: Collection[str]) -> str:
    return f"there are {', '.join(map(repr, there))}; name columns in a task file (columns)"


def _renamed(row: Row, chosen: dict[str, str]) -> Row:
    value: dict[str, Any] = {}
    for name, column in chosen.items():
        if column not in row.value:
            raise row.error(f"no field '{column}'")
        value[name] = row.value[column]
    answers = value.get("answers")
    if isinstance(answers, list) and all(isinstance(answer, dict) for answer in answers):
        value["answers"] = joined_answers(answers)
    return replace(row, value=value)
