"""Retrieval: the documents that are relevant to a query; fine-tuned, or without training."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from biphasic.facts import FIRST_KINDS
from biphasic.tasks.kinds.kind import TRAINED_ON, TaskKind
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, RetrievalTask, TaskInfo
from biphasic.tasks.rows.beir import read_qrels, read_texts
from biphasic.tasks.rows.content import TaskContent
from biphasic.tasks.rows.names import SPLIT_NAMES, only_path
from biphasic.tasks.rows.splits import cut_splits
from biphasic.tasks.rows.templates import fill_document

if TYPE_CHECKING:
    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.tasks.custom.task_file import TaskFile
    from biphasic.tasks.encoded.retrieval import EncodedRetrieval
    from biphasic.tasks.formats.folder import TaskDescription

_TEXTS = ("corpus", "queries")
_TEMPLATES = ("query_template", "document_template")


class Retrieval(TaskKind):
    """InfoNCE with in-batch negatives on mean states; nDCG@10.

    Attributes:
        query_template: Prompt of queries: the reference study's, arXiv:2507.00994.
        document_template: Prompt of documents.
    """

    name = "ir"
    facts = FIRST_KINDS["ir"]
    settings: ClassVar[tuple[str, ...]] = (*_TEMPLATES, TRAINED_ON, *_TEXTS)
    unit = "queries"
    trained_unit = "query-document pairs"
    texts_per_item = 2
    predicts = False
    does = "embeds queries and documents; related ones are close"
    pipeline = "sentence-similarity"
    hub_task = "information-retrieval"
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
        return RetrievalTask(info, corpus, queries, qrels)

    def inputs(self, task: RetrievalTask, split: str) -> Iterator[str]:
        """Yield the judged queries; documents are those of all splits."""
        for query in task.qrels.get(split, ()):
            yield task.queries[query]

    def sample(self, task: RetrievalTask, *, most: int) -> list[Any]:
        """Return a few queries and documents."""
        both = (task.queries.values(), task.corpus.values())
        return [text for texts in both for text in islice(texts, most)]

    def needed_files(self) -> tuple[str, ...]:
        """Return documents and queries."""
        return _TEXTS

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
        from biphasic.tasks.encoded.retrieval import encode_retrieval  # noqa: PLC0415

        train = task.qrels.get("train", {}) if self.facts.is_trained else {}
        return encode_retrieval(
            task, tokenizer, protocol=protocol, train=train, metrics=self.facts.metric_keys
        )

    def num_outputs(self, labels: Sequence[str]) -> int:
        """Return none: pooled states are compared directly."""
        del labels
        return 0

    def head_fields(
        self,
        task: RetrievalTask,
        folder: Path,
        description: TaskDescription,
        tokenizer: TextTokenizer,
        protocol: FinetuneProtocol,
    ) -> dict[str, Any]:
        """Return the prompts."""
        del task, folder, tokenizer, protocol
        return {name: getattr(description, name) or getattr(self, name) for name in _TEMPLATES}


class ZeroShot(Retrieval):
    """Retrieval by the mean states of an encoder as it is, without prompts."""

    name = "zs"
    facts = FIRST_KINDS["zs"]
    settings = (*_TEMPLATES, *_TEXTS)
    derived_from = Retrieval.name
    query_template = "{text}"
    document_template = "{title} {text}"

    def optional_files(self) -> tuple[str, ...]:
        """Return the judgements for validation."""
        return ("qrels/validation.tsv",)
