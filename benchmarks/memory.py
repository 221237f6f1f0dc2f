"""Memory of training steps: as measured, and as `biphasic estimate` predicts it.

Each case is a process of its own, on one thread. It first trains a tiny model on the same data, so
that libraries are loaded; what is resident then is subtracted from the most that was resident in
two steps of the case. Two allocators: `returned` gives freed tensors back to the system, so that
the peak is what tensors need; `kept` is the one of training, which keeps freed memory.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from harness import command_line, measured, write_records
from setup_pretraining import TRAINED_VOCABULARY, Setting, prepare, print_numbers, train_until

from biphasic.study.plan.cost import parameters_of
from biphasic.study.sizing.memory import PassShape, Training
from biphasic.training import loop, memory
from biphasic.training.compute import ComputeConfig

STEPS = 2  # the moments exist from the end of the first
ALLOCATORS = {
    "returned": {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"},
    "kept": {},
}


@dataclass(frozen=True)
class Case:
    """A training whose memory is measured."""

    model: str
    objective: str
    precision: str
    rows_per_step: int
    rows_per_pass: int
    recomputes: bool
    max_seqlen: int = 256

    def setting(self, data: str) -> Setting:
        """Return what is trained."""
        return Setting(
            data, self.model, TRAINED_VOCABULARY, self.objective, self.precision, 0,
            max_seqlen=self.max_seqlen, rows_per_step=self.rows_per_step,
        )  # fmt: skip

    @property
    def compute(self) -> ComputeConfig:
        """How it is trained."""
        return ComputeConfig(
            max_tokens_per_pass=self.rows_per_pass * self.max_seqlen,
            activation_checkpointing=self.recomputes,
        )

    def predict(self, data: str) -> dict[str, int]:
        """Return the parts of the predicted memory."""
        recipe = self.setting(data).recipe
        parameters = parameters_of(recipe, vocab_size=TRAINED_VOCABULARY)
        assert recipe.architecture is not None, "a preset has dimensions"
        assert parameters is not None
        training = Training(
            architecture=recipe.architecture,
            parameters=parameters,
            precision=recipe.precision,
            processes=1,
            kernels="cpu",
            recomputes=self.recomputes,
        )
        rows = PassShape(
            rows=self.rows_per_pass,
            row_length=self.max_seqlen,
            supervised=round(recipe.phases[0].most_labels * self.rows_per_pass * self.max_seqlen),
            num_passes=self.rows_per_step // self.rows_per_pass,
        )
        return asdict(training.peak(rows))


CASES = [
    Case(*case)
    for case in (
        ("pico", "clm", "fp32", 16, 16, False),
        ("pico", "mlm40", "bf16", 32, 32, False),
        ("pico", "mlm40", "fp32", 32, 8, True),
        ("nano", "mlm40", "bf16", 8, 8, False),
        ("nano", "mlm40", "bf16", 32, 16, False),
        ("nano", "clm", "fp32", 8, 8, False),
        ("nano", "clm", "bf16", 8, 8, True),
        ("micro", "mlm40", "fp32", 4, 4, False),
        ("micro", "mlm40", "bf16", 8, 4, False),
        ("micro", "mlm40", "fp32", 8, 8, True),
    )
]


def measure(case: Case, data: str, *, keeps: bool) -> dict[str, float]:
    """Train the case; return what was resident before."""
    tiny = Case("pico", case.objective, case.precision, 2, 1, case.recomputes, max_seqlen=64)
    before = 0
    with nullcontext() if keeps else mock.patch.object(loop, "release_excess"):
        if keeps:
            memory.tune_allocator()
        for trained in (tiny, case):
            before = psutil.Process().memory_info().rss
            train_until(
                trained.setting(data), lambda step: step.step >= STEPS, compute=trained.compute
            )
    return {"baseline_bytes": before}


def record_of(case: Case, data: str) -> dict[str, Any]:
    """Measure a case with both allocators, print a line, and return its record."""
    parts = case.predict(data)
    predicted = sum(parts.values())
    record: dict[str, Any] = {**asdict(case), "predicted": parts, "predicted_bytes": predicted}
    for name, settings in ALLOCATORS.items():
        arguments = ["--measure", json.dumps(asdict(case)), "--data", data, "--allocator", name]
        numbers, _ = measured([__file__, *arguments], settings=settings)
        record[f"{name}_bytes"] = numbers["peak_bytes"] - numbers["baseline_bytes"]
        record[f"{name}_baseline_bytes"] = numbers["baseline_bytes"]
    record["error"] = predicted / record["returned_bytes"] - 1
    print(line_of(record), flush=True)
    return record


def line_of(record: dict[str, Any]) -> str:
    """Describe a measurement."""
    predicted, needed = record["predicted_bytes"], record["returned_bytes"]
    return (
        f"{record['model']:5} {record['objective']:5} {record['precision']} "
        f"{record['rows_per_pass']:2} of {record['rows_per_step']:2} rows"
        f"{', recomputed' if record['recomputes'] else '':12}: "
        f"{needed / 1e6:6,.0f} MB measured, {predicted / 1e6:6,.0f} MB predicted "
        f"({record['error']:+.1%}); {record['kept_bytes'] / 1e6:6,.0f} MB with kept memory; "
        f"{record['returned_baseline_bytes'] / 1e6:,.0f} MB before"
    )


def main() -> None:
    """Read the command line and run."""
    parser = command_line(__doc__, "memory")
    parser.add_argument("--cases", type=int, nargs="+", help="indices; all by default")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--data", help=argparse.SUPPRESS)
    parser.add_argument("--allocator", choices=ALLOCATORS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        case = Case(**json.loads(options.measure))
        print_numbers(measure(case, options.data, keeps=options.allocator == "kept"))
        return
    with tempfile.TemporaryDirectory() as data:
        prepare(Path(data), [TRAINED_VOCABULARY])
        chosen = CASES if options.cases is None else [CASES[index] for index in options.cases]
        records = [record_of(case, data) for case in chosen]
    write_records(options.json, records)


if __name__ == "__main__":
    main()
