"""Tasks as data: examples of each kind, in three splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["sc", "ml", "sr", "tc", "qa", "ir", "zs"]
"""Sequence classification, multi-label classification, sequence regression, token classification,
question answering, retrieval, and zero-shot retrieval."""
KINDS: tuple[Kind, ...] = ("sc", "ml", "sr", "tc", "qa", "ir", "zs")
TEXT_KINDS: tuple[Kind, ...] = ("sc", "ml", "sr")
"""Kinds that learn from the mean state of a text or a pair."""
LABEL_KINDS: tuple[Kind, ...] = ("sc", "ml", "tc")
"""Kinds with named outputs."""
SPLITS = ("train", "validation", "test")
_RETRIEVAL = ("ndcg_at_10", "mrr_at_10", "recall_at_100")
# The first metric of each kind is the default primary metric.
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
    """Name, metric and source hash of a task.

    Attributes:
        sha256: Hash of everything the examples were read from.
        trained_on: Task whose training split replaces this task's own, or None.
        overlaps: Number of examples of a later split that also occur in an earlier one, by
            `"train/test"` and the like; pairs of splits without overlap are omitted.
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
class ExampleTask:
    """A task of any kind except retrieval.

    Attributes:
        splits: Examples by split, such as `LabelledText`; the kind determines which.
        labels: Names of the outputs; empty for `sr` and `qa`.
    """

    info: TaskInfo
    splits: Mapping[str, tuple[Any, ...]]
    labels: tuple[str, ...] = ()

    def num_examples(self, split: str) -> int:
        """Return the number of texts, sentences or questions in a split."""
        return len(self.splits[split])


@dataclass(frozen=True, slots=True)
class RetrievalTask:
    """Retrieval, fine-tuned (`ir`) or zero-shot (`zs`).

    Attributes:
        corpus: Documents by id, as the model reads them, with titles and prompts.
        queries: Queries by id, as the model reads them.
        qrels: Judgements by split and query. There is no `train` if the task is zero-shot or is
            trained on another task.
    """

    info: TaskInfo
    corpus: Mapping[str, str]
    queries: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, Mapping[str, int]]]

    def num_examples(self, split: str) -> int:
        """Return the number of judged queries in a split."""
        return len(self.qrels.get(split, {}))


Task = ExampleTask | RetrievalTask


def epoch_length(task: Task) -> int:
    """Return the length of a training epoch: examples, or query-document pairs."""
    if not isinstance(task, RetrievalTask):
        return task.num_examples("train")
    judged = task.qrels.get("train", {}).values()
    return sum(score > 0 for scores in judged for score in scores.values())
