# ruff: noqa: T201 - a script
"""Record the golden numbers anew: `.venv/bin/python tests/golden/record.py`.

Says what moved since they were recorded last. That belongs under Numerics in CHANGELOG.md.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from golden_numbers import EXACT, PATH, Run, environment, foreign, moved, version_for, versions
from transformers.utils import logging

from biphasic.files import read_json, write_json

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from golden_runs import RUNS


def main() -> None:
    """Run everything on one thread, compare with what is kept, and keep it."""
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    before = read_json(PATH) if PATH.is_file() else {"runs": {}, "environment": {}, "versions": {}}
    record = {"environment": environment(), "versions": versions(), "runs": _run_all()}
    _tell(before, record["runs"])
    write_json(PATH, record)
    print(f"recorded: {PATH.name}")


def _run_all() -> dict[str, Run]:
    runs = {}
    for name, run in RUNS.items():
        with tempfile.TemporaryDirectory(prefix="golden-") as folder:
            runs[name] = run(Path(folder))
    return runs


def _tell(before: dict[str, Any], runs: dict[str, Run]) -> None:
    differing = foreign(before["environment"])
    if differing:
        print(f"the last record is of another environment: {', '.join(differing)}")
    touched = set()
    for name, run in runs.items():
        if name not in before["runs"]:
            print(f"{name}: new")
            continue
        lines = moved(before["runs"][name], run, tolerance=EXACT)
        print("\n  ".join([f"{name}: moved", *lines]) if lines else f"{name}: as before")
        if lines:
            touched.add(version_for(name))
    for version in sorted(touched):
        if versions()[version] == before["versions"][version] and not differing:
            print(f"{version} is what it was: raise it, and record again")


if __name__ == "__main__":
    main()
