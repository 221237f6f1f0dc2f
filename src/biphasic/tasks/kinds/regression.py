"""Sequence regression: a number for a text, or for a pair of texts.

Targets are standardized with the mean and standard deviation of the training split, so one range of
learning rates suits every scale and the head starts at the mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from biphasic.errors import DataError, TrainingError
from biphasic.facts import FIRST_KINDS
from biphasic.rows import Row
from biphasic.tasks.baselines import Baseline, bag_of_words, mean_value
from biphasic.tasks.kinds.kind import Predictions, SplitScores
from biphasic.tasks.kinds.text import Array, EncodedTexts, TextKind, pooled_outputs
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import AnsweredText, ExampleTask
from biphasic.tasks.rows.labels import Labels

if TYPE_CHECKING:
    from torch import Tensor

    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.tasks.finetuned import FinetunedModel


class _EncodedValues(EncodedTexts):
    def __init__(
        self, task: ExampleTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> None:
        super().__init__(task, tokenizer, protocol=protocol)
        self.mean, self.deviation = standardisation(task)

    def mean_loss(self, outputs: Tensor, expected: Array) -> Tensor:
        import torch

        standardized = self._standardized(expected).astype(np.float32)
        targets = torch.from_numpy(standardized).to(outputs.device)
        return torch.nn.functional.mse_loss(outputs.squeeze(1), targets)

    def targets(self, split: str, chosen: Array | None = None) -> Array:
        return self._standardized(super().targets(split, chosen))

    def _standardized(self, values: Array) -> Array:
        return (values - self.mean) / self.deviation

    def score(self, ids: tuple[str, ...], outputs: Array, expected: Array) -> SplitScores:
        """Score each text by its negated squared error."""
        predicted = outputs[:, 0].astype(np.float64) * self.deviation + self.mean
        if not np.isfinite(predicted).all():
            raise TrainingError("a predicted value is not finite")
        return _score_values(ids, predicted, expected)


def _score_values(ids: tuple[str, ...], predicted: Array, expected: Array) -> SplitScores:
    from biphasic.tasks.metrics import pearson, rounding_ties, spearman

    tied = rounding_ties(predicted, scale=float(expected.std()))
    metrics = {"spearman": spearman(expected, tied), "pearson": pearson(expected, tied)}
    columns = {"value": expected, "predicted": predicted}
    return SplitScores(metrics, ids, -np.square(predicted - expected), columns)


class Regression(TextKind):
    """A number per text; squared error, Spearman correlation."""

    name = "sr"
    facts = FIRST_KINDS["sr"]
    encoded = _EncodedValues
    columns = ("id", "text", "value")
    answer = "value"
    usual_answers = (("value",), ("score",), ("label",))
    predicted: ClassVar[Mapping[str, Any]] = {"score": float}
    does = "predicts a number for a text"
    problem_type = "regression"
    output_names = ("LABEL_0",)
    baselines: ClassVar[Mapping[str, Baseline]] = {
        "floor:majority": mean_value,
        "reference:bag-of-words": partial(bag_of_words, kind="sr"),
    }

    def score_predictions(self, task: ExampleTask, split: str, predicted: Any) -> SplitScores:
        """Score numbers."""
        examples = task.splits[split]
        expected = np.array([example.answer for example in examples])
        return _score_values(tuple(example.id for example in examples), predicted, expected)

    def parse(self, row: Row, *, labels: Sequence[str], template: str | None) -> AnsweredText:
        """Return a text and its number."""
        return self.answered(row, template, row.real("value"))

    def check_train(self, examples: Sequence[AnsweredText], *, where: str) -> None:
        """Check that the numbers differ."""
        if len(different := {example.answer for example in examples}) == 1:
            raise DataError(
                f"{where}: all values of the training split are {different.pop():g}; there is "
                "nothing to learn"
            )

    def canonical(self, row: Row, labels: Labels | None) -> dict[str, Any]:
        """Return the number of a text file as a number."""
        return row.written_number("value")

    def head_fields(
        self, task: ExampleTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> dict[str, Any]:
        """Return the scale of the output as well."""
        mean, deviation = standardisation(task)
        fields = super().head_fields(task, tokenizer, protocol=protocol)
        return {**fields, "mean": mean, "deviation": deviation}

    def predict(self, finetuned: FinetunedModel, examples: Sequence[str]) -> Predictions:
        """Return numbers on the scale of the training split."""
        outputs, num_cut = pooled_outputs(finetuned, examples)
        record = finetuned.record
        values = outputs[:, 0] * record.deviation + record.mean
        return [{"score": value} for value in values.tolist()], num_cut


def standardisation(task: ExampleTask) -> tuple[float, float]:
    """Return mean and standard deviation of the training split's values."""
    learnt = np.array([example.answer for example in task.splits["train"]])
    return float(learnt.mean()), float(learnt.std())
