"""Pairs per CPU second of contrastive training, ours against sentence-transformers' trainer.

Both start from the same folder, read the same pairs in fp32 on one thread, cut to the same length,
and update by AdamW. They take turns in one process, a few steps each, so a slow minute hits both.
From a batch of 256 on, both cache gradients: ours in passes of `--tokens`, theirs with
`CachedMultipleNegativesRankingLoss` of 64 texts. See README.md beside this file.

    .venv/bin/python benchmarks/embedding.py MODEL PAIRS --batches 32 128 1024

MODEL is a sentence-transformers folder, as `biphasic export --format sentence-transformers` makes
it; PAIRS a folder made by `biphasic pairs build`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from datasets import Dataset
from harness import command_line, write_records
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from transformers import TrainerCallback

from biphasic.config import parse_config
from biphasic.data.corpus import Corpus
from biphasic.data.pairs.folder import Pairs
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.distributed import ALONE
from biphasic.model.loading.hub import fetch_model
from biphasic.training.compute import ComputeConfig
from biphasic.training.data import TrainingData
from biphasic.training.memory import tune_allocator
from biphasic.training.recipe import Recipe
from biphasic.training.run import first_model
from biphasic.training.step.coupled import coupled_backward
from biphasic.training.step.input import StepInputs
from biphasic.training.step.optimizer import set_precision
from biphasic.training.step.passes import pass_loss

RATE, CACHED_FROM, TEXTS_PER_PASS = 2e-5, 256, 64


def our_steps(
    folder: Path, pairs: Pairs, *, batch: int, length: int, tokens: int
) -> Iterator[None]:
    """Train our model, a step at a time."""
    recipe = parse_config(
        Recipe,
        {
            "model": {"pretrained": str(folder)},
            "max_seqlen": length,
            "precision": "fp32",
            "learning_rate": {"peak": RATE, "warmup_steps": 0, "decay_steps": 0},
            "phases": [
                {
                    "objective": "contrastive",
                    "pairs": str(pairs.folder),
                    "steps": 100_000,
                    "batch": batch,
                    "hard_negatives": 0,
                }
            ],
        },
        where="benchmark",
    )
    no_text = cast(Corpus, SimpleNamespace(content_hash=""))
    data = TrainingData(
        corpus=no_text,
        heldout=no_text,
        tokenizer=TextTokenizer.load(folder),
        pretrained=fetch_model(str(folder)),
        pairs={pairs.folder: pairs},
    )
    model = first_model(recipe, data)
    weights = set_precision(model, "fp32")
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    compute = ComputeConfig(max_tokens_per_pass=tokens if batch >= CACHED_FROM else None)
    inputs = StepInputs(recipe, data, model, compute=compute)
    for step in range(100_000):
        coupled_backward(
            inputs.of(step),
            partial(pass_loss, model),
            weights,
            device=model.device,
            ranks=ALONE,
            divided=None,
        )
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield


class Clock(TrainerCallback):
    """CPU seconds from the end of the first step to that of the last."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Note the time."""
        self.times.append(time.process_time())


def their_seconds(folder: Path, pairs: Pairs, *, batch: int, length: int, steps: int) -> float:
    """Train with sentence-transformers' trainer; return the CPU seconds of a step."""
    model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = length
    loss = (
        CachedMultipleNegativesRankingLoss(model, mini_batch_size=TEXTS_PER_PASS)
        if batch >= CACHED_FROM
        else MultipleNegativesRankingLoss(model)
    )
    columns = {"anchor": [p.query for p in pairs], "positive": [p.positive for p in pairs]}
    clock = Clock()
    with tempfile.TemporaryDirectory() as out:
        settings = SentenceTransformerTrainingArguments(
            output_dir=out,
            max_steps=steps + 1,
            per_device_train_batch_size=batch,
            learning_rate=RATE,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        SentenceTransformerTrainer(
            model=model,
            args=settings,
            train_dataset=Dataset.from_dict(columns),
            loss=loss,
            callbacks=[clock],
        ).train()
    return (clock.times[-1] - clock.times[0]) / steps


def main() -> None:
    """Measure, print a table and write the records."""
    parser = command_line(__doc__, "embedding")
    parser.add_argument("model", type=Path)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 128, 1024])
    parser.add_argument("--length", type=int, default=128, help="tokens; longer texts are cut")
    parser.add_argument("--tokens", type=int, default=8192, help="of a pass, with caching")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="of each side in a round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tune_allocator()
    folder, pairs = options.model.resolve(), Pairs(options.pairs.resolve())
    records = []
    for batch in options.batches:
        ours = our_steps(folder, pairs, batch=batch, length=options.length, tokens=options.tokens)
        next(ours)  # warm-up
        rates: list[tuple[float, float]] = []
        for _ in range(options.rounds):
            began = time.process_time()
            for _ in range(options.steps):
                next(ours)
            own = (time.process_time() - began) / options.steps
            sizes = {"batch": batch, "length": options.length, "steps": options.steps}
            rates.append((batch / own, batch / their_seconds(folder, pairs, **sizes)))
        ratio = statistics.median(own / their for own, their in rates)
        own, their = (statistics.median(side) for side in zip(*rates, strict=True))
        print(f"batch {batch}: {own:.1f} and {their:.1f} pairs per CPU second, {ratio:.2f} times")
        records.append({"batch": batch, "ours": own, "theirs": their, "ratio": ratio})
    write_records(options.json, records)


if __name__ == "__main__":
    main()
