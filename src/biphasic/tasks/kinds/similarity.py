"""Similarity of sentences: the cosine of their mean states, without training.

Reference: Reimers and Gurevych 2019, arXiv:1908.10084, section 4.1: Spearman's correlation of the
cosine with people's scores.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from biphasic.facts import RANDOM_VECTORS, KindFacts, metric_facts
from biphasic.rows import Row
from biphasic.tasks.baselines import (
    Baseline,
    random_similarity,
    tfidf_similarity,
)
from biphasic.tasks.kinds.examples import ExampleKind, usual_columns
from biphasic.tasks.kinds.kind import EncodedTask, SplitScores
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, ExampleTask, SentencePair
from biphasic.tasks.rows.labels import Labels

if TYPE_CHECKING:
    from torch import nn

    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.tasks.encoding import Encoder
    from biphasic.tasks.task_file import TaskFile

_TEXTS = ("text_a", "text_b")
_USUAL_TEXTS = (_TEXTS, ("sentence1", "sentence2"))
_USUAL_SCORES = (("score",), ("similarity_score",), ("label",))


class EncodedSentencePairs(EncodedTask):
    """Pairs of sentences as token sequences; nothing is trained."""

    def __init__(
        self, task: ExampleTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> None:
        from biphasic.tasks.encoding import encode_texts

        self.info, self.pad_id, self.num_truncated = task.info, tokenizer.pad_id, {}
        self.examples = {split: task.splits[split] for split in SPLITS[1:] if split in task.splits}
        self.sequences = {}
        for split, examples in self.examples.items():
            texts = [text for pair in examples for text in (pair.text_a, pair.text_b)]
            self.sequences[split], self.num_truncated[split] = encode_texts(
                texts, tokenizer, max_seqlen=protocol.max_seqlen
            )

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score each split, and each pair by its part in the rank correlation."""
        from torch.nn import functional

        scores = {}
        for split, examples in self.examples.items():
            vectors = functional.normalize(head(encoder.pooled(self.sequences[split])), dim=-1)
            cosines = (vectors[::2] * vectors[1::2]).sum(-1).cpu().double().numpy()
            scores[split] = _score_cosines(examples, cosines)
        return scores


def _score_cosines(examples: Sequence[SentencePair], cosines: NDArray[np.float64]) -> SplitScores:
    from biphasic.tasks.metrics import pearson, rounding_ties, spearman

    values, tied = np.array([example.score for example in examples]), rounding_ties(cosines)
    return SplitScores(
        {"spearman": spearman(values, tied), "pearson": pearson(values, tied)},
        tuple(example.id for example in examples),
        rank_products(values, tied),
        {"value": values, "predicted": cosines},
    )


class Similarity(ExampleKind):
    """Pairs of sentences with a score by people."""

    name = "sts"
    is_cosine = True
    does = "embeds sentences; similar ones are close"
    pipeline = "sentence-similarity"
    encoded = EncodedSentencePairs
    facts = KindFacts(
        "similarity of sentences",
        (metric_facts("spearman"), metric_facts("pearson")),
        is_trained=False,
    )
    columns = ("id", *_TEXTS, "score")
    input_fields = _TEXTS
    unit = "pairs"
    texts_per_item = 2
    baselines: ClassVar[Mapping[str, Baseline]] = {
        RANDOM_VECTORS: random_similarity,
        "reference:tfidf": tfidf_similarity,
    }

    def score_predictions(self, task: ExampleTask, split: str, predicted: Any) -> SplitScores:
        """Score cosines."""
        return _score_cosines(task.splits[split], predicted)

    def parse(self, row: Row, *, labels: Sequence[str], template: str | None) -> SentencePair:
        """Return a pair and its score."""
        for name in _TEXTS:
            if not row.text(name).strip():
                raise row.error(f"'{name}' is empty")
        return SentencePair(row.id(), row.text("text_a"), row.text("text_b"), row.real("score"))

    def choose_columns(self, there: Collection[str], path: Path, file: TaskFile) -> dict[str, str]:
        """Return the columns of the sentences and of the score."""
        options = {_TEXTS: _USUAL_TEXTS, ("score",): _USUAL_SCORES}
        chosen: dict[str, str] = {}
        for fields, usual in options.items():
            given = [file.columns.get(field) for field in fields]
            names = map(str, given) if all(given) else usual_columns(usual, there, path=path)
            chosen |= dict(zip(fields, names, strict=True))
        return chosen

    def canonical(self, row: Row, labels: Labels | None) -> dict[str, Any]:
        """Return the score of a text file as a number."""
        return row.written_number("score")


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
