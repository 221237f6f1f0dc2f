"""Retrieval: the documents that are relevant to a query; fine-tuned, or without training."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from biphasic.facts import FIRST_KINDS, RANDOM_VECTORS
from biphasic.tasks.baselines import Baseline, bm25, random_retrieval
from biphasic.tasks.kinds.kind import TRAINED_ON, EncodedTask, SplitScores, TaskKind
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, RetrievalTask, TaskInfo
from biphasic.tasks.rows.beir import read_qrels, read_texts
from biphasic.tasks.rows.content import TaskContent
from biphasic.tasks.rows.splits import SPLIT_NAMES, cut_splits, only_path
from biphasic.tasks.rows.templates import fill_document

if TYPE_CHECKING:
    from torch import Tensor, nn

    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.tasks.encoding import Encoder
    from biphasic.tasks.folder import TaskDescription
    from biphasic.tasks.task_file import TaskFile

_TEXTS = ("corpus", "queries")
_TEMPLATES = ("query_template", "document_template")
_Qrels = Mapping[str, Mapping[str, int]]


class Retrieval(TaskKind):
    """InfoNCE with in-batch negatives on mean states; nDCG@10."""

    name = "ir"
    is_cosine = True
    facts = FIRST_KINDS["ir"]
    settings: ClassVar[tuple[str, ...]] = (*_TEMPLATES, TRAINED_ON, *_TEXTS)
    needed = _TEXTS
    unit = "queries"
    trained_unit = "query-document pairs"
    texts_per_item = 2
    does = "embeds queries and documents; related ones are close"
    pipeline = "sentence-similarity"
    hub_task = "information-retrieval"
    baselines: ClassVar[Mapping[str, Baseline]] = {
        RANDOM_VECTORS: random_retrieval,
        "reference:bm25": bm25,
    }
    query_template: ClassVar[str] = "Query: {text}"
    document_template: ClassVar[str] = "Document: {title}. {text}"

    def file_names(self, *, trained_on: str | None) -> list[str]:
        """Return documents, queries and judgements."""
        splits = self.splits(trained_on=trained_on)
        return ["corpus.jsonl", "queries.jsonl", *(f"qrels/{split}.tsv" for split in splits)]

    def templates(self, description: TaskDescription) -> dict[str, str]:
        """Return the prompts that differ from the kind's: these were once fixed."""
        return {
            name: given
            for name in _TEMPLATES
            if (given := getattr(description, name)) not in {None, getattr(self, name)}
        }

    def read(
        self, folder: Path, description: TaskDescription, info: TaskInfo, files: Collection[str]
    ) -> RetrievalTask:
        """Read documents, queries and judgements; see `rows/beir.py`."""
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
        """Yield the judged queries; documents are those of all splits."""
        for query in task.qrels.get(split, ()):
            yield task.queries[query]

    def sample(self, task: RetrievalTask, *, most: int) -> list[Any]:
        """Return a few queries and documents."""
        both = (task.queries.values(), task.corpus.values())
        return [text for texts in both for text in islice(texts, most)]

    def find_files(self, folder: Path) -> dict[str, Path]:
        """Return documents, queries and judgements with BEIR's names."""
        options = {key: [folder / f"{key}.jsonl"] for key in _TEXTS}
        for split, names in SPLIT_NAMES.items():
            options[split] = [folder / "qrels" / f"{name}.tsv" for name in names.split("|")]
        files = {}
        for key, plain in options.items():
            paths = [*plain, *(path.with_name(f"{path.name}.gz") for path in plain)]
            if path := only_path([path for path in paths if path.is_file()]):
                files[key] = path
        return files

    def usual_names(self, content: str) -> str:
        """Describe the usual names of judgements, or of texts."""
        if content in _TEXTS:
            return f"{content}.jsonl"
        return " or ".join(f"qrels/{name}.tsv" for name in SPLIT_NAMES[content].split("|"))

    def read_files(
        self, file: TaskFile, files: Mapping[str, Path], *, where: str
    ) -> tuple[TaskContent, dict[str, int]]:
        """Read the user's documents, queries and judgements."""
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

    def encode(
        self, task: RetrievalTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> EncodedRetrieval:
        """Tokenise queries and documents."""
        train = task.qrels.get("train", {}) if self.facts.is_trained else {}
        metrics = self.facts.metric_keys
        return EncodedRetrieval(task, tokenizer, protocol=protocol, train=train, metrics=metrics)

    def score_predictions(self, task: RetrievalTask, split: str, predicted: Any) -> SplitScores:
        """Score rankings: the best documents of each query."""
        return _score_rankings(predicted, task.qrels[split], self.facts.metric_keys)

    def head_fields(
        self, task: RetrievalTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> dict[str, Any]:
        """Return the prompts."""
        return {name: getattr(task, name) for name in _TEMPLATES}


class ZeroShot(Retrieval):
    """Retrieval by the mean states of an encoder as it is, without prompts."""

    name = "zs"
    facts = FIRST_KINDS["zs"]
    settings = (*_TEMPLATES, *_TEXTS)
    optional_files = ("qrels/validation.tsv",)
    derived_from = Retrieval.name
    query_template = "{text}"
    document_template = "{title} {text}"


class EncodedRetrieval(EncodedTask):
    """A retrieval task as token sequences."""

    # 64 MiB; all similarities of a full split to millions of documents would not fit.
    similarities_at_once: ClassVar[int] = 2**24

    def __init__(
        self,
        task: RetrievalTask,
        tokenizer: TextTokenizer,
        *,
        protocol: FinetuneProtocol,
        train: _Qrels,
        metrics: tuple[str, ...],
    ) -> None:
        self.info, self.pad_id, self.metrics = task.info, tokenizer.pad_id, metrics
        self.scale = protocol.similarity_scale
        self.qrels = {split: task.qrels[split] for split in SPLITS[1:] if split in task.qrels}
        searched = (
            set(task.corpus)
            if protocol.retrieval_corpus == "full"
            else {
                key for qrels in self.qrels.values() for judged in qrels.values() for key in judged
            }
        )
        learnt = {key for judged in train.values() for key, score in judged.items() if score > 0}
        # Descending, so that ties break as in trec_eval (`metrics.top_documents`).
        self.document_ids = tuple(sorted(searched | learnt, reverse=True))
        self.searched = np.flatnonzero([key in searched for key in self.document_ids])
        self._encode(task, tokenizer, train, max_seqlen=protocol.max_seqlen)
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

    def _encode(
        self, task: RetrievalTask, tokenizer: TextTokenizer, train: _Qrels, *, max_seqlen: int
    ) -> None:
        from biphasic.tasks.encoding import encode_texts

        texts = [task.corpus[document] for document in self.document_ids]
        self.documents, num_cut = encode_texts(texts, tokenizer, max_seqlen=max_seqlen)
        self.queries, self.num_truncated = {}, {"corpus": num_cut}
        for split, qrels in (({"train": train} if train else {}) | self.qrels).items():
            texts = [task.queries[query] for query in qrels]
            encoded = encode_texts(texts, tokenizer, max_seqlen=max_seqlen)
            self.queries[split], self.num_truncated[split] = encoded

    def loss(self, encoder: Encoder, head: nn.Module, indices: NDArray[np.int64]) -> Tensor:
        """Return InfoNCE: each query must find its document among those of the batch."""
        # A query's negatives exclude the same document in other pairs, and others relevant to it.
        # In-batch negatives: Henderson et al. 2017, arXiv:1705.00652, section 4.4.
        import torch
        from torch.nn.functional import cross_entropy, normalize

        from biphasic.tasks.encoding import mean_pool

        pairs = self.pairs[indices]
        sequences = [self.queries["train"][query] for query in pairs[:, 0]]
        sequences += [self.documents[document] for document in pairs[:, 1]]
        hidden, spans = encoder.states(sequences)
        pooled = normalize(head(mean_pool(hidden, spans)), dim=-1)
        queries, documents = pooled[: len(pairs)], pooled[len(pairs) :]
        logits = self.scale * queries @ documents.T
        codes = pairs[:, :1] * len(self.documents) + pairs[:, 1]
        # `np.isin` would sort all known codes again at every step.
        places = np.searchsorted(self.known, codes).clip(max=len(self.known) - 1)
        also_relevant = self.known[places] == codes
        np.fill_diagonal(also_relevant, val=False)
        hidden_pairs = torch.from_numpy(also_relevant).to(logits.device)
        targets = torch.arange(len(pairs), device=logits.device)
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
        return _score_rankings(rankings, self.qrels[split], self.metrics)

    def _ranked(self, queries: Tensor, documents: Tensor) -> Iterator[NDArray[np.int64]]:
        from biphasic.tasks.metrics import top_documents

        for block in queries.split(max(1, self.similarities_at_once // len(documents))):
            yield from top_documents((block @ documents.T).cpu().numpy())


def _score_rankings(
    rankings: Mapping[str, list[str]], qrels: _Qrels, names: tuple[str, ...]
) -> SplitScores:
    from biphasic.tasks.metrics import retrieval_scores

    ids, scores = tuple(qrels), retrieval_scores(rankings, qrels)
    columns = {name: np.array([scores[query][name] for query in ids]) for name in names}
    metrics = {name: float(column.mean()) for name, column in columns.items()}
    return SplitScores(metrics, ids, columns["ndcg_at_10"], columns)
