"""Texts with one answer each: a linear head on the mean of their states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray
from torch import Tensor, nn

from biphasic.data.packing import TokenIds
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import TrainingError
from biphasic.tasks.encoded.encoding import Encoder, encode_texts, mean_pool
from biphasic.tasks.encoded.metrics import (
    SplitScores,
    accuracy,
    macro_f1,
    matthews,
    multi_label_scores,
    pearson,
    spearman,
)
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, ExampleTask, TaskInfo

if TYPE_CHECKING:
    from biphasic.tasks.finetuned import FinetunedModel

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Answers:
    """Targets, loss and scoring of the answers of a task.

    Attributes:
        expected: Returns the expected answer of a record of the task.
        targets: Converts expected answers to loss targets, one per text.
        loss: Takes outputs [num_texts, num_outputs] and targets; returns the mean over texts.
        score: Takes text ids, outputs [num_texts, num_outputs] and expected answers.
    """

    num_outputs: int
    expected: Callable[[Any], Any]
    targets: Callable[[Array], Array]
    loss: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[tuple[str, ...], Array, Array], SplitScores]


@dataclass(frozen=True, slots=True)
class _Texts:
    ids: tuple[str, ...]
    sequences: list[TokenIds]
    expected: Array


@dataclass(frozen=True, slots=True)
class EncodedTextTask:
    """A tokenized task with one answer per text."""

    info: TaskInfo
    answers: Answers
    pad_id: int
    num_truncated: dict[str, int]
    splits: dict[str, _Texts]

    @property
    def num_outputs(self) -> int:
        """Width of the head."""
        return self.answers.num_outputs

    @property
    def num_train(self) -> int:
        """Number of training texts."""
        return len(self.trained_sequences)

    @property
    def trained_sequences(self) -> list[TokenIds]:
        """The sequences used in training."""
        return self.splits["train"].sequences

    def loss(self, encoder: Encoder, head: nn.Module, indices: NDArray[np.int64]) -> Tensor:
        """Return the mean loss over the training texts `indices`."""
        train = self.splits["train"]
        hidden, spans = encoder.states([train.sequences[index] for index in indices])
        targets = torch.from_numpy(self.answers.targets(train.expected[indices])).to(hidden.device)
        return self.answers.loss(head(mean_pool(hidden, spans)), targets)

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score validation and test."""
        scores = {}
        for split in SPLITS[1:]:
            texts = self.splits[split]
            outputs = head(encoder.pooled(texts.sequences)).cpu().numpy()
            scores[split] = self.answers.score(texts.ids, outputs, texts.expected)
        return scores


def encode_text_task(
    task: ExampleTask, answers: Answers, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
) -> EncodedTextTask:
    """Tokenise a task once, for every run on it."""
    splits, num_truncated = {}, {}
    for split, records in task.splits.items():
        sequences, num_truncated[split] = encode_texts(
            [record.text for record in records], tokenizer, max_seqlen=protocol.max_seqlen
        )
        ids = tuple(record.id for record in records)
        splits[split] = _Texts(ids, sequences, np.array(list(map(answers.expected, records))))
    return EncodedTextTask(task.info, answers, tokenizer.pad_id, num_truncated, splits)


def predicted_labels(logits: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return which of any labels are predicted; both arrays are [num_texts, num_labels]."""
    return logits > 0


def pooled_outputs(
    finetuned: FinetunedModel, texts: Sequence[str]
) -> tuple[NDArray[np.float64], int]:
    """Return the head's outputs for texts, [num_texts, num_outputs], and how many were cut.

    They are in double precision, so that the sum of probabilities is one.
    """
    sequences, num_cut = encode_texts(
        texts, finetuned.tokenizer, max_seqlen=finetuned.protocol.max_seqlen
    )
    return finetuned.head(finetuned.encoder.pooled(sequences)).cpu().double().numpy(), num_cut


def standardisation(task: ExampleTask) -> tuple[float, float]:
    """Return mean and standard deviation of the training split's values."""
    learnt = np.array([record.value for record in task.splits["train"]])
    return float(learnt.mean()), float(learnt.std())


def label_answers(names: Sequence[str]) -> Answers:
    """Return answers that are one label."""
    return Answers(
        num_outputs=len(names),
        expected=lambda record: record.label,
        targets=lambda labels: labels,
        loss=F.cross_entropy,
        score=partial(_score_labels, names=names),
    )


def _score_labels(
    ids: tuple[str, ...],
    logits: NDArray[np.floating],
    labels: NDArray[np.int64],
    *,
    names: Sequence[str],
) -> SplitScores:
    """Score 1 for each correct label."""
    # numpy returns the first of equal maxima; torch does not guarantee which.
    predicted = logits.argmax(axis=1)
    metrics = {
        "accuracy": accuracy(labels, predicted),
        "macro_f1": macro_f1(labels, predicted),
        "matthews": matthews(labels, predicted),
    }
    correct = predicted == labels
    columns = {
        "correct": correct,
        "label": [names[label] for label in labels.tolist()],
        "predicted": [names[label] for label in predicted.tolist()],
    }
    return SplitScores(metrics, ids, correct.astype(np.float64), columns)


def label_set_answers(names: Sequence[str]) -> Answers:
    """Return answers that are any labels."""
    numbers = np.arange(len(names))
    return Answers(
        num_outputs=len(names),
        expected=lambda record: np.isin(numbers, record.labels),
        targets=lambda holds: holds.astype(np.float32),
        loss=F.binary_cross_entropy_with_logits,
        score=partial(_score_label_sets, names=names),
    )


def _score_label_sets(
    ids: tuple[str, ...],
    logits: NDArray[np.floating],
    holds: NDArray[np.bool_],
    *,
    names: Sequence[str],
) -> SplitScores:
    """Score 1 for each text whose labels are all correct."""
    predicted = predicted_labels(logits)
    correct = (predicted == holds).all(axis=1)
    columns = {
        "correct": correct,
        "label": _named(holds, names),
        "predicted": _named(predicted, names),
        "num_labels": holds.sum(axis=1),
        "num_predicted": predicted.sum(axis=1),
        "num_right": (predicted & holds).sum(axis=1),
    }
    metrics = multi_label_scores(holds, predicted)
    return SplitScores(metrics, ids, correct.astype(np.float64), columns)


def _named(holds: NDArray[np.bool_], names: Sequence[str]) -> list[list[str]]:
    return [[names[label] for label in np.flatnonzero(row).tolist()] for row in holds]


def number_answers(mean: float, deviation: float) -> Answers:
    """Return answers that are numbers, standardized as targets."""
    return Answers(
        num_outputs=1,
        expected=lambda record: record.value,
        targets=lambda values: ((values - mean) / deviation).astype(np.float32),
        loss=lambda outputs, targets: F.mse_loss(outputs.squeeze(1), targets),
        score=partial(_score_values, mean=mean, deviation=deviation),
    )


def _score_values(
    ids: tuple[str, ...],
    outputs: NDArray[np.floating],
    values: NDArray[np.float64],
    *,
    mean: float,
    deviation: float,
) -> SplitScores:
    """Score each text by its negated squared error."""
    predicted = outputs[:, 0].astype(np.float64) * deviation + mean
    if not np.isfinite(predicted).all():
        raise TrainingError("a predicted value is not finite")
    metrics = {"spearman": spearman(values, predicted), "pearson": pearson(values, predicted)}
    columns = {"value": values, "predicted": predicted}
    return SplitScores(metrics, ids, -np.square(predicted - values), columns)
