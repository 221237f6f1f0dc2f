"""Tasks as data: examples of each kind, in three splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SPLITS = ("train", "validation", "test")
NO_PREDICTION = -1  # label of a word for which a model made no prediction


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
    majority: tuple[str, float] | None = None  # the most frequent label of test, and its share
    clusters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by split and id
    has_pairs: bool = False  # whether examples are pairs of texts, joined by the usual template


@dataclass(frozen=True, slots=True)
class AnsweredText:
    """A text, or a pair already joined into one text, and what is to be predicted of it."""

    id: str
    text: str
    answer: Any  # the number of its label, those of its labels (possibly none), or a real number
    pair: tuple[str, ...] = ()  # the two texts of a pair that the usual template joins


@dataclass(frozen=True, slots=True)
class SentencePair:
    """Two sentences and how similar people find them."""

    id: str
    text_a: str
    text_b: str
    score: float


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """Words and their BIO2 tags, as indices into the task's labels."""

    id: str
    words: tuple[str, ...]
    tags: tuple[int, ...]

    @property
    def text(self) -> str:
        """The words, joined."""
        return " ".join(self.words)


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
