"""Sequence classification with transformers alone: a linear head on mean-pooled states."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from protocol import (
    SPLITS,
    Metrics,
    parse_options,
    read_lines,
    run,
    shortest_first,
    training_arguments,
)
from sklearn.metrics import accuracy_score, f1_score
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, DataCollatorWithPadding, Trainer


class Classifier(nn.Module):
    """An encoder, the mean over its real tokens, and a linear layer."""

    def __init__(self, folder: Path, num_labels: int) -> None:
        super().__init__()
        self.encoder = AutoModel.from_pretrained(folder, dtype=torch.float32)
        self.head = nn.Linear(self.encoder.config.hidden_size, num_labels)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        output = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        mask = attention_mask[:, :, None]
        logits = self.head((output.last_hidden_state * mask).sum(1) / mask.sum(1))
        return {"loss": F.cross_entropy(logits.float(), labels), "logits": logits}


def main() -> None:
    options = parse_options(__doc__)
    tokenizer = AutoTokenizer.from_pretrained(options.model, model_max_length=options.max_length)
    splits = {}
    for split in SPLITS:
        rows = read_lines(options.data / f"{split}.jsonl")
        texts = [row["text"] for row in rows]
        encoded = tokenizer(texts, truncation=True)
        splits[split] = [
            {"input_ids": input_ids, "labels": row["label"]}
            for input_ids, row in zip(encoded["input_ids"], rows, strict=True)
        ]

    trainer = Trainer(
        model=Classifier(options.model, len({row["labels"] for row in splits["train"]})),
        args=training_arguments(options, len(splits["train"])),
        train_dataset=splits["train"],
        data_collator=DataCollatorWithPadding(tokenizer),
    )

    def evaluate() -> dict[str, Metrics]:
        metrics = {}
        for split in SPLITS[1:]:
            output = trainer.predict(shortest_first(splits[split]))
            predicted = output.predictions.argmax(axis=1)
            metrics[split] = {
                "accuracy": accuracy_score(output.label_ids, predicted),
                "macro_f1": f1_score(output.label_ids, predicted, average="macro"),
            }
        return metrics

    run(options, trainer, evaluate)


if __name__ == "__main__":
    main()
