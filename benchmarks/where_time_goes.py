"""Where the time of our pretraining step goes, by what is done: a profile of a few steps.

Profiling itself slows steps down, small operations most; shares are what to look at. Times are of
operations themselves, without what they call.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from harness import command_line, write_records
from setup_pretraining import MODELS, OBJECTIVES, PRECISIONS, Setting, prepare, train_until
from torch.profiler import ProfilerActivity, profile

from biphasic.training.memory import tune_allocator
from biphasic.training.step.pending import StepReport

WARMUP_STEPS = 4
PROFILED_STEPS = 6
# The first that is part of an operation's name decides.
KINDS = {
    "matrix products": ("aten::mm", "addmm", "bmm", "mkldnn", "linear_pointwise"),
    "attention, fused": ("scaled_dot_product", "flash_attention"),
    "optimizer and clipping": ("adamw", "linalg_vector_norm", "Optimizer"),
    "softmax": ("softmax",),
    "SwiGLU": ("silu",),
    "copies and casts": ("copy_", "cat", "clone", "contiguous", "fill_", "zero_"),
    "embeddings and gathers": ("embedding", "index", "gather", "scatter"),
    "reductions": ("aten::sum", "aten::mean", "amax"),
    "other element-wise": ("aten::",),
}


def kind_of(name: str) -> str:
    """Return what an operation counts as; `Python and autograd` if it is none of torch's."""
    return next(
        (kind for kind, parts in KINDS.items() if any(part in name for part in parts)),
        "Python and autograd",
    )


def profile_steps(setting: Setting) -> profile:
    """Run some steps under a profiler, after a warm-up."""
    profiler = profile(activities=[ProfilerActivity.CPU])

    def watch(step: StepReport) -> bool:
        if step.step == WARMUP_STEPS:
            profiler.start()
        return step.step == WARMUP_STEPS + PROFILED_STEPS

    train_until(setting, watch)
    profiler.stop()
    return profiler


def shares_of(profiler: profile) -> dict[str, float]:
    """Return the share of each kind of operation in the time, largest first."""
    times: Counter[str] = Counter()
    for event in profiler.key_averages():
        times[kind_of(event.key)] += event.self_cpu_time_total
    return {kind: time / times.total() for kind, time in times.most_common()}


def measure(setting: Setting) -> dict[str, Any]:
    """Profile a run, print the shares, and return them."""
    shares = shares_of(profile_steps(setting))
    print(f"{setting.model} {setting.objective} {setting.precision}")
    for kind, share in shares.items():
        print(f"  {kind:24} {share:6.1%}", flush=True)
    return {
        "model": setting.model,
        "vocabulary": setting.vocabulary,
        "objective": setting.objective,
        "precision": setting.precision,
        "shares": shares,
    }


def main() -> None:
    """Read the command line and run."""
    parser = command_line(__doc__, "where_time_goes")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=("nano", "25m"))
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=("clm", "mlm40"))
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    tune_allocator()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), [options.vocabulary])
        records = [
            measure(
                Setting(
                    folder, model, options.vocabulary, objective, options.precision, seconds=0.0
                )
            )
            for model in options.models
            for objective in options.objectives
        ]
    write_records(options.json, records)


if __name__ == "__main__":
    main()
