"""Sequence regression: a number for a text, or for a pair of texts.

Targets are standardized with the mean and standard deviation of the training split, so one range of
learning rates suits every scale and the head starts at the mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import AliasChoices, Field
from pydantic.dataclasses import dataclass

from biphasic.errors import DataError, TrainingError
from biphasic.facts import FIRST_KINDS
from biphasic.tasks.baselines import Baseline, bag_of_words, mean_value
from biphasic.tasks.kinds.examples import FIELDS, Real, RecordFiles
from biphasic.tasks.kinds.kind import Facts, Predictions, SplitScores, TaskKind
from biphasic.tasks.kinds.text import AnsweredText, Array, TextLearner, pooled_outputs
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import ExampleTask

if TYPE_CHECKING:
    from torch import Tensor

    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.tasks.encoding import FinetunedModel


@dataclass(frozen=True, slots=True, config=FIELDS)
class ValuedText(AnsweredText):
    """A text and its number."""

    answer: Annotated[Real, Field(validation_alias=AliasChoices("value", "score", "label"))]

    @classmethod
    def check_train(cls, examples: Sequence[AnsweredText], *, where: str) -> None:
        if len(different := {example.answer for example in examples}) == 1:
            raise DataError(
                f"{where}: all values of the training split are {different.pop():g}; there is "
                "nothing to learn"
            )


class ValueLearner(TextLearner):
    """Squared error of standardized numbers."""

    predicted: ClassVar[Mapping[str, Any]] = {"score": float}

    def encode(self, task: ExampleTask) -> None:
        super().encode(task)
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

    def decide(self, outputs: Array) -> Array:
        """Return numbers on the scale of the training split."""
        predicted = outputs[:, 0].astype(np.float64) * self.deviation + self.mean
        if not np.isfinite(predicted).all():
            raise TrainingError("a predicted value is not finite")
        return predicted

    @classmethod
    def score(cls, task: ExampleTask, split: str, predicted: Any) -> SplitScores:
        """Score numbers; each by its negated squared error."""
        from biphasic.tasks.metrics import pearson, rounding_ties, spearman

        expected = cls.answers(task, split)
        tied = rounding_ties(predicted, scale=float(expected.std()))
        metrics = {"spearman": spearman(expected, tied), "pearson": pearson(expected, tied)}
        columns = {"value": expected, "predicted": predicted}
        return SplitScores(metrics, task.ids(split), -np.square(predicted - expected), columns)

    @classmethod
    def head_fields(
        cls, task: ExampleTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> dict[str, Any]:
        fields = super().head_fields(task, tokenizer, protocol=protocol)
        return {**fields, **dict(zip(("mean", "deviation"), standardisation(task), strict=True))}

    @classmethod
    def predict(cls, finetuned: FinetunedModel, examples: Sequence[str]) -> Predictions:
        outputs, cut = pooled_outputs(finetuned, examples)
        values = outputs[:, 0] * finetuned.record.deviation + finetuned.record.mean
        return [{"score": value} for value in values.tolist()], cut


class Regression(TaskKind):
    """A number per text; squared error, Spearman correlation."""

    name = "sr"
    examples = RecordFiles(ValuedText)
    learner = ValueLearner
    facts = Facts(
        **vars(FIRST_KINDS["sr"]),
        is_pooled=True,
        does="predicts a number for a text",
        problem_type="regression",
    )
    baselines: ClassVar[Mapping[str, Baseline]] = {
        "floor:majority": mean_value,
        "reference:bag-of-words": partial(bag_of_words, kind="sr"),
    }


def standardisation(task: ExampleTask) -> tuple[float, float]:
    """Return mean and standard deviation of the training split's values."""
    learnt = np.array([example.answer for example in task.splits["train"]])
    return float(learnt.mean()), float(learnt.std())
