"""Tasks as data: examples of the four kinds, in three splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["sc", "tc", "qa", "ir"]
KINDS: tuple[Kind, ...] = ("sc", "tc", "qa", "ir")
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """What a task is called, how it is scored, and which bytes it was read from."""

    name: str
    kind: Kind
    title: str
    metric: str
    sha256: str


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text, or a pair already written as one text, and its label."""

    id: str
    text: str
    label: int


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """Words and their BIO2 tags, as numbers into the task's labels."""

    id: str
    words: tuple[str, ...]
    tags: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """A text that stands in the context at `start`, in characters."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context; without answers it is unanswerable."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class ClassificationTask:
    """Sequence classification."""

    info: TaskInfo
    labels: tuple[str, ...]
    splits: Mapping[str, tuple[LabelledText, ...]]

    def num_examples(self, split: str) -> int:
        """Return the number of texts in a split."""
        return len(self.splits[split])


@dataclass(frozen=True, slots=True)
class TaggingTask:
    """Token classification."""

    info: TaskInfo
    labels: tuple[str, ...]
    splits: Mapping[str, tuple[TaggedSentence, ...]]

    def num_examples(self, split: str) -> int:
        """Return the number of sentences in a split."""
        return len(self.splits[split])


@dataclass(frozen=True, slots=True)
class QuestionTask:
    """Extractive question answering."""

    info: TaskInfo
    splits: Mapping[str, tuple[Question, ...]]

    def num_examples(self, split: str) -> int:
        """Return the number of questions in a split."""
        return len(self.splits[split])


@dataclass(frozen=True, slots=True)
class RetrievalTask:
    """Retrieval: documents and queries by id, and for each split the judgements by query."""

    info: TaskInfo
    corpus: Mapping[str, str]
    queries: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, Mapping[str, int]]]

    def num_examples(self, split: str) -> int:
        """Return the number of judged queries in a split."""
        return len(self.qrels[split])


Task = ClassificationTask | TaggingTask | QuestionTask | RetrievalTask
