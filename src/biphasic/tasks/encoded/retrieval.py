"""Retrieval: mean-pooled states, cosine similarity, in-batch negatives, nDCG@10.

Zero-shot retrieval has no training pairs and is otherwise the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray
from torch import Tensor, nn

from biphasic.data.packing import TokenIds
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.tasks.encoded.encoding import Encoder, encode_texts, mean_pool
from biphasic.tasks.encoded.metrics import SplitScores, retrieval_scores, top_documents
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, RetrievalTask, TaskInfo

# Limits one block of similarities to 64 MiB; a full split against millions would not fit.
_SIMILARITIES = 2**24

_Qrels = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class EncodedRetrieval:
    """A retrieval task as token sequences.

    Attributes:
        num_truncated: By split, the number of truncated queries, and as `corpus` that of documents.
        query_ids: Ids of the judged queries of each split.
        queries: Their token sequences, by split.
        document_ids: Ids of the documents searched or trained on, in descending order. This is the
            column order of similarities, so ties break as in trec_eval (`metrics.top_documents`).
        searched: Indices of the documents that validation and test search, ascending.
        qrels: Judgements by query, for each split to score.
        pairs: Training query and relevant document, as indices, int64 [num_pairs, 2].
        known: Code of every training pair, `query * num_documents + document`, sorted.
    """

    info: TaskInfo
    pad_id: int
    num_truncated: dict[str, int]
    similarity_scale: float
    query_ids: dict[str, tuple[str, ...]]
    queries: dict[str, list[TokenIds]]
    document_ids: tuple[str, ...]
    documents: list[TokenIds]
    searched: NDArray[np.int64]
    qrels: Mapping[str, _Qrels]
    pairs: NDArray[np.int64]
    known: NDArray[np.int64]
    metrics: tuple[str, ...]
    num_outputs: int = 0
    """Pooled states are compared directly."""

    @property
    def num_train(self) -> int:
        """Number of training pairs; zero if this task is not trained on."""
        return len(self.pairs)

    @property
    def trained_sequences(self) -> list[TokenIds]:
        """The sequences used in training."""
        read = np.unique(self.pairs[:, 1]).tolist()
        return self.queries["train"] + [self.documents[document] for document in read]

    def loss(self, encoder: Encoder, head: nn.Module, indices: NDArray[np.int64]) -> Tensor:
        """Return InfoNCE: each query must find its document among those of the batch.

        A query's negatives exclude the same document in other pairs, and other documents that are
        also relevant to it.

        Reference: Henderson et al. 2017, arXiv:1705.00652, section 4.4 (in-batch negatives).
        """
        pairs = self.pairs[indices]
        sequences = [self.queries["train"][query] for query in pairs[:, 0]]
        sequences += [self.documents[document] for document in pairs[:, 1]]
        hidden, spans = encoder.states(sequences)
        pooled = F.normalize(head(mean_pool(hidden, spans)), dim=-1)
        queries, documents = pooled[: len(pairs)], pooled[len(pairs) :]
        logits = self.similarity_scale * queries @ documents.T
        codes = pairs[:, :1] * len(self.documents) + pairs[:, 1]
        # `np.isin` would sort all known codes again at every step.
        places = np.searchsorted(self.known, codes).clip(max=len(self.known) - 1)
        also_relevant = self.known[places] == codes
        np.fill_diagonal(also_relevant, val=False)
        hidden_pairs = torch.from_numpy(also_relevant).to(logits.device)
        targets = torch.arange(len(pairs), device=logits.device)
        return F.cross_entropy(logits.masked_fill(hidden_pairs, -torch.inf), targets)

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score validation and test where judgements exist; a query's score is its nDCG@10."""
        searched = encoder.pooled([self.documents[index] for index in self.searched])
        documents = F.normalize(head(searched), dim=-1)
        return {split: self._evaluate(encoder, head, split, documents) for split in self.qrels}

    def _evaluate(
        self, encoder: Encoder, head: nn.Module, split: str, documents: Tensor
    ) -> SplitScores:
        ids = self.query_ids[split]
        queries = F.normalize(head(encoder.pooled(self.queries[split])), dim=-1)
        rankings = {
            query: [self.document_ids[self.searched[column]] for column in columns]
            for query, columns in zip(ids, _ranked(queries, documents), strict=True)
        }
        scores = retrieval_scores(rankings, self.qrels[split])
        columns = {name: np.array([scores[query][name] for query in ids]) for name in self.metrics}
        metrics = {name: float(column.mean()) for name, column in columns.items()}
        return SplitScores(metrics, ids, columns["ndcg_at_10"], columns)


def _ranked(queries: Tensor, documents: Tensor) -> Iterator[NDArray[np.int64]]:
    for block in queries.split(max(1, _SIMILARITIES // len(documents))):
        yield from top_documents((block @ documents.T).cpu().numpy())


def encode_retrieval(
    task: RetrievalTask,
    tokenizer: TextTokenizer,
    *,
    protocol: FinetuneProtocol,
    train: _Qrels,
    metrics: tuple[str, ...],
) -> EncodedRetrieval:
    """Tokenise a retrieval task once, for every run on it; `train` are its training judgements."""
    scored = {split: task.qrels[split] for split in SPLITS[1:] if split in task.qrels}
    if protocol.retrieval_corpus == "full":
        searched = set(task.corpus)
    else:
        searched = {key for qrels in scored.values() for judged in qrels.values() for key in judged}
    learnt = {key for judged in train.values() for key, score in judged.items() if score > 0}
    document_ids = tuple(sorted(searched | learnt, reverse=True))
    documents, cut = encode_texts(
        [task.corpus[document] for document in document_ids],
        tokenizer,
        max_seqlen=protocol.max_seqlen,
    )
    splits = ({"train": train} if train else {}) | scored
    queries, num_truncated = {}, {"corpus": cut}
    for split, qrels in splits.items():
        queries[split], num_truncated[split] = encode_texts(
            [task.queries[query] for query in qrels], tokenizer, max_seqlen=protocol.max_seqlen
        )
    columns = {document: column for column, document in enumerate(document_ids)}
    positives = [
        (number, columns[document])
        for number, judged in enumerate(train.values())
        for document, score in judged.items()
        if score > 0
    ]
    pairs = np.array(positives, dtype=np.int64).reshape(-1, 2)
    return EncodedRetrieval(
        info=task.info,
        pad_id=tokenizer.pad_id,
        num_truncated=num_truncated,
        similarity_scale=protocol.similarity_scale,
        query_ids={split: tuple(qrels) for split, qrels in splits.items()},
        queries=queries,
        document_ids=document_ids,
        documents=documents,
        searched=np.flatnonzero([document in searched for document in document_ids]),
        qrels=scored,
        pairs=pairs,
        known=np.sort(pairs[:, 0] * len(documents) + pairs[:, 1]),
        metrics=metrics,
    )
