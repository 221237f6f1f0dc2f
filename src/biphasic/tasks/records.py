"""Tasks as data: examples of each kind, in three splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["sc", "ml", "sr", "tc", "qa", "ir", "zs"]
"""Sequence classification, multi-label classification, sequence regression, token classification,
question answering, retrieval, and zero-shot retrieval: without fine-tuning."""
KINDS: tuple[Kind, ...] = ("sc", "ml", "sr", "tc", "qa", "ir", "zs")
TEXT_KINDS: tuple[Kind, ...] = ("sc", "ml", "sr")
"""Those that learn from the mean state of a text or a pair."""
LABEL_KINDS: tuple[Kind, ...] = ("sc", "ml", "tc")
"""Those whose outputs have names."""
SPLITS = ("train", "validation", "test")
_RETRIEVAL = ("ndcg_at_10", "mrr_at_10", "recall_at_100")
# The first metric of each kind is its primary one unless a task names another.
METRICS_BY_KIND = {
    "sc": ("accuracy", "macro_f1", "matthews"),
    "ml": ("micro_f1", "macro_f1", "subset_accuracy"),
    "sr": ("spearman", "pearson"),
    "tc": ("entity_f1", "sentence_token_f1"),
    "qa": ("f1", "exact_match"),
    "ir": _RETRIEVAL,
    "zs": _RETRIEVAL,
}


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """What a task is called, how it is scored, and which bytes it was read from.

    Attributes:
        name: As reports call it.
        kind: What is learnt.
        title: Longer name.
        metric: The metric that decides.
        sha256: Hash of all that the examples were read from.
        trained_on: Name of the task whose training split stands in for its own, or None.
        overlaps: How many examples of a later split also stand in an earlier one, by
            `"train/test"` and the like; pairs of splits without any are left out.
    """

    name: str
    kind: Kind
    title: str
    metric: str
    sha256: str
    trained_on: str | None = None
    overlaps: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text, or a pair already written as one text, and its label."""

    id: str
    text: str
    label: int


@dataclass(frozen=True, slots=True)
class MultiLabelText:
    """A text, or a pair already written as one text, and its labels: any number, each once."""

    id: str
    text: str
    labels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A text, or a pair already written as one text, and the number to predict."""

    id: str
    text: str
    value: float


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
class MultiLabelTask:
    """Multi-label classification: for each text all labels that hold, which may be none."""

    info: TaskInfo
    labels: tuple[str, ...]
    splits: Mapping[str, tuple[MultiLabelText, ...]]

    def num_examples(self, split: str) -> int:
        """Return the number of texts in a split."""
        return len(self.splits[split])


@dataclass(frozen=True, slots=True)
class RegressionTask:
    """Sequence regression: a number for each text, such as the similarity of a pair."""

    info: TaskInfo
    splits: Mapping[str, tuple[ScoredText, ...]]

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
    """Retrieval, fine-tuned (`ir`) or zero-shot (`zs`).

    Attributes:
        info: What the task is.
        corpus: Documents by id, as the model reads them: titles and prompts written in.
        queries: Queries by id, as the model reads them.
        qrels: For each split the judgements by query. There is no `train` where the task is
            zero-shot or trained on another one.
    """

    info: TaskInfo
    corpus: Mapping[str, str]
    queries: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, Mapping[str, int]]]

    def num_examples(self, split: str) -> int:
        """Return the number of judged queries in a split."""
        return len(self.qrels.get(split, {}))


Task = (
    ClassificationTask
    | MultiLabelTask
    | RegressionTask
    | TaggingTask
    | QuestionTask
    | RetrievalTask
)


def epoch_length(task: Task) -> int:
    """Return what one epoch of training reads: examples, or pairs of a query and a document."""
    if not isinstance(task, RetrievalTask):
        return task.num_examples("train")
    judged = task.qrels.get("train", {}).values()
    return sum(score > 0 for scores in judged for score in scores.values())
