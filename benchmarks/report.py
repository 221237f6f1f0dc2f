"""Time of a study's report, over more and more fine-tunings and lines of training.

The records are made up. In the first two series arms and tasks are few and always the same. In the
third a study grows by arms, each with twelve tasks, six learning rates, five seeds and the scores
of single examples; beside its report stands the analysis alone: every comparison with the best arm
of a task, over seeds and examples. Beside all stands the import of what a report needs, matplotlib
above all. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import itertools
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import command_line, exponent, measured, run_process, write_records

IMPORT = "import biphasic.analysis.page.render"
GRIDS = {10: (1, 1), 100: (2, 5), 1_000: (10, 10), 10_000: (10, 100)}
"""Fine-tunings of ten cells: learning rates and seeds."""
LINES = (1_000, 10_000, 100_000)
"""Of training, for each arm."""
FIXED_RESULTS, FIXED_LINES = 100, 1_000
WIDE = {5_040: 14, 15_120: 42, 50_040: 139}
"""Arms by number of fine-tunings."""
WIDE_TASKS, WIDE_RATES, WIDE_SEEDS, WIDE_EXAMPLES = 12, 6, 5, 100
ARMS = ("untrained", "mlm", "clm", "clm-25-mlm-75", "clm-50-mlm-50")
TASKS = {"first": "accuracy", "second": "f1"}


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder's files, and the manifest that says they are whole."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    entries = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    }
    manifest = {"identity" if "state.json" in files else "id": folder.name, "files": entries}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def write_narrow_study(folder: Path, *, num_results: int, num_lines: int) -> None:
    """Make up a study of few arms, as training and fine-tuning would write it."""
    num_rates, num_seeds = GRIDS[num_results]
    draw = random.Random(0)  # noqa: S311 - made-up scores
    write_study(
        folder,
        arms=[write_arm(folder / "store", arm, 0 if arm == ARMS[0] else num_lines) for arm in ARMS],
        tasks={name: ("sc", metric) for name, metric in TASKS.items()},
        rates=[1e-5 * 1.5**index for index in range(num_rates)],
        num_seeds=num_seeds,
        num_test=1_000,
        score=lambda _: (0.5 + draw.random() / 10, {}),
    )


def write_wide_study(folder: Path, *, num_arms: int) -> None:
    """Make up a study of many arms, with the scores of every test example."""
    tables = [example_table(right) for right in range(WIDE_EXAMPLES + 1)]
    draw = random.Random(0)  # noqa: S311 - made-up scores

    def score(arm: str) -> tuple[float, dict[str, bytes]]:
        level = 50 + 0.2 * int(arm.removeprefix("arm-"))
        right = min(WIDE_EXAMPLES, max(0, round(draw.gauss(level, 3))))
        return right / WIDE_EXAMPLES, {"scores.parquet": tables[right]}

    kinds = itertools.cycle(("sc", "tc", "qa", "ir"))
    write_study(
        folder,
        arms=[write_arm(folder / "store", f"arm-{n}", 20) for n in range(num_arms)],
        tasks={f"task-{n}": (next(kinds), "accuracy") for n in range(WIDE_TASKS)},
        rates=[1e-5 * 2**n for n in range(WIDE_RATES)],
        num_seeds=WIDE_SEEDS,
        num_test=WIDE_EXAMPLES,
        score=score,
    )


def write_study(
    folder: Path,
    *,
    arms: Sequence[dict[str, Any]],
    tasks: Mapping[str, tuple[str, str]],
    rates: Sequence[float],
    num_seeds: int,
    num_test: int,
    score: Callable[[str], tuple[float, dict[str, bytes]]],
) -> None:
    """Write a fine-tuning for every arm, task, learning rate and seed, and the study's record.

    Args:
        folder: With the arms' states in `store`.
        arms: Their records.
        tasks: Kind and metric by name.
        rates: Learning rates.
        num_seeds: Of each learning rate.
        num_test: Examples of a task's test split.
        score: Makes up a score of an arm, and more files of its fine-tuning.
    """
    runs = []
    for number, (arm, task, rate, seed) in enumerate(
        itertools.product(arms, tasks, rates, range(num_seeds))
    ):
        identity, metric = hashlib.sha256(str(number).encode()).hexdigest(), tasks[task][1]
        cell = {"id": identity, "task": task, "learning_rate": rate, "seed": seed}
        value, files = score(arm["name"])
        record = {
            "format": "biphasic.finetune/1",
            **cell,
            "state": arm["state"],
            "kind": "sc",
            "metric": metric,
            "status": "finished",
            "steps": 200,
            "validation": {metric: value},
            "test": {metric: value},
            "seconds": 7.25,
        }
        result = {"result.json": json.dumps(record).encode()}
        write(folder / "store" / "finetunes" / identity, result | files)
        runs.append({**cell, "arm": arm["name"]})
    sizes = {"num_train": 4_000, "num_validation": 500, "num_test": num_test}
    study = {
        "format": "biphasic.study/1",
        "name": "made-up",
        "title": "Made up",
        "arms": arms,
        "tasks": [
            {"name": name, "kind": kind, "title": name, "metric": metric, **sizes}
            for name, (kind, metric) in tasks.items()
        ],
        "learning_rates": rates,
        "seeds": list(range(num_seeds)),
        "runs": runs,
    }
    path = folder / "study" / "study.json"
    path.parent.mkdir()
    path.write_text(json.dumps(study), encoding="utf-8")


def example_table(right: int) -> bytes:
    """Return `scores.parquet` with a number of right answers, drawn at random."""
    import pyarrow as pa  # noqa: PLC0415 - the parent stays small
    import pyarrow.parquet as pq  # noqa: PLC0415

    draw = random.Random(right)  # noqa: S311
    answers = [number < right for number in range(WIDE_EXAMPLES)]
    draw.shuffle(answers)
    table = pa.table(
        {
            "split": ["test"] * WIDE_EXAMPLES,
            "id": [str(number) for number in range(WIDE_EXAMPLES)],
            "score": [float(answer) for answer in answers],
            "correct": answers,
        }
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def write_arm(store: Path, name: str, num_lines: int) -> dict[str, Any]:
    """Write the state of an arm and its lines of training; return its record."""
    objective = "clm" if name.startswith("clm") else "mlm"
    state = hashlib.sha256(name.encode()).hexdigest()
    heldout = {"clm": 4.5, "mlm": 5.0}
    entry = {"phase": 0, "objective": objective, "steps": num_lines, "documents": num_lines}
    entry |= {"tokens": 2_048 * num_lines, "supervised_tokens": 800 * num_lines, "flops": 1e9}
    record = {
        "format": "biphasic.state/1",
        "identity": state,
        "step": num_lines,
        "heldout": heldout,
        "rows_sha256": state,
        "ledger": [entry] if num_lines else [],
        "seconds": 1.0 * num_lines,
    }
    lines = training_lines(objective, num_lines, heldout)
    metrics = "".join(f"{line}\n" for line in lines)
    files = {"state.json": json.dumps(record).encode(), "metrics.jsonl": metrics.encode()}
    write(store / "states" / state, files)
    return {
        "name": name,
        "label": name,
        "family": objective.upper() if num_lines else "none",
        "state": state,
        "steps": num_lines,
        "segments": [state] if num_lines else [],
    }


def training_lines(objective: str, count: int, heldout: dict[str, float]) -> Iterator[str]:
    """Yield the lines that training logs, with twenty evaluations among them."""
    draw = random.Random(0)  # noqa: S311 - a made-up loss
    for step in range(1, count + 1):
        line = {
            "step": step,
            "phase": 0,
            "objective": objective,
            "loss": 4 + 5 * math.exp(-10 * step / count) + draw.gauss(0, 0.1),
            "learning_rate": 1e-3,
            "gradient_norm": 1.0,
            "tokens": 2_048 * step,
            "supervised_tokens": 800,
            "tokens_per_second": 2_048.0,
        }
        yield json.dumps(line)
        if step % (count // 20) == 0:
            yield json.dumps({"step": step, "tokens": 2_048 * step, "heldout": heldout})


def measure_report(folder: Path) -> dict[str, float]:
    """Write a report, imports excluded."""
    import biphasic.analysis.page.render  # noqa: F401, PLC0415 - the parent stays small
    from biphasic.analysis.report import write_report  # noqa: PLC0415

    began, cpu_began = time.perf_counter(), time.process_time()
    page = write_report(folder / "study", folder / "store")
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu_began,
        "page_bytes": page.stat().st_size,
    }


def measure_analysis(folder: Path) -> dict[str, float]:
    """Read a study and compare every arm with the best of each task, imports excluded."""
    from biphasic.analysis.records import load_records  # noqa: PLC0415
    from biphasic.analysis.scores.source import study_scores  # noqa: PLC0415
    from biphasic.analysis.statistics.compare import family_of  # noqa: PLC0415

    began, cpu_began = time.perf_counter(), time.process_time()
    scores = study_scores(load_records(folder / "study", folder / "store"))
    loaded = time.perf_counter() - began
    found = [family_of(scores, dataset.name).with_best for dataset in scores.datasets]
    assert all(each.num_examples for family in found for each in family)
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu_began,
        "load_seconds": loaded,
        "comparisons": sum(map(len, found)),
    }


def measure_wide(sizes: dict[int, int]) -> Iterator[dict[str, Any]]:
    """Analyse and report studies of more and more arms, and print how the cost grows."""
    costs: dict[str, list[float]] = {"analysis": [], "report": []}
    for num_results, num_arms in sizes.items():
        with tempfile.TemporaryDirectory() as folder:
            write_wide_study(Path(folder), num_arms=num_arms)
            for what, seconds in costs.items():
                option = "--measure" if what == "report" else "--measure-analysis"
                found, cost = measured([__file__, option, folder])
                seconds.append(found["cpu_seconds"])
                print(
                    f"{num_results:7,} records, {what:8} {found['seconds']:6.2f} s, "
                    f"{found['cpu_seconds']:6.2f} s CPU, {cost.peak_bytes / 1e6:5.0f} MB",
                    flush=True,
                )
                yield {
                    "series": f"records, {what}",
                    "results": num_results,
                    "arms": num_arms,
                    **found,
                    "peak_bytes": cost.peak_bytes,
                }
    for what, seconds in costs.items() if len(sizes) > 1 else ():
        slope = exponent([*sizes], seconds)
        print(f"records, {what}: seconds grow with exponent {slope:.2f}", flush=True)
        yield {"series": f"records, {what}", "exponent": slope}


def measure_series(
    name: str, points: dict[int, tuple[int, int]], import_seconds: float
) -> Iterator[dict[str, Any]]:
    """Write reports of more and more records, and print how their cost grows.

    Args:
        name: What grows.
        points: Fine-tunings and lines per arm by size.
        import_seconds: What the reports are compared with, of the processor.
    """
    costs = []
    for size, (num_results, num_lines) in points.items():
        with tempfile.TemporaryDirectory() as folder:
            write_narrow_study(Path(folder), num_results=num_results, num_lines=num_lines)
            found, cost = measured([__file__, "--measure", folder])
        costs.append(found["cpu_seconds"])
        ratio = found["cpu_seconds"] / import_seconds
        print(
            f"{size:7,} {name:21} {found['seconds']:6.2f} s, {found['cpu_seconds']:6.2f} s CPU, "
            f"{cost.peak_bytes / 1e6:4.0f} MB, page of {found['page_bytes'] / 1e6:.2f} MB;  "
            f"{ratio:.2f}x the import",
            flush=True,
        )
        yield {
            "series": name,
            "results": num_results,
            "lines_per_arm": num_lines,
            **found,
            "peak_bytes": cost.peak_bytes,
            "over_import": ratio,
        }
    slope = exponent([*points][-2:], costs[-2:])
    print(f"{name}: seconds grow with exponent {slope:.2f} between the two largest", flush=True)
    yield {"series": name, "exponent_at_the_end": slope}


def measure(rounds: int) -> Iterator[dict[str, Any]]:
    """Measure both series."""
    starts = [run_process([sys.executable, "-c", IMPORT])[1] for _ in range(rounds)]
    import_seconds = min(start.cpu_seconds for start in starts)
    print(f"{import_seconds:.2f} s CPU for the import of what a report needs", flush=True)
    yield {"series": "import", "cpu_seconds": import_seconds}
    results = {size: (size, FIXED_LINES) for size in GRIDS}
    yield from measure_series("fine-tunings", results, import_seconds)
    lines = {size: (FIXED_RESULTS, size) for size in LINES}
    yield from measure_series("training lines an arm", lines, import_seconds)
    yield from measure_wide(WIDE)


def main() -> None:
    """Read the command line and run."""
    parser = command_line(__doc__, "report")
    parser.add_argument("--rounds", type=int, default=3, help="of the import; the fastest counts")
    parser.add_argument(
        "--records",
        type=int,
        nargs="*",
        choices=[*WIDE],
        metavar="N",
        help=f"measure the third series alone, for some of {', '.join(map(str, WIDE))} records",
    )
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure-analysis", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure_report(options.measure)))
    elif options.measure_analysis:
        print(json.dumps(measure_analysis(options.measure_analysis)))
    elif options.records is not None:
        chosen = {size: WIDE[size] for size in options.records or WIDE}
        write_records(options.json, list(measure_wide(chosen)))
    else:
        write_records(options.json, list(measure(options.rounds)))


if __name__ == "__main__":
    main()
