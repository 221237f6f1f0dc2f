"""What the benchmarks share: fresh processes, what they cost, and how records are written."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression
from typing import Any

_LIBRARIES = ("torch", "transformers", "tokenizers", "datasets", "sentence-transformers", "numpy")

# A process of its own: Linux counts the memory of the process that starts another as the other's
# too, and this one may hold far more than what it measures.
_LAUNCHER = """
import json, os, subprocess, sys, time
began = time.perf_counter()
_, status, usage = os.wait4(subprocess.Popen(sys.argv[2:]).pid, 0)
taken = {
    "seconds": time.perf_counter() - began,
    "cpu_seconds": usage.ru_utime + usage.ru_stime,
    "peak_bytes": 1024 * usage.ru_maxrss,
}
with open(sys.argv[1], "w", encoding="utf-8") as file:
    json.dump(taken, file)
sys.exit(os.waitstatus_to_exitcode(status) != 0)
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a process took.

    Attributes:
        seconds: From its start to its end.
        cpu_seconds: Processor time of it and its children.
        peak_bytes: Most memory that was resident at once in one process, mapped files included.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def run_process(
    command: Sequence[str], *, threads: int = 1, settings: Mapping[str, str] | None = None
) -> tuple[str, Cost]:
    """Run a command; return what it printed and what it took.

    Args:
        command: The program and its arguments.
        threads: Of its matrix products.
        settings: More environment variables.

    Raises:
        SystemExit: It failed; the message holds what it said.
    """
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # installed libraries have their bytecode, so has ours
        **(settings or {}),
    }
    with tempfile.TemporaryDirectory() as folder:
        taken = Path(folder) / "taken.json"
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(taken)]
        done = subprocess.run(
            [*launcher, *command], capture_output=True, text=True, check=False, env=environment
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
        return done.stdout, Cost(**json.loads(taken.read_text(encoding="utf-8")))


def measured(
    arguments: Sequence[str], *, threads: int = 1, settings: Mapping[str, str] | None = None
) -> tuple[Any, Cost]:
    """Run Python, such as a script, in a fresh process; return its last line as JSON, and its cost.

    `threads` and `settings` are as in `run_process`.
    """
    printed, cost = run_process([sys.executable, *arguments], threads=threads, settings=settings)
    return json.loads(printed.splitlines()[-1]), cost


def command_line(description: str | None, name: str) -> argparse.ArgumentParser:
    """Return a parser with `--json`, the file for the records of a benchmark of this name."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=Path(f"runs/benchmarks/{name}.json"))
    return parser


def machine() -> dict[str, Any]:
    """Describe where numbers come from."""
    versions = {}
    for library in _LIBRARIES:
        try:
            versions[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
    }


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the slope of log cost against log size: 0 is flat, 1 linear, 2 quadratic."""
    return linear_regression([*map(math.log, sizes)], [*map(math.log, costs)]).slope


def write_records(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write what was measured, and on what; whole, so that a reader never sees half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine(), "records": list(records)}
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)
    print(f"written to {path}")


def _processor() -> str:
    """Return the processor's name and what its vector units can do, where Linux says it."""
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return platform.processor() or platform.machine()
    lines = path.read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    named = {key.strip(): value.strip() for key, value in fields.items()}
    wide = [
        flag for flag in ("avx512f", "avx512_bf16", "amx_bf16") if flag in named.get("flags", "")
    ]
    return " ".join([named.get("model name", platform.machine()), *wide])
