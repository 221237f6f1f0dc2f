"""Tasks as data: examples of each kind, in three splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SPLITS = ("train", "validation", "test")
NO_PREDICTION = -1
"""Label of a word for which a model made no prediction."""


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """Name, metric and source hash of a task.

    Attributes:
        sha256: Hash of everything the examples were read from.
        trained_on: Task whose training split replaces this task's own, or None.
        overlaps: Number of examples of a later split that also occur in an earlier one, by
            `"train/test"` and the like; pairs of splits without overlap are omitted.
    """

    name: str
    kind: str
    title: str
    metric: str
    sha256: str
    trained_on: str | None = None
    overlaps: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text, or a pair already joined into one text, and its label."""

    id: str
    text: str
    label: int


@dataclass(frozen=True, slots=True)
class MultiLabelText:
    """A text, or a pair already joined into one text, and its distinct labels, possibly none."""

    id: str
    text: str
    labels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A text, or a pair already joined into one text, and the number to predict."""

    id: str
    text: str
    value: float


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """Words and their BIO2 tags, as indices into the task's labels."""

    id: str
    words: tuple[str, ...]
    tags: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """A text that occurs in the context at `start`, in characters."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context; unanswerable if it has no answers."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class MinimalPair:
    """An acceptable sentence and one that is not; `group` is its paradigm, "" for none."""

    id: str
    good: str
    bad: str
    group: str


@dataclass(frozen=True, slots=True)
class ExampleTask:
    """A task of any kind except retrieval.

    Attributes:
        splits: Examples by split, such as `LabelledText`; the kind determines which.
        labels: Names of the outputs; empty if they have none.
        fields: Fields of a row that are joined into one text; empty if none are.
        template: Joins them; None for the usual one.
    """

    info: TaskInfo
    splits: Mapping[str, tuple[Any, ...]]
    labels: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    template: str | None = None

    def num_examples(self, split: str) -> int:
        """Return the number of texts, sentences or questions in a split."""
        return len(self.splits.get(split, ()))

    def epoch_length(self) -> int:
        """Return the number of examples in a training epoch."""
        return self.num_examples("train")


@dataclass(frozen=True, slots=True)
class RetrievalTask:
    """Retrieval, fine-tuned or zero-shot.

    Attributes:
        corpus: Documents by id, as the model reads them, with titles and prompts.
        queries: Queries by id, as the model reads them.
        qrels: Judgements by split and query. There is no `train` if the task is zero-shot or is
            trained on another task.
        query_template: The prompt of queries.
        document_template: The prompt of documents.
    """

    info: TaskInfo
    corpus: Mapping[str, str]
    queries: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, Mapping[str, int]]]
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
