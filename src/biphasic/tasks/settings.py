"""Settings of tasks that need no kind to be read: kinds themselves read them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, StrictInt, model_validator

from biphasic.config import Config
from biphasic.tasks.rows.templates import check_retrieval_template, check_template

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
