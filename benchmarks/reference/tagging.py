"""Token classification with transformers alone: the first token of each word carries its tag."""

from __future__ import annotations

import json
from typing import Any

import torch
from protocol import (
    SPLITS,
    Metrics,
    parse_options,
    read_lines,
    run,
    shortest_first,
    training_arguments,
)
from seqeval.metrics import f1_score
from seqeval.scheme import IOB2
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    Trainer,
)

IGNORED = -100


def encode(rows: list[dict[str, Any]], tokenizer: Any, names: list[str]) -> list[dict[str, Any]]:
    """Tokenise sentences that are given as words."""
    encoded = tokenizer(
        [row["tokens"] for row in rows],
        is_split_into_words=True,
        truncation=True,
    )
    examples = []
    for index, row in enumerate(rows):
        words = encoded.word_ids(index)
        # Special tokens belong to no word; later tokens of a word repeat the one before.
        labels = [
            IGNORED if word is None or word == before else names.index(row["tags"][word])
            for word, before in zip(words, [None, *words[:-1]], strict=True)
        ]
        input_ids = encoded["input_ids"][index]
        # Trainer passes on only what the model takes.
        examples.append({"input_ids": input_ids, "labels": labels, "words": words, "row": row})
    return examples


def entity_f1(trainer: Trainer, examples: list[dict[str, Any]], names: list[str]) -> float:
    """Score entities, strict; a word that lost its tokens counts as `O`."""
    examples = shortest_first(examples)
    numbers = trainer.predict(examples).predictions.argmax(axis=-1)
    predicted = []
    for example, line in zip(examples, numbers, strict=True):
        tags = ["O"] * len(example["row"]["tags"])
        for word, label, number in zip(example["words"], example["labels"], line, strict=False):
            if label != IGNORED:
                tags[word] = names[number]
        predicted.append(tags)
    expected = [example["row"]["tags"] for example in examples]
    return float(f1_score(expected, predicted, mode="strict", scheme=IOB2))


def main() -> None:
    options = parse_options(__doc__)
    tokenizer = AutoTokenizer.from_pretrained(options.model, model_max_length=options.max_length)
    names = json.loads((options.data / "labels.json").read_text(encoding="utf-8"))
    splits = {
        split: encode(read_lines(options.data / f"{split}.jsonl"), tokenizer, names)
        for split in SPLITS
    }
    trainer = Trainer(
        model=AutoModelForTokenClassification.from_pretrained(
            options.model, num_labels=len(names), classifier_dropout=0.0, dtype=torch.float32
        ),
        args=training_arguments(options, len(splits["train"])),
        train_dataset=splits["train"],
        data_collator=DataCollatorForTokenClassification(tokenizer),
    )

    def evaluate() -> dict[str, Metrics]:
        return {
            split: {"entity_f1": entity_f1(trainer, splits[split], names)} for split in SPLITS[1:]
        }

    run(options, trainer, evaluate)


if __name__ == "__main__":
    main()
