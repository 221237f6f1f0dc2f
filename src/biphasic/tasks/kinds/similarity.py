"""Similarity of sentences: the cosine of their mean states, without training.

Reference: Reimers and Gurevych 2019, arXiv:1908.10084, section 4.1: Spearman's correlation of the
cosine with people's scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, Field, field_validator
from pydantic.dataclasses import dataclass

from biphasic.facts import RANDOM_VECTORS, metric_facts
from biphasic.tasks.baselines import Baseline, random_similarity, tfidf_similarity
from biphasic.tasks.kinds.examples import FIELDS, Example, Real, RecordFiles, Text, not_empty
from biphasic.tasks.kinds.kind import Facts, Learner, SplitScores, TaskKind
from biphasic.tasks.records import ExampleTask

if TYPE_CHECKING:
    from torch import nn

    from biphasic.tasks.encoding import Encoder


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
        tied = rounding_ties(predicted)
        return SplitScores(
            {"spearman": spearman(values, tied), "pearson": pearson(values, tied)},
            task.ids(split),
            rank_products(values, tied),
            {"value": values, "predicted": predicted},
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
