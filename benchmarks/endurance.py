"""Memory of a long training: resident megabytes, minute by minute, of one process.

Freed memory is kept in the process for speed (docs/decisions/0004-keeping-freed-memory.md); this
shows that what is kept does not grow. Batches differ in their segments and supervised tokens, as in
any training, and checkpoints are written on the way.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch
from harness import command_line, write_records
from setup_pretraining import MODELS, OBJECTIVES, PRECISIONS, Setting, prepare, train_until

from biphasic.training.memory import private_bytes, tune_allocator
from biphasic.training.step.pending import StepReport

CHECKPOINT_EVERY = 200


class Watch:
    """Notes memory once a minute until the time is over."""

    def __init__(self, minutes: float) -> None:
        """Begin now."""
        self._began, self._minutes = time.monotonic(), minutes
        self.records: list[dict[str, float]] = []

    def __call__(self, step: StepReport) -> bool:
        """Look at the clock after a step; returns whether the time is over."""
        minutes = (time.monotonic() - self._began) / 60
        if minutes >= len(self.records) + 1:
            record = {"minute": round(minutes, 1), "step": step.step, "bytes": private_bytes()}
            self.records.append(record)
            print(
                f"minute {minutes:5.1f}  step {step.step:6,}  {record['bytes'] / 1e6:7,.0f} MB",
                flush=True,
            )
        return minutes >= self._minutes


def summary(records: list[dict[str, float]]) -> str:
    """Compare the first third of a run with the last."""
    third = max(1, len(records) // 3)
    first, last = (
        statistics.mean(record["bytes"] for record in part)
        for part in (records[:third], records[-third:])
    )
    most = max(record["bytes"] for record in records)
    return (
        f"first third {first / 1e6:,.0f} MB, last third {last / 1e6:,.0f} MB "
        f"({last / first:.2f}x), most {most / 1e6:,.0f} MB"
    )


def main() -> None:
    """Read the command line and run."""
    parser = command_line(__doc__, "endurance")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--model", choices=MODELS, default="nano")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--objective", choices=OBJECTIVES, default="mlm40")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    tune_allocator()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), [options.vocabulary])
        setting = Setting(
            data=folder,
            model=options.model,
            vocabulary=options.vocabulary,
            objective=options.objective,
            precision=options.precision,
            seconds=60 * options.minutes,
        )
        watch = Watch(options.minutes)
        train_until(setting, watch, checkpoint_every=CHECKPOINT_EVERY)
    print(summary(watch.records))
    write_records(options.json, watch.records)


if __name__ == "__main__":
    main()
