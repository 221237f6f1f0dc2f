"""Settings of tasks, their examples in three splits, and the record of models fine-tuned on one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, StrictInt, model_validator

from biphasic.config import Config
from biphasic.records import Record
from biphasic.rows import Row

SPLITS = ("train", "validation", "test")
NO_PREDICTION = -1  # label of a word for which a model made no prediction
# How other libraries load a folder: with one of transformers' auto classes, or as an encoder for
# sentences.
Form = Literal[
    "sequence-classification", "token-classification", "question-answering", "sentence-transformers"
]


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """Name, metric and source hash of a task."""

    name: str
    kind: str
    title: str
    metric: str
    sha256: str  # of everything the examples were read from
    trained_on: str | None = None  # task whose training split replaces its own
    overlaps: Mapping[str, int] = field(default_factory=dict)
    clusters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by split and id
    has_pairs: bool = False  # whether examples are pairs of texts, joined by the usual template


@dataclass(frozen=True, slots=True)
class ExampleTask:
    """A task of any kind except retrieval."""

    info: TaskInfo
    splits: Mapping[str, tuple[Any, ...]]
    labels: tuple[str, ...] = ()  # names of the outputs
    fields: tuple[str, ...] = ()  # fields of a row that are joined into one text
    template: str | None = None  # joins them; None for the usual one
    columns: Mapping[str, str] = field(default_factory=dict)  # of the user's files, by field
    tokens: str | None = None  # what answers are compared by, if not words

    def num_examples(self, split: str) -> int:
        """Return the number of texts, sentences or questions in a split."""
        return len(self.splits.get(split, ()))

    def held_out(self) -> Self:
        """Return it without its training split, whose texts need not stay in memory."""
        return replace(
            self, splits={k: examples for k, examples in self.splits.items() if k != "train"}
        )

    def ids(self, split: str) -> tuple[str, ...]:
        """Return the ids of a split, in its order."""
        return tuple(example.id for example in self.splits[split])

    def epoch_length(self) -> int:
        """Return the number of examples in a training epoch."""
        return self.num_examples("train")


@dataclass(frozen=True, slots=True)
class RetrievalTask:
    """Retrieval, fine-tuned or zero-shot."""

    info: TaskInfo
    corpus: Mapping[str, str]  # documents by id, with title and prompt
    queries: Mapping[str, str]  # by id, with prompt
    qrels: Mapping[str, Mapping[str, Mapping[str, int]]]  # scores by split, query and document
    query_template: str = ""
    document_template: str = ""

    def num_examples(self, split: str) -> int:
        """Return the number of judged queries in a split."""
        return len(self.qrels.get(split, {}))

    def epoch_length(self) -> int:
        """Return the number of query-document pairs in a training epoch."""
        judged = self.qrels.get("train", {}).values()
        return sum(score > 0 for scores in judged for score in scores.values())


Task = ExampleTask | RetrievalTask


@dataclass(frozen=True)
class TaskContent:
    """Content of a task folder besides its description; its rows are read once."""

    splits: Mapping[str, Iterable[Mapping[str, Any]]] = field(default_factory=dict)
    labels: Sequence[str] = ()
    corpus: Iterable[Mapping[str, Any]] | None = None  # `{"_id", "title", "text"}`
    queries: Iterable[Mapping[str, Any]] | None = None  # `{"_id", "text"}`
    qrels: Mapping[str, Iterable[tuple[str, str, int]]] = field(default_factory=dict)


class HeadWeights(Record):
    """Names of the head's tensors: weight [num_outputs, hidden_size] and bias [num_outputs]."""

    file: str
    weight: str
    bias: str
    num_outputs: PositiveInt  # rows that belong to the head; the tensors may have more
    dense: str | None = None
    """The layer before the linear one, with a GELU behind it: its tensors are `DENSE.weight`
    [hidden_size, hidden_size] and `DENSE.bias` [hidden_size]. None in a linear head."""


class HeadRecord(Record):
    """`head.json`: the task of a fine-tuned model, and how it was trained."""

    format: Literal["biphasic.head/1"]
    kind: str
    form: Form
    needs_code: bool = False
    """True if transformers loads the folder only with `trust_remote_code=True`."""
    task: str
    title: str
    metric: str
    model: str  # the model that was fine-tuned, as the user named it
    model_identity: str
    learning_rate: float
    seed: int
    steps: int
    validation: dict[str, float] | None = None
    test: dict[str, float] | None = None
    baselines: dict[str, float] = Field(default_factory=dict)
    """Main metric on test of floors and references, by name."""
    protocol: dict[str, Any]
    """Constants of fine-tuning and encoding; `max_seqlen` is the longest input in tokens."""
    head: HeadWeights | None = None
    """None if the model has no head: retrieval compares pooled states."""
    labels: tuple[str, ...] = ()  # `sc`, `ml` and `tc`: names of the outputs
    fields: tuple[str, ...] = ()
    """`sc`, `ml` and `sr`: fields of an example, named as in the template."""
    columns: dict[str, str] = Field(default_factory=dict)
    """`sc`, `ml` and `sr`: the columns that the task file named, by field."""
    template: str | None = None
    """`sc`, `ml` and `sr`: joins the fields into one text; None if the single field is the text."""
    query_template: str | None = None  # `ir` and `zs`: template of a query, over {text}
    document_template: str | None = None
    """`ir` and `zs`: template of a document, over {title} and {text}."""
    mean: float = 0.0  # `sr`: value of an output of 0
    deviation: float = 1.0  # `sr`: value difference per unit of output
    may_abstain: bool = False  # `qa`: whether the model may answer that there is no answer
    max_answer_tokens: PositiveInt = 1  # `qa`: longest answer, in tokens

    @property
    def prompts(self) -> dict[str, str]:
        """Texts before queries and documents, by sentence-transformers' names."""
        prompts = {}
        templates = {"query": self.query_template, "document": self.document_template}
        for name, template in templates.items():
            before, _, after = (template or "").partition("{text}")
            # A template that adds more than a prefix gives no prompt.
            prompts[name] = "" if after else before.partition("{title}")[0]
        return {name: prompt for name, prompt in prompts.items() if prompt}


PAIR_TEMPLATE = "Sentence 1: {text_a}\nSentence 2: {text_b}"  # default template of pairs

_FIELD = re.compile(r"\{(\w+)\}")
_TITLE_TO_TEXT = re.compile(r"\{title\}.*?(?=\{text\})", re.DOTALL)
_HIDDEN = {"id", "label", "value"}


def template_fields(template: str) -> tuple[str, ...]:
    """Return the distinct names in braces, in order."""
    return tuple(dict.fromkeys(_FIELD.findall(template)))


def _check_template(template: str) -> None:
    """Check a template of a text."""
    fields = template_fields(template)
    if not fields:
        raise ValueError(f"the template {template!r} names no field, such as {{text}}")
    if hidden := _HIDDEN.intersection(fields):
        raise ValueError(f"the template must not name {{{min(hidden)}}}: it is not text")


def _check_retrieval_template(template: str, *, known: tuple[str, ...]) -> None:
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
    """qa: `characters` compares answers by characters of Korean and of scripts without spaces;
    by default, if most letters of the answers are of such scripts."""
    trained_on: str | None = None
    """ir: the task whose training split replaces this task's own."""
    protocol: dict[str, Any] = Field(default_factory=dict)
    """Fine-tuning settings that this task needs."""
    license: str = ""
    """License of the data."""

    @model_validator(mode="after")
    def _check_templates(self) -> Self:
        if self.template is not None:
            _check_template(self.template)
        if self.query_template is not None:
            _check_retrieval_template(self.query_template, known=("text",))
        if self.document_template is not None:
            _check_retrieval_template(self.document_template, known=("title", "text"))
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
