"""Sequence regression: one output on mean-pooled states, squared error, correlations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray
from torch import Tensor, nn

from biphasic.data.tokenizer import TextTokenizer
from biphasic.errors import TrainingError
from biphasic.tasks.encoding import Encoder, TokenIds, encode_texts, mean_pool
from biphasic.tasks.metrics import pearson, spearman
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, RegressionTask, TaskInfo
from biphasic.tasks.scores import SplitScores


@dataclass(frozen=True, slots=True)
class _Texts:
    ids: tuple[str, ...]
    sequences: list[TokenIds]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EncodedRegression:
    """A regression task as token sequences.

    The model learns values less `mean`, in units of `deviation`: both of the training split. So
    one range of learning rates suits every scale, and the head begins at the mean.
    """

    info: TaskInfo
    pad_id: int
    num_truncated: dict[str, int]
    mean: float
    deviation: float
    splits: dict[str, _Texts]

    @property
    def num_outputs(self) -> int:
        """One: the value."""
        return 1

    @property
    def num_train(self) -> int:
        """Number of training texts."""
        return len(self.splits["train"].sequences)

    @property
    def trained_sequences(self) -> list[TokenIds]:
        """The sequences that training reads."""
        return self.splits["train"].sequences

    def loss(self, encoder: Encoder, head: nn.Module, indices: NDArray[np.int64]) -> Tensor:
        """Return the mean squared error over texts, of standardised values."""
        train = self.splits["train"]
        hidden, spans = encoder.states([train.sequences[index] for index in indices])
        wanted = (train.values[indices] - self.mean) / self.deviation
        targets = torch.from_numpy(wanted.astype(np.float32)).to(hidden.device)
        return F.mse_loss(head(mean_pool(hidden, spans)).squeeze(1), targets)

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score validation and test: for each text the squared error, negated.

        Raises:
            TrainingError: A predicted value is not finite.
        """
        return {split: self._evaluate(encoder, head, split) for split in SPLITS[1:]}

    def _evaluate(self, encoder: Encoder, head: nn.Module, split: str) -> SplitScores:
        texts = self.splits[split]
        outputs = head(encoder.pooled(texts.sequences)).squeeze(1)
        predicted = outputs.cpu().numpy().astype(np.float64) * self.deviation + self.mean
        if not np.isfinite(predicted).all():
            raise TrainingError("a predicted value is not finite")
        metrics = {
            "spearman": spearman(texts.values, predicted),
            "pearson": pearson(texts.values, predicted),
        }
        columns = {"value": texts.values, "predicted": predicted}
        return SplitScores(metrics, texts.ids, -np.square(predicted - texts.values), columns)


def encode_regression(
    task: RegressionTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
) -> EncodedRegression:
    """Tokenise a regression task once, for every run on it."""
    splits, num_truncated = {}, {}
    for split, records in task.splits.items():
        sequences, num_truncated[split] = encode_texts(
            [record.text for record in records], tokenizer, max_seqlen=protocol.max_seqlen
        )
        values = np.array([record.value for record in records], dtype=np.float64)
        splits[split] = _Texts(tuple(record.id for record in records), sequences, values)
    mean, deviation = standardisation(task)
    return EncodedRegression(
        info=task.info,
        pad_id=tokenizer.pad_id,
        num_truncated=num_truncated,
        mean=mean,
        deviation=deviation,
        splits=splits,
    )


def standardisation(task: RegressionTask) -> tuple[float, float]:
    """Return mean and standard deviation of the values of the training split."""
    learnt = np.array([record.value for record in task.splits["train"]], dtype=np.float64)
    return float(learnt.mean()), float(learnt.std())
