"""Start-up of every command: what `--version` and each `--help` take in time and memory.

Beside them stand two limits: Python that does nothing, and Python that imports torch and
transformers. The fastest of some rounds counts. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import run_process, write_records

NOTHING = "pass"
HEAVY = "import torch, transformers"
SLOW_SECONDS = 0.5
"""Above Python that does nothing; slower answers are marked."""
LIST_COMMANDS = """
import json, typer
from biphasic.cli.main import app
def below(command, path):
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from below(child, [*path, name])
print(json.dumps(list(below(typer.main.get_command(app), []))))
"""
"""In a process of its own, so that this one stays small."""


@dataclass
class Start:
    """What starting a program took, at best.

    Attributes:
        seconds: From its start to its end.
        cpu_seconds: Of the processor.
        peak_bytes: Most memory that was resident at once.
    """

    seconds: float = math.inf
    cpu_seconds: float = math.inf
    peak_bytes: int = 0

    def run(self, code: str) -> None:
        """Run a program once more."""
        _, cost = run_process([sys.executable, "-c", code])
        self.seconds = min(self.seconds, cost.seconds)
        self.cpu_seconds = min(self.cpu_seconds, cost.cpu_seconds)
        self.peak_bytes = cost.peak_bytes


def starts_of(programs: Iterable[str], *, rounds: int) -> dict[str, Start]:
    """Run programs, round after round, so that a slow minute hits all alike."""
    starts = {code: Start() for code in programs}
    for _ in range(rounds):
        for code, start in starts.items():
            start.run(code)
    return starts


def program_of(arguments: Sequence[str]) -> str:
    """Return the program that the command line runs for some arguments."""
    return (
        f"import sys; sys.argv = ['biphasic', *{list(arguments)!r}]; "
        "from biphasic.cli.main import main; main()"
    )


def measure(rounds: int) -> Iterator[dict[str, Any]]:
    """Start every command, and print what it took beside the limits."""
    listed, _ = run_process([sys.executable, "-c", LIST_COMMANDS])
    asked = [["--version"], *([*path, "--help"] for path in json.loads(listed))]
    programs = {program_of(arguments): " ".join(["biphasic", *arguments]) for arguments in asked}
    limits = {code: f"python -c '{code}'" for code in (NOTHING, HEAVY)}
    starts = starts_of([*limits, *programs], rounds=rounds)
    for code, name in (limits | programs).items():
        start = starts[code]
        over = start.seconds - starts[NOTHING].seconds
        ratio = start.seconds / starts[HEAVY].seconds
        print(
            f"{name:40} {start.seconds:5.2f} s, {start.cpu_seconds:5.2f} s CPU, "
            f"{start.peak_bytes / 1e6:4.0f} MB;  {over:+.2f} s over Python alone, "
            f"{ratio:.2f}x torch and transformers"
            f"{'  SLOW' if code in programs and over > SLOW_SECONDS else ''}",
            flush=True,
        )
        yield {
            "program": name,
            **asdict(start),
            "over_python_seconds": over,
            "over_torch_and_transformers": ratio,
        }


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="the fastest is reported")
    parser.add_argument("--json", type=Path, default=Path("runs/benchmarks/commands.json"))
    options = parser.parse_args()
    write_records(options.json, list(measure(options.rounds)))


if __name__ == "__main__":
    main()
