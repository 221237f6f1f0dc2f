"""Tasks with one output vector per text: a linear head on its mean-pooled states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from biphasic.data.packing import TokenIds
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.tasks.encoding import Encoder, encode_texts, mean_pool
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import (
    SPLITS,
    ClassificationTask,
    MultiLabelTask,
    RegressionTask,
    TaskInfo,
)
from biphasic.tasks.scores import SplitScores

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TextKind:
    """Targets, loss and scoring of one kind of task.

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
    kind: TextKind
    pad_id: int
    num_truncated: dict[str, int]
    splits: dict[str, _Texts]

    @property
    def num_outputs(self) -> int:
        """Width of the head."""
        return self.kind.num_outputs

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
        targets = torch.from_numpy(self.kind.targets(train.expected[indices])).to(hidden.device)
        return self.kind.loss(head(mean_pool(hidden, spans)), targets)

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score validation and test.

        Raises:
            TrainingError: A predicted value is not finite (regression).
        """
        scores = {}
        for split in SPLITS[1:]:
            texts = self.splits[split]
            outputs = head(encoder.pooled(texts.sequences)).cpu().numpy()
            scores[split] = self.kind.score(texts.ids, outputs, texts.expected)
        return scores


def encode_text_task(
    task: ClassificationTask | MultiLabelTask | RegressionTask,
    kind: TextKind,
    tokenizer: TextTokenizer,
    *,
    protocol: FinetuneProtocol,
) -> EncodedTextTask:
    """Tokenise a task once, for every run on it."""
    splits, num_truncated = {}, {}
    for split, records in task.splits.items():
        sequences, num_truncated[split] = encode_texts(
            [record.text for record in records], tokenizer, max_seqlen=protocol.max_seqlen
        )
        ids = tuple(record.id for record in records)
        splits[split] = _Texts(ids, sequences, np.array(list(map(kind.expected, records))))
    return EncodedTextTask(task.info, kind, tokenizer.pad_id, num_truncated, splits)
