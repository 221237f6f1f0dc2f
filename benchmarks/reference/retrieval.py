"""Retrieval with sentence-transformers alone: in-batch negatives, and its own evaluator."""

from __future__ import annotations

from pathlib import Path

import torch
from datasets import Dataset
from protocol import (
    BATCH_SIZE,
    MAX_LENGTH,
    SPLITS,
    Metrics,
    parse_options,
    read_lines,
    run,
    training_arguments,
)
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.training_args import BatchSamplers

SCALE = 20.0


def read_qrels(path: Path) -> dict[str, set[str]]:
    """Return the relevant documents of each query."""
    qrels: dict[str, set[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        query, document, score = line.split("\t")
        if int(score) > 0:
            qrels.setdefault(query, set()).add(document)
    return qrels


def main() -> None:
    options = parse_options(__doc__)
    queries = {
        row["_id"]: f"Query: {row['text']}" for row in read_lines(options.data / "queries.jsonl")
    }
    corpus = {
        row["_id"]: f"Document: {row['title']}. {row['text']}"
        for row in read_lines(options.data / "corpus.jsonl")
    }
    qrels = {split: read_qrels(options.data / "qrels" / f"{split}.tsv") for split in SPLITS}
    pairs = [
        {"anchor": queries[query], "positive": corpus[document]}
        for query, documents in qrels["train"].items()
        for document in sorted(documents)
    ]

    model = SentenceTransformer(str(options.model))
    model.max_seq_length = MAX_LENGTH
    trainer = SentenceTransformerTrainer(
        model=model,
        args=training_arguments(
            options,
            len(pairs),
            kind=SentenceTransformerTrainingArguments,
            # Two pairs of one query must not be each other's negatives.
            batch_sampler=BatchSamplers.NO_DUPLICATES,
        ),
        train_dataset=Dataset.from_list(pairs),
        loss=MultipleNegativesRankingLoss(model, scale=SCALE),
    )
    embeddings: list[torch.Tensor] = []

    def evaluate(split: str) -> Metrics:
        evaluator = InformationRetrievalEvaluator(
            queries, corpus, qrels[split], ndcg_at_k=[10], mrr_at_k=[10], batch_size=BATCH_SIZE
        )
        with torch.autocast(
            model.device.type, dtype=torch.bfloat16, enabled=options.precision == "bf16"
        ):
            if not embeddings:  # both splits search the same documents
                texts = list(corpus.values())
                embeddings.append(
                    model.encode(texts, batch_size=BATCH_SIZE, convert_to_tensor=True).float()
                )
            scores = evaluator(model, corpus_embeddings=embeddings[0])
        return {"ndcg_at_10": scores["cosine_ndcg@10"], "mrr_at_10": scores["cosine_mrr@10"]}

    run(options, trainer, evaluate)


if __name__ == "__main__":
    main()
