"""One process on several threads against several processes on one thread each: the same rows.

Each side is a start of its own, in turns, for so many steps. Rates count real tokens. On a machine
that does other work meanwhile, trust tokens per CPU second. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from harness import run_process, write_records
from setup_pretraining import (
    MODELS,
    OBJECTIVES,
    PRECISIONS,
    TRAINED_VOCABULARY,
    WARMUP_STEPS,
    Setting,
    median_of,
    prepare,
    print_numbers,
)

from biphasic.distributed import joined_process_group
from biphasic.training.compute import ComputeConfig
from biphasic.training.lineage import Lineage
from biphasic.training.loop import RunOptions, StepReport, train_segment
from biphasic.training.memory import tune_allocator
from biphasic.training.records import heldout


def measure(setting: Setting, num_steps: int) -> None:
    """Train some steps as one rank; the first one prints what they took."""
    tune_allocator()
    heldout.HELDOUT_TOKENS = setting.max_seqlen  # which is not what is measured
    data, recipe = setting.training_data(), setting.recipe
    marks: list[tuple[float, int]] = []

    def report(step: StepReport) -> None:
        marks.append((time.perf_counter(), step.tokens))

    with joined_process_group() as ranks:
        phase = recipe.phases[0].model_copy(update={"steps": num_steps})
        recipe = recipe.model_copy(update={"phases": (phase,)})
        # One that all ranks know, and nobody used before.
        store = Path(setting.data) / f"store-{ranks.from_first(time.time_ns())}"
        before = time.process_time()
        train_segment(
            Lineage(recipe, data.fingerprint),
            data,
            store,
            start=0,
            end=num_steps,
            options=RunOptions(
                checkpoint_every=0,
                report=report,
                compute=ComputeConfig(processes=ranks.dp_world_size),
            ),
            ranks=ranks,
        )
        cpu = torch.tensor([time.process_time() - before], dtype=torch.float64)
        ranks.sum_(cpu)
        if ranks.is_first:
            (began, _), *measured = marks[WARMUP_STEPS - 1 :]
            tokens, seconds = sum(each for _, each in measured), measured[-1][0] - began
            everything = sum(each for _, each in marks)
            print_numbers(
                {
                    "tokens_per_second": tokens / seconds,
                    "tokens_per_cpu_second": everything / float(cpu),
                    "seconds_per_step": seconds / len(measured),
                }
            )


def measure_side(setting: Setting, *, processes: int, threads: int, num_steps: int) -> Any:
    """Start one side and return what it printed."""
    own = [__file__, "--measure", setting.dump(), "--steps", str(num_steps)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(torchrun if processes > 1 else []), *own]
    printed, _ = run_process(command, threads=threads)
    return json.loads(printed.splitlines()[-1])


def main() -> None:
    """Measure, or be measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="nano")
    parser.add_argument("--objective", choices=OBJECTIVES, default="mlm40")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument("--rows", type=int, default=32, help="rows of 256 tokens in a step")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, default=Path("runs/benchmarks/ranks.json"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(Setting.parse(given.measure), given.steps)
        return
    sides = {
        f"1 process, {given.processes} threads": (1, given.processes),
        f"{given.processes} processes, 1 thread": (given.processes, 1),
        "1 process, 1 thread": (1, 1),
    }
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), [TRAINED_VOCABULARY])
        setting = Setting(
            folder, given.model, TRAINED_VOCABULARY, given.objective, given.precision, 0.0
        )
        setting = replace(setting, rows_per_step=given.rows)
        found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for _ in range(given.rounds):
            for side, (processes, threads) in sides.items():
                found[side].append(
                    measure_side(
                        setting, processes=processes, threads=threads, num_steps=given.steps
                    )
                )
    described = {name: value for name, value in asdict(setting).items() if name != "data"}
    records = []
    for side, results in found.items():
        numbers = median_of(results)
        records.append({"side": side, **described, **numbers, "rounds": results})
        print(
            f"{side}: {numbers['tokens_per_second']:,.0f} tokens/s, "
            f"{numbers['tokens_per_cpu_second']:,.0f} per CPU second, "
            f"{numbers['peak_bytes'] / 1e6:,.0f} MB in the first process"
        )
    write_records(given.json, records)


if __name__ == "__main__":
    main()
