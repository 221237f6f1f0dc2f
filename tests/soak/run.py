# ruff: noqa: T201 - a script
"""Inject faults into runs, compare what they leave, and write their counts into `docs/recovery.md`.

    make soak                                     # twenty minutes
    cd tests; ../.venv/bin/python -m soak.run --minutes 5 --seed 1 --only checkpoints

Each trial runs a command on a copy of a small root, meddles with it a few times, and then lets it
finish as a user would: run again, and do what an error message says. The result must equal that of
a run without faults: byte for byte, or up to rounding where another number of processes resumes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "support"))

from soak.disk import can_mount
from soak.faults import FAULTS, Fault, FaultError, Trial
from soak.subjects import Subject, make_subjects, soaking
from warm import is_ready

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("record.json")
PAGE = ROOT / "docs" / "recovery.md"
BEGIN, END = "<!-- faults -->\n\n", "\n<!-- end -->"


def main() -> int:
    """Return 1 if any result differed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of a row, for example 'disk full'")
    parser.add_argument("--page-only", action="store_true", help="write the page from its record")
    options = parser.parse_args()
    if not options.page_only:
        faults = [each for each in FAULTS if options.only in f"{each.where}: {each.kind}"]
        with tempfile.TemporaryDirectory(prefix="biphasic-soak-") as folder:
            record = soak(faults, Path(folder), minutes=options.minutes, seed=options.seed)
        if options.only:
            print(table(record["faults"]))
            return len(record["problems"]) > 0
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    PAGE.write_text(page(record), encoding="utf-8")
    return len(record["problems"]) > 0


def soak(faults: Sequence[Fault], folder: Path, *, minutes: float, seed: int) -> dict[str, Any]:
    """Inject faults in turn until the time is over; return the record."""
    if not is_ready():
        sys.exit("processes are forked, which CUDA does not allow; run with CUDA_VISIBLE_DEVICES=")
    begin = time.monotonic()
    rows = [{"where": each.where, "fault": each.kind, "injected": 0, "equal": 0} for each in faults]
    problems: list[str] = []
    with soaking():
        subjects = make_subjects(folder / "subjects", {each.subject for each in faults})
        end = begin + 60 * minutes
        for number, index in enumerate(itertools.cycle(range(len(faults)))):
            if time.monotonic() > end:
                break
            fault, row = faults[index], rows[index]
            draw = random.Random(f"{seed}/{number}")  # noqa: S311 - moments, not secrets
            struck, problem = inject(fault, subjects[fault.subject], folder / "trial", draw)
            row["injected"] += struck
            row["equal"] += 0 if problem else struck
            if problem:
                problems.append(f"trial {number}, {fault.where}, {fault.kind}: {problem}")
            print(f"{fault.where}, {fault.kind}: {struck} {problem or 'equal'}", flush=True)
    return {
        "seed": seed,
        "minutes": round((time.monotonic() - begin) / 60, 1),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "has_mounts": can_mount(),
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("torch", "transformers")},
        },
        "problems": problems,
        "faults": rows,
    }


def inject(fault: Fault, subject: Subject, folder: Path, draw: random.Random) -> tuple[int, str]:
    """Run one trial; return how many faults struck, and what went wrong, if anything."""
    shutil.rmtree(folder, ignore_errors=True)
    trial = Trial(subject, folder, draw)
    struck, problem = 0, ""
    try:
        for _ in range(fault.times):
            if trial.is_over:
                break
            struck += fault.inject(trial)
            if not trial.is_over:
                trial.follow()
        trial.finish()
        problem = ", ".join(trial.differences())
    except (FaultError, TimeoutError) as error:
        said = trial.log.read_text(errors="replace") if trial.log.is_file() else ""
        struck, problem = struck + 1, f"{type(error).__name__}: {error} {said[-2000:]}"
    return struck, problem


def page(record: dict[str, Any]) -> str:
    """Return the page with the counts of a record."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    counts = f"{summary(record)}\n{table(record['faults'])}"
    return f"{before}{BEGIN}{counts}{END}{rest.partition(END)[2]}"


def summary(record: dict[str, Any]) -> str:
    """Return a paragraph about the run."""
    injected, equal = (sum(row[key] for row in record["faults"]) for key in ("injected", "equal"))
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return (
        f"Seed {record['seed']}, {record['minutes']:g} minutes on {record['machine']}, {versions}: "
        f"**{injected} faults, {equal} times equal**.\n"
    )


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Return the table of faults."""
    lines = ["| Where | Fault, with equal and injected |", "|---|---|"]
    for where, faults in itertools.groupby(rows, key=lambda row: row["where"]):
        counts = (f"{row['fault']} {row['equal']}/{row['injected']}" for row in faults)
        lines.append(f"| {where} | {'; '.join(counts)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
