"""Retrieval: mean-pooled states, cosine similarity, in-batch negatives, nDCG@10."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray
from torch import Tensor, nn

from biphasic.data.tokenizer import TextTokenizer
from biphasic.tasks.encoding import Encoder, SplitScores, TokenIds, encode_texts, mean_pool
from biphasic.tasks.metrics import METRICS_BY_KIND, retrieval_scores, top_documents
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, RetrievalTask, TaskInfo


@dataclass(frozen=True, slots=True)
class EncodedRetrieval:
    """A retrieval task as token sequences.

    Attributes:
        query_ids: For each split the ids of its judged queries.
        queries: For each split the sequences of these.
        document_ids: All ids, in descending order: the order of the columns of similarities, so
            that ties fall as trec_eval breaks them (`metrics.top_documents`).
        documents: The sequences of these.
        searched: The documents that validation and test search, as indices, ascending.
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
    qrels: dict[str, dict[str, dict[str, int]]]
    pairs: NDArray[np.int64]
    known: NDArray[np.int64]

    @property
    def num_outputs(self) -> int:
        """Zero: the pooled states are compared as they are."""
        return 0

    @property
    def num_train(self) -> int:
        """Number of training pairs."""
        return len(self.pairs)

    def loss(self, encoder: Encoder, head: nn.Module, indices: NDArray[np.int64]) -> Tensor:
        """Return InfoNCE: each query must find its document among those of the batch.

        A document of another pair that is relevant to the query too, or is the same document, is
        left out of the query's negatives.

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
        also_relevant = np.isin(codes, self.known)
        np.fill_diagonal(also_relevant, val=False)
        hidden_pairs = torch.from_numpy(also_relevant).to(logits.device)
        targets = torch.arange(len(pairs), device=logits.device)
        return F.cross_entropy(logits.masked_fill(hidden_pairs, -torch.inf), targets)

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score validation and test: for each query its nDCG@10."""
        searched = encoder.pooled([self.documents[index] for index in self.searched])
        documents = F.normalize(head(searched), dim=-1)
        return {split: self._evaluate(encoder, head, split, documents) for split in SPLITS[1:]}

    def _evaluate(
        self, encoder: Encoder, head: nn.Module, split: str, documents: Tensor
    ) -> SplitScores:
        ids = self.query_ids[split]
        queries = F.normalize(head(encoder.pooled(self.queries[split])), dim=-1)
        ranked = top_documents((queries @ documents.T).cpu().numpy())
        rankings = {
            query: [self.document_ids[self.searched[column]] for column in columns]
            for query, columns in zip(ids, ranked, strict=True)
        }
        scores = retrieval_scores(rankings, self.qrels[split])
        metrics = {
            name: float(np.mean([scores[query][name] for query in ids]))
            for name in METRICS_BY_KIND["ir"]
        }
        per_query = np.array([scores[query]["ndcg_at_10"] for query in ids])
        return SplitScores(metrics, ids, per_query)


def encode_retrieval(
    task: RetrievalTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
) -> EncodedRetrieval:
    """Tokenise a retrieval task once, for every run on it."""
    document_ids = tuple(sorted(task.corpus, reverse=True))
    documents, cut = encode_texts(
        [f"Document: {task.corpus[document]}" for document in document_ids],
        tokenizer,
        max_seqlen=protocol.max_seqlen,
    )
    queries, num_truncated = {}, {"corpus": cut}
    for split in SPLITS:
        queries[split], num_truncated[split] = encode_texts(
            [f"Query: {task.queries[query]}" for query in task.qrels[split]],
            tokenizer,
            max_seqlen=protocol.max_seqlen,
        )
    pairs = _training_pairs(task, document_ids)
    return EncodedRetrieval(
        info=task.info,
        pad_id=tokenizer.pad_id,
        num_truncated=num_truncated,
        similarity_scale=protocol.similarity_scale,
        query_ids={split: tuple(task.qrels[split]) for split in SPLITS},
        queries=queries,
        document_ids=document_ids,
        documents=documents,
        searched=_searched(task, document_ids, protocol.retrieval_corpus),
        qrels={
            split: {query: dict(judged) for query, judged in task.qrels[split].items()}
            for split in SPLITS
        },
        pairs=pairs,
        known=np.sort(pairs[:, 0] * len(documents) + pairs[:, 1]),
    )


def _training_pairs(task: RetrievalTask, document_ids: tuple[str, ...]) -> NDArray[np.int64]:
    columns = {document: column for column, document in enumerate(document_ids)}
    pairs = [
        (number, columns[document])
        for number, judged in enumerate(task.qrels["train"].values())
        for document, score in judged.items()
        if score > 0
    ]
    return np.array(pairs, dtype=np.int64)


def _searched(
    task: RetrievalTask, document_ids: tuple[str, ...], corpus: Literal["full", "judged"]
) -> NDArray[np.int64]:
    if corpus == "full":
        return np.arange(len(document_ids))
    judged = {
        document
        for split in SPLITS[1:]
        for documents in task.qrels[split].values()
        for document in documents
    }
    return np.flatnonzero([document in judged for document in document_ids])
