"""Multi-label classification: a linear head on mean-pooled states, an independent sigmoid a label.

A label is predicted where its probability is above one half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray
from torch import Tensor, nn

from biphasic.data.tokenizer import TextTokenizer
from biphasic.tasks.encoding import Encoder, TokenIds, encode_texts, mean_pool
from biphasic.tasks.metrics import multi_label_scores
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, MultiLabelTask, TaskInfo
from biphasic.tasks.scores import SplitScores


@dataclass(frozen=True, slots=True)
class _Texts:
    """Texts of a split; `holds` tells which labels do, [num_texts, num_labels]."""

    ids: tuple[str, ...]
    sequences: list[TokenIds]
    holds: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class EncodedMultiLabel:
    """A multi-label task as token sequences."""

    info: TaskInfo
    labels: tuple[str, ...]
    pad_id: int
    num_truncated: dict[str, int]
    splits: dict[str, _Texts]

    @property
    def num_outputs(self) -> int:
        """Number of labels."""
        return len(self.labels)

    @property
    def num_train(self) -> int:
        """Number of training texts."""
        return len(self.splits["train"].sequences)

    @property
    def trained_sequences(self) -> list[TokenIds]:
        """The sequences that training reads."""
        return self.splits["train"].sequences

    def loss(self, encoder: Encoder, head: nn.Module, indices: NDArray[np.int64]) -> Tensor:
        """Return the mean binary cross-entropy over texts and labels."""
        train = self.splits["train"]
        hidden, spans = encoder.states([train.sequences[index] for index in indices])
        targets = torch.from_numpy(train.holds[indices].astype(np.float32)).to(hidden.device)
        return F.binary_cross_entropy_with_logits(head(mean_pool(hidden, spans)), targets)

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score validation and test: 1 for each text all of whose labels are right."""
        return {split: self._evaluate(encoder, head, split) for split in SPLITS[1:]}

    def _evaluate(self, encoder: Encoder, head: nn.Module, split: str) -> SplitScores:
        texts = self.splits[split]
        logits = head(encoder.pooled(texts.sequences)).cpu().numpy()
        predicted = predicted_labels(logits)
        correct = (predicted == texts.holds).all(axis=1)
        columns = {
            "correct": correct,
            "label": self._names(texts.holds),
            "predicted": self._names(predicted),
            "num_labels": texts.holds.sum(axis=1),
            "num_predicted": predicted.sum(axis=1),
            "num_right": (predicted & texts.holds).sum(axis=1),
        }
        metrics = multi_label_scores(texts.holds, predicted)
        return SplitScores(metrics, texts.ids, correct.astype(np.float64), columns)

    def _names(self, holds: NDArray[np.bool_]) -> list[list[str]]:
        return [[self.labels[label] for label in np.flatnonzero(row)] for row in holds]


def predicted_labels(logits: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return which labels are predicted; both arrays are [num_texts, num_labels]."""
    return logits > 0


def encode_multi_label(
    task: MultiLabelTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
) -> EncodedMultiLabel:
    """Tokenise a multi-label task once, for every run on it."""
    splits, num_truncated = {}, {}
    for split, records in task.splits.items():
        sequences, num_truncated[split] = encode_texts(
            [record.text for record in records], tokenizer, max_seqlen=protocol.max_seqlen
        )
        holds = _matrix([record.labels for record in records], num_labels=len(task.labels))
        splits[split] = _Texts(tuple(record.id for record in records), sequences, holds)
    return EncodedMultiLabel(
        info=task.info,
        labels=task.labels,
        pad_id=tokenizer.pad_id,
        num_truncated=num_truncated,
        splits=splits,
    )


def _matrix(labels: Sequence[Sequence[int]], *, num_labels: int) -> NDArray[np.bool_]:
    holds = np.zeros((len(labels), num_labels), dtype=np.bool_)
    for row, numbers in zip(holds, labels, strict=True):
        row[list(numbers)] = True
    return holds
