"""Rates of scoring: validation and test of the built-in tasks by a model with random weights.

Tokenising is done before, as for every run of a grid. The limit is the rate of large matrix
products in the same precision; what passes through the model is counted in model FLOPs, attention
by true lengths. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import command_line, measured, write_records
from numpy.typing import NDArray
from pretrain import measure_ceiling
from setup_pretraining import MODELS, PRECISIONS, TRAINED_VOCABULARY, Setting, prepare
from torch import Tensor, nn

from biphasic.data.packing import PackedBatch, TokenIds
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.model.shape import architecture_shape
from biphasic.pydocs.documents import load_documents
from biphasic.pydocs.tasks import build_tasks
from biphasic.tasks.encoding import Encoder, new_head
from biphasic.tasks.finetune import Learner, encode_task
from biphasic.tasks.folder import load_task
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.training.memory import tune_allocator
from biphasic.training.run import first_model
from biphasic.training.step.optimizer import set_head_precision, set_precision

KINDS = ("sc", "tc", "qa", "ir")
UNITS = {"sc": "texts", "tc": "sentences", "qa": "questions", "ir": "queries"}
SCORED = ("validation", "test")


@dataclass(frozen=True, slots=True)
class CountingEncoder(Encoder):
    """An encoder that remembers what it read, and for how long.

    Attributes:
        lengths: Tokens of every sequence.
        seconds: Of every batch.
    """

    lengths: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def states(
        self, sequences: Sequence[TokenIds], **options: Any
    ) -> tuple[Tensor, NDArray[np.int64]]:
        """Run sequences through the model."""
        began = time.perf_counter()
        found = Encoder.states(self, sequences, **options)
        self.seconds.append(time.perf_counter() - began)
        self.lengths.extend(len(sequence) for sequence in sequences)
        return found


def measure_scoring(setting: Setting, kind: str) -> dict[str, float]:
    """Score a task twice, as after a fine-tuning; return the rates of the second time."""
    tune_allocator()
    tokenizer = TextTokenizer.load(setting.tokenizer_folder)
    task = load_task(Path(setting.data) / "tasks" / f"pydocs-{kind}")
    protocol = FinetuneProtocol(max_seqlen=setting.max_seqlen)
    encoded = encode_task(task, tokenizer, protocol=protocol)
    model = first_model(setting.recipe, setting.training_data()).eval()
    set_precision(model, setting.recipe.precision)
    generator = torch.Generator().manual_seed(0)
    head = new_head(model.config.hidden_size, encoded.num_outputs, generator=generator)
    set_head_precision(head, setting.recipe.precision)
    score(encoded, CountingEncoder(model, pad_id=tokenizer.pad_id), head)
    encoder = CountingEncoder(model, pad_id=tokenizer.pad_id)
    seconds = score(encoded, encoder, head)
    return {
        "seconds": seconds,
        "examples": sum(task.num_examples(split) for split in SCORED),
        "sequences": len(encoder.lengths),
        "tokens": sum(encoder.lengths),
        "share_in_model": sum(encoder.seconds) / seconds,
        "flops": forward_flops(encoder.lengths, setting),
    }


def score(task: Learner, encoder: Encoder, head: nn.Module) -> float:
    """Score validation and test; return the seconds."""
    began = time.perf_counter()
    with torch.inference_mode():
        task.evaluate(encoder, head)
    return time.perf_counter() - began


def forward_flops(lengths: Sequence[int], setting: Setting) -> float:
    """Return the model FLOPs of reading sequences, as the ledger of training counts them."""
    sizes = np.array(lengths, dtype=np.int64)
    ends = np.cumsum(sizes)
    packed = PackedBatch(
        input_ids=np.empty((0, 0), dtype=np.int64),
        position_ids=np.empty((0, 0), dtype=np.int64),
        cu_seqlens=np.empty(0, dtype=np.int32),
        spans=np.stack([ends - sizes, ends], axis=1),
    )
    architecture = setting.recipe.architecture
    assert architecture is not None
    shape = architecture_shape(architecture, vocab_size=0)
    return shape.forward_flops(packed, supervised_tokens=0, causal=False)


def in_own_process(what: str, setting: Setting, threads: int) -> dict[str, float]:
    """Measure in a fresh process."""
    return measured([__file__, "--measure", what, setting.dump()], threads=threads)[0]


def compare(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Score every task in every precision, and print the rates beside the limit."""
    prepare(folder, [TRAINED_VOCABULARY])
    build_tasks(list(load_documents()), folder / "tasks")
    for precision in options.precisions:
        setting = Setting(
            str(folder), options.model, TRAINED_VOCABULARY, "mlm40", precision, seconds=0
        )
        ceiling = in_own_process("ceiling", setting, options.threads)["flops_per_second"]
        print(f"{precision} ceiling: {ceiling / 1e9:,.0f} GFLOP/s in matrix products", flush=True)
        for kind in KINDS:
            found = in_own_process(kind, setting, options.threads)
            seconds = found["seconds"]
            share = found["flops"] / seconds / ceiling
            print(
                f"{precision} {kind} {found['examples'] / seconds:8,.0f} {UNITS[kind]}/s, "
                f"{found['sequences'] / seconds:8,.0f} sequences/s, "
                f"{found['tokens'] / seconds:8,.0f} tokens/s, "
                f"{found['share_in_model']:.0%} of the time in the model;  "
                f"{share:.1%} of the ceiling",
                flush=True,
            )
            yield {
                "kind": kind,
                "model": options.model,
                "precision": precision,
                "threads": options.threads,
                **found,
                "examples_per_second": found["examples"] / seconds,
                "tokens_per_second": found["tokens"] / seconds,
                "share_of_ceiling": share,
                "ceiling_flops_per_second": ceiling,
            }


def main() -> None:
    """Read the command line and run."""
    parser = command_line(__doc__, "scoring")
    parser.add_argument("--model", choices=MODELS, default="nano")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--threads", type=int, default=1, help="of each measurement")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        what, argument = options.measure
        setting = Setting.parse(argument)
        is_ceiling = what == "ceiling"
        found = measure_ceiling(setting) if is_ceiling else measure_scoring(setting, what)
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_records(options.json, list(compare(Path(folder), options)))


if __name__ == "__main__":
    main()
