"""Several processes that train one model: whole weights or divided ones, ours or a plain script.

The plain sides drive PyTorch's DistributedDataParallel and `fully_shard` (FSDP2) as their manuals
do, on the same model, rows, masks and loss, with torch's own AdamW. Each side is a start of its
own, in turns. Rates count real tokens. Memory is what steps add to the first process: the most that
was resident, minus what was resident after a tiny model was trained. See README.md beside this
file.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import torch
from harness import command_line, measured, write_records
from memory import ALLOCATORS
from setup_pretraining import (
    MODELS,
    OBJECTIVES,
    PRECISIONS,
    TRAINED_VOCABULARY,
    WARMUP_STEPS,
    Setting,
    median_of,
    peak_bytes,
    prepare,
)
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from biphasic.distributed import ProcessGroup, joined_process_group
from biphasic.execution import rank_worker
from biphasic.model.compute.layers import transformer_layers
from biphasic.training import loop, memory
from biphasic.training.compute import ComputeConfig
from biphasic.training.lineage import Lineage
from biphasic.training.loop import BackgroundWriter, RunOptions, train_segment
from biphasic.training.run import first_model
from biphasic.training.step.input import Pass, StepInputs, pass_loss

SIDES = ("threads", "whole", "full", "ddp", "fsdp2")
"""One process on all threads; ours with whole and with divided weights; the plain scripts."""
SAVES = ("never", "background", "blocking")
"""Checkpoints of ours after every second step: none, in a thread, or before training goes on."""
Report = Callable[[int], None]
"""Told the tokens of a step when its loss is known."""


def train_ours(
    setting: Setting, ranks: ProcessGroup, side: str, *, steps: int, saves: str, report: Report
) -> None:
    """Train some steps with our loop."""
    if saves == "blocking":
        BackgroundWriter.begin = lambda _, write: write()  # type: ignore[method-assign]
    data, recipe = setting.training_data(), _shortened(setting, steps)
    train_segment(
        Lineage(recipe, data.fingerprint),
        data,
        # One that all ranks know, and nobody used before.
        Path(setting.data) / f"store-{ranks.from_first(time.time_ns())}",
        start=0,
        end=steps,
        options=RunOptions(
            checkpoint_every=0 if saves == "never" else 2,
            heldout_every=0,
            heldout_objectives=(),
            report=lambda step: report(step.tokens),
            compute=ComputeConfig(
                processes=ranks.dp_world_size, shard="full" if side == "full" else "none"
            ),
        ),
        ranks=ranks,
    )


class _Loss(nn.Module):
    """A model with its loss, as DDP and FSDP2 want one: in `forward`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, given: Pass) -> Tensor:
        return pass_loss(self.model, given)


def train_plain(
    setting: Setting, ranks: ProcessGroup, side: str, *, steps: int, report: Report
) -> None:
    """Train the same steps with PyTorch's own wrapper and optimizer, in fp32."""
    data, recipe = setting.training_data(), _shortened(setting, steps)
    model = _Loss(first_model(recipe, data).train())
    compute = ComputeConfig(processes=ranks.dp_world_size)
    inputs = StepInputs(recipe, data, model.model, compute=compute, ranks=ranks)
    if side == "ddp":
        model = DistributedDataParallel(model)
    else:
        for _, layer in transformer_layers(model.model):
            fully_shard(layer)
        fully_shard(model)
    constants = recipe.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=1e-3,
        betas=(constants.beta1, constants.beta2),
        eps=constants.epsilon,
        weight_decay=constants.weight_decay,
        fused=True,
    )
    for step in range(steps):
        given = inputs.of(step)
        # Both wrappers average over ranks.
        loss = model(given.passes[0]) * ranks.dp_world_size / given.num_supervised
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), constants.max_gradient_norm)
        optimizer.step()
        optimizer.zero_grad()
        float(loss.detach())
        report(given.batch.packed.num_tokens)


def measure(setting: Setting, side: str, *, steps: int, saves: str, keeps: bool) -> None:
    """Train some steps as one rank, after a tiny model; the first one prints what they took."""
    if keeps:
        memory.tune_allocator()
    marks: list[tuple[float, int, int]] = []

    def report(tokens: int) -> None:
        marks.append((time.perf_counter(), tokens, peak_bytes()))

    def train(each: Setting, steps: int, saves: str) -> None:
        if side in {"ddp", "fsdp2"}:
            train_plain(each, ranks, side, steps=steps, report=report)
        else:
            train_ours(each, ranks, side, steps=steps, saves=saves, report=report)

    keeping = nullcontext() if keeps else mock.patch.object(loop, "release_excess")
    with keeping, joined_process_group() as ranks:
        train(replace(setting, model="pico", max_seqlen=64, rows_per_step=8), 2, "never")
        marks.clear()
        before, cpu_before = psutil.Process().memory_info().rss, time.process_time()
        train(setting, steps, saves)
        spent = torch.tensor([time.process_time() - cpu_before], dtype=torch.float64)
        ranks.sum_(spent)
        if ranks.is_first:
            (began, _, _), *timed = marks[WARMUP_STEPS - 1 :]
            seconds = timed[-1][0] - began
            numbers = {
                "tokens_per_second": sum(tokens for _, tokens, _ in timed) / seconds,
                "tokens_per_cpu_second": sum(tokens for _, tokens, _ in marks) / float(spent),
                "seconds_per_step": seconds / len(timed),
                "training_bytes": marks[-1][2] - before,
            }
            print(json.dumps(numbers))


def _shortened(setting: Setting, steps: int) -> Any:
    recipe = setting.recipe
    phase = recipe.phases[0].model_copy(update={"steps": steps})
    return recipe.model_copy(update={"phases": (phase,)})


def measure_side(setting: Setting, side: str, saves: str, given: argparse.Namespace) -> Any:
    """Start one side and return what it printed."""
    processes = 1 if side == "threads" else given.processes
    own = [__file__, "--measure", setting.dump(), "--sides", side]
    own += ["--steps", str(given.steps), "--saves", saves]
    own += ["--allocator", given.allocator]
    with tempfile.TemporaryDirectory() as folder:
        _, *group = rank_worker.command(f"{folder}/store", 1, processes, own)
        numbers, _ = measured(
            group if processes > 1 else own,
            threads=given.processes // processes,
            settings=ALLOCATORS[given.allocator],
        )
    return numbers


def main() -> None:
    """Measure, or be measured."""
    parser = command_line(__doc__, "process-group")
    parser.add_argument("--model", choices=MODELS, default="nano")
    parser.add_argument("--objective", choices=OBJECTIVES, default="mlm40")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--rows", type=int, default=32, help="rows of 256 tokens in a step")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--sides", choices=SIDES, nargs="+", default=SIDES)
    parser.add_argument("--saves", choices=SAVES, nargs="+", default=["never"], help="of ours")
    parser.add_argument("--allocator", choices=ALLOCATORS, default="kept")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(
            Setting.parse(given.measure),
            given.sides[0],
            steps=given.steps,
            saves=given.saves[0],
            keeps=given.allocator == "kept",
        )
        return
    if given.precision != "fp32" and {"ddp", "fsdp2"} & set(given.sides):
        parser.error("the plain sides compute in fp32; name other --sides")
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), [TRAINED_VOCABULARY])
        setting = Setting(
            folder, given.model, TRAINED_VOCABULARY, given.objective, given.precision, 0.0
        )
        setting = replace(setting, rows_per_step=given.rows)
        found: dict[tuple[str, str], list[dict[str, float]]] = {
            (side, saves): []
            for side in given.sides
            for saves in (["never"] if side in {"ddp", "fsdp2"} else given.saves)
        }
        for _ in range(given.rounds):
            for (side, saves), results in found.items():
                results.append(measure_side(setting, side, saves, given))
    described = {
        **setting.described(), "processes": given.processes, "allocator": given.allocator,
    }  # fmt: skip
    records = []
    for (side, saves), results in found.items():
        numbers = median_of(results)
        records.append({"side": side, "saves": saves, **described, **numbers, "rounds": results})
        print(
            f"{side:7} saves {saves:10}: {numbers['tokens_per_second']:7,.0f} tokens/s, "
            f"{numbers['tokens_per_cpu_second']:7,.0f} per CPU second, "
            f"{numbers['seconds_per_step']:.3f} s per step, "
            f"{numbers['training_bytes'] / 1e6:6,.0f} MB per process for training"
        )
    write_records(given.json, records)


if __name__ == "__main__":
    main()
