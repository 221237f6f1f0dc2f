"""What the reference scripts share: the protocol as Trainer takes it, and their command line.

Nothing of biphasic is imported here or beside: these scripts are what its results and its speed are
compared with.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import Trainer, TrainingArguments, set_seed

SPLITS = ("train", "validation", "test")
BATCH_SIZE = 32
WARMUP_SHARE = 0.1

Metrics = dict[str, float]
ArgumentsT = TypeVar("ArgumentsT", bound=TrainingArguments)


def parse_options(description: str | None, *, is_trained: bool = True) -> argparse.Namespace:
    """Read the command line, and seed what draws head, order and dropout."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", type=Path, required=True, help="folder of the encoder")
    parser.add_argument("--data", type=Path, required=True, help="folder of the task's files")
    parser.add_argument("--learning-rate", type=float, required=is_trained, help="peak rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--max-length", type=int, default=256, help="longest input, in tokens")
    parser.add_argument("--max-epochs", type=int, default=1, help="passes over the training data")
    parser.add_argument("--max-steps", type=int, default=1000, help="unless the epochs are shorter")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    set_seed(options.seed)
    return options


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def training_arguments(
    options: argparse.Namespace,
    num_train: int,
    *,
    kind: type[ArgumentsT] = TrainingArguments,
    **more: Any,
) -> ArgumentsT:
    """Return AdamW with 10 % warm-up and linear decay, for as long as the options say."""
    return kind(
        output_dir=tempfile.gettempdir(),  # nothing is written
        max_steps=min(options.max_steps, options.max_epochs * math.ceil(num_train / BATCH_SIZE)),
        per_device_train_batch_size=BATCH_SIZE,
        per_device_eval_batch_size=BATCH_SIZE,
        learning_rate=options.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=WARMUP_SHARE,  # below 1 it is a share
        optim="adamw_torch_fused",
        adam_beta1=0.9,
        adam_beta2=0.95,
        adam_epsilon=1e-5,
        weight_decay=0.1,  # Trainer leaves out norms and biases
        max_grad_norm=1.0,
        seed=options.seed,
        bf16=options.precision == "bf16",
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **more,
    )


def shortest_first(examples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order examples by length, so that a batch holds little padding."""
    return sorted(examples, key=lambda example: len(example["input_ids"]))


def run(
    options: argparse.Namespace, trainer: Trainer | None, evaluate: Callable[[], dict[str, Metrics]]
) -> None:
    """Train, score validation and test, and print what came of it as one line of JSON."""
    began = time.perf_counter()
    steps = trainer.train().global_step if trainer else 0
    trained = time.perf_counter()
    metrics = evaluate()
    result = {
        "task": options.data.name,
        "seed": options.seed,
        "learning_rate": options.learning_rate,
        "precision": options.precision,
        "steps": steps,
        "seconds": time.perf_counter() - began,
        "train_seconds": trained - began,
        "metrics": metrics,
    }
    print(json.dumps(result))
