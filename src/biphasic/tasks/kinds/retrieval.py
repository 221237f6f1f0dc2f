"""Retrieval: the documents that are relevant to a query; fine-tuned, or without training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from biphasic.facts import FIRST_KINDS, RANDOM_VECTORS
from biphasic.tasks.baselines import Baseline, bm25, random_retrieval, searched_documents
from biphasic.tasks.kinds.examples import SPLIT_NAMES, cut_splits, only_path
from biphasic.tasks.kinds.kind import TRAINED_ON, Examples, Facts, Learner, SplitScores, TaskKind
from biphasic.tasks.labels_and_qrels import read_qrels, read_texts
from biphasic.tasks.protocol import SIMILARITY_SCALE, FinetuneProtocol
from biphasic.tasks.records import (
    SPLITS,
    FileSettings,
    RetrievalTask,
    TaskContent,
    TaskInfo,
    TaskSettings,
    fill_document,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.tasks.encoding import Encoder

_TEXTS = ("corpus", "queries")
_TEMPLATES = ("query_template", "document_template")
_METRICS = ("ndcg_at_10", "mrr_at_10", "recall_at_100")


class Judgements(Examples):
    """Documents, queries and judgements with BEIR's names; templates join them with prompts."""

    needed = _TEXTS

    def __init__(self, query_template: str, document_template: str, *settings: str) -> None:
        self.query_template, self.document_template = query_template, document_template
        self.settings = (*_TEMPLATES, *settings, *_TEXTS)
        self.optional_files = () if settings else ("qrels/validation.tsv",)

    def file_names(self, splits: Sequence[str]) -> list[str]:
        return ["corpus.jsonl", "queries.jsonl", *(f"qrels/{split}.tsv" for split in splits)]

    def templates(self, description: TaskSettings) -> dict[str, str]:
        return {
            name: own
            for name in _TEMPLATES
            if (own := getattr(description, name)) not in {None, getattr(self, name)}
        }

    def read(
        self, folder: Path, description: TaskSettings, info: TaskInfo, files: Sequence[str]
    ) -> RetrievalTask:
        document_template = description.document_template or self.document_template
        query_template = description.query_template or self.query_template
        corpus = {
            key: fill_document(document_template, title=title, text=text)
            for key, title, text in read_texts(folder / "corpus.jsonl")
        }
        queries = {
            key: fill_document(query_template, title="", text=text)
            for key, _, text in read_texts(folder / "queries.jsonl")
        }
        qrels = {
            split: read_qrels(folder / "qrels" / f"{split}.tsv", queries=queries, corpus=corpus)
            for split in SPLITS
            if f"qrels/{split}.tsv" in files
        }
        return RetrievalTask(info, corpus, queries, qrels, query_template, document_template)

    def inputs(self, task: RetrievalTask, split: str) -> Iterator[str]:
        for query in task.qrels.get(split, ()):
            yield task.queries[query]

    def sample(self, task: RetrievalTask, *, most: int) -> list[Any]:
        both = (task.queries.values(), task.corpus.values())
        return [text for texts in both for text in islice(texts, most)]

    def find_files(self, folder: Path) -> dict[str, Path]:
        options = {key: [folder / f"{key}.jsonl"] for key in _TEXTS}
        for split, names in SPLIT_NAMES.items():
            options[split] = [folder / "qrels" / f"{name}.tsv" for name in names.split("|")]
        files = {}
        for key, plain in options.items():
            paths = [
                path.with_name(path.name + end) for end in ("", ".gz", ".zst") for path in plain
            ]
            if path := only_path([path for path in paths if path.is_file()]):
                files[key] = path
        return files

    def usual_names(self, content: str) -> str:
        if content in _TEXTS:
            return f"{content}.jsonl"
        return " or ".join(f"qrels/{name}.tsv" for name in SPLIT_NAMES[content].split("|"))

    def read_files(
        self, file: FileSettings, files: Mapping[str, Path], *, where: str
    ) -> tuple[TaskContent, dict[str, int]]:
        corpus = {key: (title, text) for key, title, text in read_texts(files["corpus"])}
        queries = {key: text for key, _, text in read_texts(files["queries"])}
        judged = {
            split: list(read_qrels(files[split], queries=queries, corpus=corpus).items())
            for split in SPLITS
            if split in files
        }
        cut = cut_splits(judged, file, where=where)
        content = TaskContent(
            corpus=[
                {"_id": key, "title": title, "text": text} for key, (title, text) in corpus.items()
            ],
            queries=[{"_id": key, "text": text} for key, text in queries.items()],
            qrels={
                split: [
                    (query, document, score)
                    for query, documents in judgements
                    for document, score in documents.items()
                ]
                for split, judgements in cut.items()
            },
        )
        return content, {split: len(judgements) for split, judgements in cut.items()}


class RetrievalLearner(Learner):
    """InfoNCE with in-batch negatives on mean states; documents and queries as token sequences."""

    # 64 MiB; all similarities of a full split to millions of documents would not fit.
    similarities_at_once: ClassVar[int] = 2**24
    is_trained: ClassVar[bool] = True

    def encode(self, task: RetrievalTask) -> None:
        train = task.qrels.get("train", {}) if self.is_trained else {}
        self.qrels = {split: task.qrels[split] for split in self.scored}
        searched = {*searched_documents(task, self.protocol)}
        # Training documents are tokenised as well, but not searched for it.
        learnt = {key for judged in train.values() for key, score in judged.items() if score > 0}
        # Descending, so that ties break as in trec_eval (`metrics.top_documents`).
        self.document_ids = tuple(sorted(searched | learnt, reverse=True))
        self.searched = np.flatnonzero([key in searched for key in self.document_ids])
        self.documents = self.framed([task.corpus[key] for key in self.document_ids], "corpus")
        judged = {"train": train, **self.qrels} if train else self.qrels
        self.queries = {
            split: self.framed([task.queries[query] for query in qrels], split)
            for split, qrels in judged.items()
        }
        columns = {document: column for column, document in enumerate(self.document_ids)}
        positives = [
            (number, columns[document])
            for number, judged in enumerate(train.values())
            for document, score in judged.items()
            if score > 0
        ]
        # Training query and relevant document, as indices, [num_pairs, 2], and their sorted codes.
        self.pairs = np.array(positives, dtype=np.int64).reshape(-1, 2)
        self.known = np.sort(self.pairs[:, 0] * len(self.documents) + self.pairs[:, 1])
        self.num_train = len(self.pairs)
        read = np.unique(self.pairs[:, 1]).tolist()
        learnt_documents = [self.documents[document] for document in read]
        self.trained_sequences = self.queries.get("train", []) + learnt_documents

    def loss(self, encoder: Encoder, head: nn.Module, indices: NDArray[np.int64]) -> Tensor:
        """Return InfoNCE: each query must find its document among those of the batch."""
        # A query's negatives exclude the same document in other pairs, and others relevant to it.
        # In-batch negatives: Henderson et al. 2017, arXiv:1705.00652, section 4.4.
        import torch
        from torch.nn.functional import cross_entropy, normalize

        from biphasic.model.compute.forward import pooled

        pairs = self.pairs[indices]
        sequences = [self.queries["train"][query] for query in pairs[:, 0]]
        sequences += [self.documents[document] for document in pairs[:, 1]]
        hidden, spans = encoder.states(sequences)
        vectors = normalize(head(pooled(hidden, spans)), dim=-1)
        queries, documents = vectors[: len(pairs)], vectors[len(pairs) :]
        logits = SIMILARITY_SCALE * queries @ documents.T
        codes = pairs[:, :1] * len(self.documents) + pairs[:, 1]
        # `np.isin` would sort all known codes again at every step.
        places = np.searchsorted(self.known, codes).clip(max=len(self.known) - 1)
        also_relevant = self.known[places] == codes
        # The diagonal is each query's own document, its target.
        np.fill_diagonal(also_relevant, val=False)
        hidden_pairs = torch.from_numpy(also_relevant).to(logits.device)
        targets = torch.arange(len(pairs), device=logits.device)
        # A relevant document as a negative would teach the contrary of its judgement.
        return cross_entropy(logits.masked_fill(hidden_pairs, -torch.inf), targets)

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score validation and test where judgements exist; a query's score is its nDCG@10."""
        from torch.nn.functional import normalize

        searched = encoder.pooled([self.documents[index] for index in self.searched])
        documents = normalize(head(searched), dim=-1)
        return {split: self._evaluate(encoder, head, split, documents) for split in self.qrels}

    def _evaluate(
        self, encoder: Encoder, head: nn.Module, split: str, documents: Tensor
    ) -> SplitScores:
        from torch.nn.functional import normalize

        ids = tuple(self.qrels[split])
        queries = normalize(head(encoder.pooled(self.queries[split])), dim=-1)
        rankings = {
            query: [self.document_ids[self.searched[column]] for column in columns]
            for query, columns in zip(ids, self._ranked(queries, documents), strict=True)
        }
        return self.score(self.task, split, rankings)

    def _ranked(self, queries: Tensor, documents: Tensor) -> Iterator[NDArray[np.int64]]:
        from biphasic.tasks.metrics import top_documents

        for block in queries.split(max(1, self.similarities_at_once // len(documents))):
            yield from top_documents((block @ documents.T).cpu().numpy())

    @classmethod
    def score(cls, task: RetrievalTask, split: str, predicted: Any) -> SplitScores:
        """Score rankings: the best documents of each query."""
        from biphasic.tasks.metrics import retrieval_scores

        ids, scores = tuple(task.qrels[split]), retrieval_scores(predicted, task.qrels[split])
        columns = {name: np.array([scores[query][name] for query in ids]) for name in _METRICS}
        metrics = {name: float(column.mean()) for name, column in columns.items()}
        return SplitScores(metrics, ids, columns["ndcg_at_10"], columns)

    @classmethod
    def head_fields(
        cls, task: RetrievalTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> dict[str, Any]:
        return {name: getattr(task, name) for name in _TEMPLATES}


class _ZeroShotLearner(RetrievalLearner):
    is_trained = False


class Retrieval(TaskKind):
    """InfoNCE with in-batch negatives on mean states; nDCG@10."""

    name = "ir"
    examples = Judgements("Query: {text}", "Document: {title}. {text}", TRAINED_ON)
    learner = RetrievalLearner
    facts = Facts(
        **vars(FIRST_KINDS["ir"]),
        unit="queries",
        trained_unit="query-document pairs",
        texts_per_item=2,
        is_cosine=True,
        does="embeds queries and documents; related ones are close",
        pipeline="sentence-similarity",
        hub_task="information-retrieval",
    )
    baselines: ClassVar[Mapping[str, Baseline]] = {
        RANDOM_VECTORS: random_retrieval,
        "reference:bm25": bm25,
    }


class ZeroShot(Retrieval):
    """Retrieval by the mean states of an encoder as it is, without prompts."""

    name = "zs"
    examples = Judgements("{text}", "{title} {text}")
    learner = _ZeroShotLearner
    facts = replace(Retrieval.facts, **vars(FIRST_KINDS["zs"]))
    derived_from = Retrieval.name
