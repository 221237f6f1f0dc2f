"""Retrieval with sentence-transformers alone: in-batch negatives, and its own evaluator."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from datasets import Dataset
from protocol import BATCH_SIZE, SPLITS, Metrics, parse_options, read_lines, run, training_arguments
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.training_args import BatchSamplers

SCALE = 20.0


@dataclass
class Texts:
    """Queries and documents by id, as the model reads them, and the relevant ones by split."""

    queries: dict[str, str]
    corpus: dict[str, str]
    qrels: dict[str, dict[str, set[str]]]


def read_texts(folder: Path, *, query: str, document: str) -> Texts:
    """Read a BEIR folder; `query` and `document` are templates."""
    queries, corpus = (read_lines(folder / f"{name}.jsonl") for name in ("queries", "corpus"))
    qrels: dict[str, dict[str, set[str]]] = {split: {} for split in SPLITS}
    for split, relevant in qrels.items():
        rows = (folder / "qrels" / f"{split}.tsv").read_text(encoding="utf-8").splitlines()[1:]
        for query_id, document_id, score in (row.split("\t") for row in rows):
            if int(score) > 0:
                relevant.setdefault(query_id, set()).add(document_id)
    return Texts(
        queries={row["_id"]: query.format(**row) for row in queries},
        corpus={row["_id"]: document.format(**row) for row in corpus},
        qrels=qrels,
    )


def load_model(options: argparse.Namespace) -> SentenceTransformer:
    """Load the encoder as its makers mean it: the mean of all tokens, normalised."""
    model = SentenceTransformer(str(options.model))
    model.max_seq_length = options.max_length
    return model


def search(
    model: SentenceTransformer, texts: Texts, options: argparse.Namespace
) -> dict[str, Metrics]:
    """Search all documents for the queries of validation and test."""
    is_rounded = options.precision == "bf16"
    with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=is_rounded):
        documents = list(texts.corpus.values())
        # Once for both splits; the evaluator by itself would do it for each.
        encoded = model.encode(documents, batch_size=BATCH_SIZE, convert_to_tensor=True).float()
        metrics = {}
        for split in SPLITS[1:]:
            evaluator = InformationRetrievalEvaluator(
                texts.queries, texts.corpus, texts.qrels[split], batch_size=BATCH_SIZE
            )
            scores = evaluator(model, corpus_embeddings=encoded)
            metrics[split] = {
                "ndcg_at_10": scores["cosine_ndcg@10"],
                "mrr_at_10": scores["cosine_mrr@10"],
            }
    return metrics


def main() -> None:
    options = parse_options(__doc__)
    texts = read_texts(options.data, query="Query: {text}", document="Document: {title}. {text}")
    pairs = [
        {"anchor": texts.queries[query], "positive": texts.corpus[document]}
        for query, documents in texts.qrels["train"].items()
        for document in sorted(documents)
    ]
    model = load_model(options)
    arguments = training_arguments(
        options,
        len(pairs),
        kind=SentenceTransformerTrainingArguments,
        # Two pairs of one query must not be each other's negatives.
        batch_sampler=BatchSamplers.NO_DUPLICATES,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(pairs),
        loss=MultipleNegativesRankingLoss(model, scale=SCALE),
    )
    run(options, trainer, lambda: search(model, texts, options))


if __name__ == "__main__":
    main()
