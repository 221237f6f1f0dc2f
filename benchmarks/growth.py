"""What our pretraining step costs as sizes grow: seconds and memory, point by point.

Three series, each with all else fixed: tokens per step (rows of 256), entries of the vocabulary,
and `max_seqlen` at the same tokens per step. Each point is a process of its own.

The exponent is the slope of log cost against log size: 0 is flat, 1 linear, 2 quadratic. Costs
with a fixed part have a lower one at first, so the slope between the two largest sizes is printed
beside that over all. Memory is what training takes beside libraries and data. See README.md beside
this file.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import command_line, exponent, write_records
from setup_pretraining import (
    MODELS,
    OBJECTIVES,
    PRECISIONS,
    TRAINED_VOCABULARY,
    Setting,
    measure_in_turns,
    measure_ours,
    median_of,
    prepare,
    print_numbers,
)

TOKENS_PER_STEP = (512, 1024, 2048, 4096, 8192)
VOCABULARIES = (4_096, 16_384, 65_536, 131_072)
MAX_SEQLENS = (128, 256, 512, 1024)
FIXED_TOKENS = 2048
UNITS = {
    "tokens": "tokens per step",
    "vocabulary": "entries of the vocabulary",
    "max_seqlen": "tokens per row",
}


def points_of(series: str, base: Setting) -> dict[int, Setting]:
    """Return the settings of a series by what grows in it."""
    if series == "tokens":
        sizes = TOKENS_PER_STEP
        return {size: replace(base, rows_per_step=size // base.max_seqlen) for size in sizes}
    if series == "vocabulary":
        return {size: replace(base, vocabulary=size) for size in VOCABULARIES}
    return {
        size: replace(base, max_seqlen=size, rows_per_step=FIXED_TOKENS // size)
        for size in MAX_SEQLENS
    }


def measure_series(
    series: str, base: Setting, *, rounds: int, threads: int
) -> list[dict[str, Any]]:
    """Measure a series, print a line for each point, and return the records."""
    points = points_of(series, base)
    jobs = [("--measure", setting.dump()) for setting in points.values()]
    found = measure_in_turns(__file__, jobs, rounds=rounds, threads=threads)
    records = []
    for (size, setting), results in zip(points.items(), found, strict=True):
        numbers = median_of(results)
        records.append(
            {
                "series": series,
                "size": size,
                **setting.described(),
                "threads": threads,
                **numbers,
                "training_bytes": numbers["peak_bytes"] - numbers["set_up_bytes"],
            }
        )
        print(line_of(records[-1]), flush=True)
    return records


def growth_of(series: str, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fit how costs grow over a series, print a line for each, and return the records."""
    sizes = [record["size"] for record in records]
    found = []
    for cost in ("seconds_per_step", "training_bytes"):
        costs = [record[cost] for record in records]
        overall, at_the_end = exponent(sizes, costs), exponent(sizes[-2:], costs[-2:])
        found.append(
            {"series": series, "cost": cost, "exponent": overall, "at_the_end": at_the_end}
        )
        print(
            f"{series} {cost.replace('_', ' ')}: exponent {overall:.2f}, {at_the_end:.2f} between "
            "the two largest",
            flush=True,
        )
    return found


def line_of(record: dict[str, Any]) -> str:
    """Return what is printed of a point."""
    size, seconds = record["size"], record["seconds_per_step"]
    return (
        f"{record['series']} {size:7,} {UNITS[record['series']]}: "
        f"{1000 * seconds:7,.0f} ms per step, {1e6 * seconds / size:8,.1f} us per unit;  "
        f"{record['training_bytes'] / 1e6:6,.0f} MB for training, "
        f"{record['training_bytes'] / size / 1e3:8,.1f} kB per unit;  "
        f"{record['peak_bytes'] / 1e6:6,.0f} MB in all"
    )


def main() -> None:
    """Read the command line and run."""
    parser = command_line(__doc__, "growth")
    parser.add_argument("--series", nargs="+", choices=UNITS, default=tuple(UNITS))
    parser.add_argument("--model", choices=MODELS, default="nano")
    parser.add_argument("--objective", choices=OBJECTIVES, default="mlm40")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument("--seconds", type=float, default=6, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=1, help="the median is reported")
    parser.add_argument("--threads", type=int, default=1, help="of each measurement")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print_numbers(measure_ours(Setting.parse(options.measure)))
        return
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as data:
        prepare(Path(data), sorted({TRAINED_VOCABULARY, *VOCABULARIES}))
        base = Setting(
            data,
            options.model,
            TRAINED_VOCABULARY,
            options.objective,
            options.precision,
            options.seconds,
        )
        for series in options.series:
            points = measure_series(series, base, rounds=options.rounds, threads=options.threads)
            records += [*points, *growth_of(series, points)]
    write_records(options.json, records)


if __name__ == "__main__":
    main()
