"""Sequence classification: a linear head on mean-pooled states, cross-entropy, accuracy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray
from torch import Tensor, nn

from biphasic.data.tokenizer import TextTokenizer
from biphasic.tasks.encoding import Encoder, TokenIds, encode_texts, mean_pool
from biphasic.tasks.metrics import accuracy, macro_f1, matthews
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, ClassificationTask, TaskInfo
from biphasic.tasks.scores import SplitScores


@dataclass(frozen=True, slots=True)
class _Texts:
    ids: tuple[str, ...]
    sequences: list[TokenIds]
    labels: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EncodedClassification:
    """A classification task as token sequences."""

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
        """Return the mean cross-entropy over texts."""
        train = self.splits["train"]
        hidden, spans = encoder.states([train.sequences[index] for index in indices])
        labels = torch.from_numpy(train.labels[indices]).to(hidden.device)
        return F.cross_entropy(head(mean_pool(hidden, spans)), labels)

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score validation and test: 1 for each right label."""
        return {split: self._evaluate(encoder, head, split) for split in SPLITS[1:]}

    def _evaluate(self, encoder: Encoder, head: nn.Module, split: str) -> SplitScores:
        texts = self.splits[split]
        logits = head(encoder.pooled(texts.sequences))
        # numpy takes the first of equal maxima; torch promises nothing.
        predicted = logits.cpu().numpy().argmax(axis=1)
        metrics = {
            "accuracy": accuracy(texts.labels, predicted),
            "macro_f1": macro_f1(texts.labels, predicted),
            "matthews": matthews(texts.labels, predicted),
        }
        correct = predicted == texts.labels
        columns = {
            "correct": correct,
            "label": [self.labels[label] for label in texts.labels.tolist()],
            "predicted": [self.labels[label] for label in predicted.tolist()],
        }
        return SplitScores(metrics, texts.ids, correct.astype(np.float64), columns)


def encode_classification(
    task: ClassificationTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
) -> EncodedClassification:
    """Tokenise a classification task once, for every run on it."""
    splits, num_truncated = {}, {}
    for split, records in task.splits.items():
        sequences, num_truncated[split] = encode_texts(
            [record.text for record in records], tokenizer, max_seqlen=protocol.max_seqlen
        )
        labels = np.array([record.label for record in records], dtype=np.int64)
        splits[split] = _Texts(tuple(record.id for record in records), sequences, labels)
    return EncodedClassification(
        info=task.info,
        labels=task.labels,
        pad_id=tokenizer.pad_id,
        num_truncated=num_truncated,
        splits=splits,
    )
