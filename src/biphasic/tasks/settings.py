"""Settings of tasks that need no kind to be read: kinds themselves read them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, StrictInt, model_validator

from biphasic.config import Config
from biphasic.rows import Row

PAIR_TEMPLATE = "Sentence 1: {text_a}\nSentence 2: {text_b}"  # default template of pairs

_FIELD = re.compile(r"\{(\w+)\}")
_TITLE_TO_TEXT = re.compile(r"\{title\}.*?(?=\{text\})", re.DOTALL)
_HIDDEN = {"id", "label", "value"}


def template_fields(template: str) -> tuple[str, ...]:
    """Return the distinct names in braces, in order."""
    return tuple(dict.fromkeys(_FIELD.findall(template)))


def check_template(template: str) -> None:
    """Check a template of a text."""
    fields = template_fields(template)
    if not fields:
        raise ValueError(f"the template {template!r} names no field, such as {{text}}")
    if hidden := _HIDDEN.intersection(fields):
        raise ValueError(f"the template must not name {{{min(hidden)}}}: it is not text")


def check_retrieval_template(template: str, *, known: tuple[str, ...]) -> None:
    """Check a template of queries or documents."""
    fields = template_fields(template)
    if "text" not in fields or not set(fields) <= set(known):
        names = " and ".join(f"{{{name}}}" for name in known)
        raise ValueError(f"the template {template!r} must name {{text}}, and nothing but {names}")
    if fields[0] == "text" and "title" in fields:
        raise ValueError(f"the template {template!r} must name {{title}} before {{text}}")


def fill(template: str, row: Row) -> str:
    """Fill a template with a row's fields."""
    return _FIELD.sub(lambda field: row.text(field[1]), template)


def fill_document(template: str, *, title: str, text: str) -> str:
    """Fill a template with title and text; without a title, all before `{text}` is omitted."""
    if not title:
        template = _TITLE_TO_TEXT.sub("", template)
    values = {"title": title, "text": text}
    return _FIELD.sub(lambda field: values[field[1]], template)


Fraction = Annotated[float, Field(gt=0, lt=1)]
Column = Annotated[str, Field(min_length=1)]


class TaskSettings(Config):
    """Settings that task files and `task.json` share."""

    kind: str
    """Kind of task."""
    title: str = ""
    """Longer name; by default the name."""
    metric: str = ""
    """The primary metric; by default the kind's first."""
    template: str | None = None
    """sc, ml, sr: joins the fields of an example into one text, such as 'A: {text_a}'."""
    query_template: str | None = None
    """ir, zs: template of a query, over {text}."""
    document_template: str | None = None
    """ir, zs: template of a document, over {title} and {text}."""
    tokens: Literal["characters"] | None = None
    """qa: `characters` compares answers by Chinese, Japanese and Korean characters, not words."""
    trained_on: str | None = None
    """ir: the task whose training split replaces this task's own."""
    protocol: dict[str, Any] = Field(default_factory=dict)
    """Fine-tuning settings that this task needs."""
    license: str = ""
    """License of the data."""

    @model_validator(mode="after")
    def _check_templates(self) -> Self:
        if self.template is not None:
            check_template(self.template)
        if self.query_template is not None:
            check_retrieval_template(self.query_template, known=("text",))
        if self.document_template is not None:
            check_retrieval_template(self.document_template, known=("title", "text"))
        return self


class FileSettings(TaskSettings):
    """How people's files are read."""

    validation_fraction: Fraction | None = None
    """Share of the training split that becomes the validation split."""
    test_fraction: Fraction | None = None
    """Share of the training split that becomes the test split."""
    seed: NonNegativeInt = 0
    """Seed of the splits, of `limits` and of `pairs_per_paradigm`."""
    limits: dict[Literal["train", "validation", "test"], PositiveInt] = Field(default_factory=dict)
    """Maximum examples per split, chosen at random."""
    columns: dict[str, Column | PositiveInt | tuple[Column, Column]] = Field(default_factory=dict)
    """Column names, where they differ from the usual ones: two for a pair of texts, and in files
    without a header the number of the column, from 1."""
    labels: tuple[str | StrictInt, ...] | None = None
    """sc, ml, tc: names of the labels in order; by default those of the training split, sorted."""
    pairs_per_paradigm: PositiveInt | None = None
    """mp: maximum pairs of each paradigm, chosen at random."""
