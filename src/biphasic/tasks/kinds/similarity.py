"""Numbers of sentences: similarity without training, and sequence regression.

Similarity is the cosine of mean states. Reference: Reimers and Gurevych 2019, arXiv:1908.10084,
section 4.1: Spearman's correlation of the cosine with people's scores. Regression predicts a number
for a text, or for a pair of texts. Targets are standardized with the mean and standard deviation of
the training split, so one range of learning rates suits every scale and the head starts at the
mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, Field, field_validator
from pydantic.dataclasses import dataclass

from biphasic.errors import DataError, TrainingError
from biphasic.facts import FIRST_KINDS, RANDOM_VECTORS, metric_facts
from biphasic.tasks.baselines import (
    Baseline,
    bag_of_words,
    mean_value,
    random_similarity,
    tfidf_similarity,
)
from biphasic.tasks.kinds.examples import FIELDS, Example, Real, RecordFiles, Text, not_empty
from biphasic.tasks.kinds.kind import Facts, Learner, Predictions, SplitScores, TaskKind
from biphasic.tasks.kinds.text import AnsweredText, Array, TextLearner, pooled_outputs
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import ExampleTask

if TYPE_CHECKING:
    from torch import Tensor, nn

    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.tasks.encoding import Encoder, FinetunedModel


def _check_values(values: Iterable[float], split: str, *, where: str) -> None:
    """Refuse a split whose values are all equal: nothing is learned of it, and none correlates."""
    if len(different := {*values}) == 1:
        name = "training" if split == "train" else split
        raise DataError(
            f"{where}: all values of the {name} split are {different.pop():g}; give examples with "
            "different values"
        )


@dataclass(frozen=True, slots=True, config=FIELDS)
class SentencePair(Example):
    """Two sentences and how similar people find them."""

    inputs: ClassVar[tuple[str, ...]] = ("text_a", "text_b")
    text_a: Annotated[Text, Field(validation_alias=AliasChoices("text_a", "sentence1"))]
    text_b: Annotated[Text, Field(validation_alias=AliasChoices("text_b", "sentence2"))]
    score: Annotated[
        Real, Field(validation_alias=AliasChoices("score", "similarity_score", "label"))
    ]
    _not_empty = field_validator("text_a", "text_b")(not_empty)

    @classmethod
    def check_split(cls, split: str, examples: Sequence[SentencePair], *, where: str) -> None:
        if split != "train":  # of which nothing is read
            _check_values((example.score for example in examples), split, where=where)


class SimilarityLearner(Learner):
    """Pairs of sentences as token sequences; nothing is trained."""

    def encode(self, task: ExampleTask) -> None:
        self.sequences = {}
        for split in self.scored:
            texts = [text for pair in task.splits[split] for text in (pair.text_a, pair.text_b)]
            self.sequences[split] = self.framed(texts, split)

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score each split, and each pair by its part in the rank correlation."""
        from torch.nn import functional

        scores = {}
        for split, sequences in self.sequences.items():
            vectors = functional.normalize(head(encoder.pooled(sequences)), dim=-1)
            cosines = (vectors[::2] * vectors[1::2]).sum(-1).cpu().double().numpy()
            scores[split] = self.score(self.task, split, cosines)
        return scores

    @classmethod
    def score(cls, task: ExampleTask, split: str, predicted: Any) -> SplitScores:
        """Score cosines."""
        from biphasic.tasks.metrics import pearson, rounding_ties, spearman

        values = np.array([example.score for example in task.splits[split]])
        # Otherwise a collapsed model would have a correlation made of rounding errors.
        tied = rounding_ties(predicted)
        return SplitScores(
            {"spearman": spearman(values, tied), "pearson": pearson(values, tied)},
            task.ids(split),
            rank_products(values, tied),
            {"value": values, "predicted": tied},
        )


class Similarity(TaskKind):
    """Pairs of sentences with a score by people."""

    name = "sts"
    examples = RecordFiles(SentencePair)
    learner = SimilarityLearner
    facts = Facts(
        "similarity of sentences",
        (metric_facts("spearman"), metric_facts("pearson")),
        is_trained=False,
        unit="pairs",
        texts_per_item=2,
        is_cosine=True,
        does="embeds sentences; similar ones are close",
        pipeline="sentence-similarity",
    )
    baselines: ClassVar[Mapping[str, Baseline]] = {
        RANDOM_VECTORS: random_similarity,
        "reference:tfidf": tfidf_similarity,
    }


def rank_products(
    values: NDArray[np.float64], predicted: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the part of each pair in Spearman's correlation, which is their mean."""
    return _standard_ranks(values) * _standard_ranks(predicted)


def _standard_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.stats import rankdata

    ranks = rankdata(values)
    deviation = ranks.std()  # 0 where all values are equal, and the correlation is 0
    return (ranks - ranks.mean()) / deviation if deviation else np.zeros(len(ranks))


@dataclass(frozen=True, slots=True, config=FIELDS)
class ValuedText(AnsweredText):
    """A text and its number."""

    answer: Annotated[Real, Field(validation_alias=AliasChoices("value", "score", "label"))]

    @classmethod
    def check_split(cls, split: str, examples: Sequence[AnsweredText], *, where: str) -> None:
        _check_values((example.answer for example in examples), split, where=where)


class ValueLearner(TextLearner):
    """Squared error of standardized numbers."""

    predicted: ClassVar[Mapping[str, Any]] = {"score": float}

    def encode(self, task: ExampleTask) -> None:
        super().encode(task)
        self.mean, self.deviation = standardisation(task)

    def mean_loss(self, outputs: Tensor, expected: Array) -> Tensor:
        import torch

        # Labels of any scale then fit one learning rate, and a new head, whose outputs are near 0.
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
        columns = {"value": expected, "predicted": tied}
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
