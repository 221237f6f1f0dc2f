"""CPU time of a training pass with our kernels on a CPU and without, alternating in one process.

A pass is forward and backward of 2,048 tokens, in rows that documents of equal length fill.
Reported are medians over passes of CPU seconds and of their ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from harness import command_line, measured, write_records
from setup_pretraining import MODELS, PRECISIONS, print_numbers

from biphasic.data.packing import pack_sequences
from biphasic.model.compute.layers import narrow_last_layer
from biphasic.model.cpu.kernels import cpu_kernels
from biphasic.model.loading.build import architecture_config, new_model
from biphasic.model.shape import PRESETS
from biphasic.objectives.supervision import Supervision
from biphasic.training.memory import tune_allocator
from biphasic.training.step.input import Pass, pass_loss
from biphasic.training.step.optimizer import set_precision

TOKENS = 2_048
VOCABULARY = 8_192
WARMUP_PASSES = 2
SPECIAL_IDS = {"bos": 0, "eos": 1, "pad": 2, "mask": 3}


def given_pass(objective: str, row_length: int, document_length: int) -> Pass:
    """Return rows of random tokens."""
    draws = np.random.default_rng(0)
    documents = draws.integers(4, VOCABULARY, (TOKENS // document_length, document_length))
    rows = pack_sequences(list(documents), row_length=row_length, pad_id=SPECIAL_IDS["pad"])
    is_causal = objective == "clm"
    predicted = np.arange(TOKENS - 1)
    if not is_causal:
        predicted = np.sort(draws.permutation(predicted)[: round(0.4 * TOKENS)])
    labels = rows.input_ids.reshape(-1)[predicted]
    return Pass.of(Supervision(rows, predicted, labels, causal=is_causal), first_position=0)


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Alternate both ways in this process."""
    tune_allocator()
    architecture = MODELS[options.model]
    config = architecture_config(
        PRESETS[architecture] if isinstance(architecture, str) else architecture,
        vocab_size=VOCABULARY,
        max_seqlen=options.row,
        special_ids=SPECIAL_IDS,
    )
    model = new_model(config, init_seed=0).train()
    set_precision(model, options.precision)
    narrow_last_layer(model)
    given = given_pass(options.objective, options.row, options.document)
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(WARMUP_PASSES + options.passes):
        for are_on, taken in times.items():
            began = time.process_time()
            with cpu_kernels(are_on):
                pass_loss(model, given).backward()
            taken.append(time.process_time() - began)
            model.zero_grad()
    without, ours = (taken[WARMUP_PASSES:] for taken in times.values())
    return {
        "our_cpu_seconds": statistics.median(ours),
        "cpu_seconds_without": statistics.median(without),
        "ours_over_without": statistics.median(a / b for a, b in zip(without, ours, strict=True)),
    }


def main() -> None:
    """Read the command line and run."""
    parser = command_line(__doc__, "cpu_kernels")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["nano", "micro", "25m"])
    parser.add_argument(
        "--objectives", nargs="+", choices=["clm", "mlm40"], default=["clm", "mlm40"]
    )
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=["fp32"])
    parser.add_argument(
        "--lengths", nargs="+", type=partial(str.split, sep="/"), default=[["256", "256"]],
        help="of rows and documents in tokens, as 256/32",
    )  # fmt: skip
    parser.add_argument("--passes", type=int, default=10, help="that are measured")
    for name in ("model", "objective", "precision"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    for name in ("row", "document"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.model:
        torch.manual_seed(0)
        print_numbers(measure(options))
        return
    records: list[dict[str, Any]] = []
    cells = product(options.precisions, options.models, options.objectives, options.lengths)
    for precision, model, objective, (row, document) in cells:
        cell = {
            "precision": precision, "model": model, "objective": objective,
            "row": row, "document": document,
        }  # fmt: skip
        call = [part for name, value in cell.items() for part in (f"--{name}", value)]
        numbers = measured([__file__, "--passes", str(options.passes), *call], threads=1)[0]
        records.append({**cell, **numbers})
        print(
            f"{precision} {model:6} {objective:6} rows of {row}, documents of {document}: "
            f"{numbers['ours_over_without']:.2f} times as fast",
            flush=True,
        )
    write_records(options.json, records)


if __name__ == "__main__":
    main()
