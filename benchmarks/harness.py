"""What the benchmarks share: fresh processes, what they cost, and how records are written."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LIBRARIES = ("torch", "transformers", "tokenizers", "datasets", "sentence-transformers", "numpy")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a process took.

    Attributes:
        seconds: From its start to its end.
        cpu_seconds: Processor time of it and its children.
        peak_bytes: Most memory that was resident at once in one process, mapped files included.
            Linux counts it in KiB.
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
        **(settings or {}),
    }
    # wait4 tells what this one child took; it leaves pipes unread, so output goes to files.
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as complaint:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=printed, stderr=complaint, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        complaint.seek(0)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}\n{complaint.read()}")
        cost = Cost(seconds, usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss)
        return printed.read(), cost


def measured(
    script: str, arguments: Sequence[str], *, threads: int = 1
) -> tuple[dict[str, Any], Cost]:
    """Run a Python script in a fresh process; return its last line, read as JSON, and its cost."""
    printed, cost = run_process([sys.executable, script, *arguments], threads=threads)
    return json.loads(printed.splitlines()[-1]), cost


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
