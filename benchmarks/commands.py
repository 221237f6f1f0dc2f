"""Start-up of every command: `--version`, each `--help`, and those that only read, on real input.

Beside them stand two limits: Python that does nothing, and Python that imports torch and
transformers. The input is a small study, run to its end before. The fastest of some rounds counts.
See README.md beside this file.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from harness import command_line, run_process, write_records

NOTHING = "pass"
HEAVY = "import torch, transformers"
SLOW_SECONDS = 0.5
"""Above Python that does nothing; slower answers of `--help` are marked."""
READING_SHARE = 0.25
"""Of the processor time of importing torch and transformers; commands that take more are marked."""
STUDY = {
    "name": "small",
    "title": "Small",
    "corpus": {"libraries": ["click"], "vocab_size": 512},
    "recipe": {
        "model": "pico",
        "max_seqlen": 64,
        "rows_per_step": 4,
        "learning_rate": {"peak": 1e-3, "warmup_steps": 1, "decay_steps": 1},
    },
    "arms": [{"name": "mlm", "phases": [{"objective": "mlm", "steps": 2}]}],
    "tasks": [{"name": "words", "source": "sc:words"}],
    "finetuning": {
        "learning_rates": [5e-4],
        "seeds": [0, 1],
        "protocol": {"max_steps": 1, "max_seqlen": 32, "batch_size": 4},
    },
}
"""As little as makes every command have something to say."""
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


def finish_study(folder: Path) -> list[list[str]]:
    """Run the small study to its end; return the commands that only read it."""
    rows = [f"{word} {number},{word}" for number in range(4) for word in ("rows", "shape")]
    (folder / "words").mkdir()
    for split in ("train", "dev", "test"):
        text = "\n".join(["text,label", *(f"{split} {row}" for row in rows)])
        (folder / "words" / f"{split}.csv").write_text(text, encoding="utf-8")
    file, root = folder / "small.yaml", folder / "runs"
    file.write_text(yaml.safe_dump(STUDY), encoding="utf-8")
    at_root, study = ["--root", str(root)], str(root / "small")
    run_again = ["study", "run", str(file), *at_root, "--workers", "1", "--quiet"]
    run_process([sys.executable, "-c", program_of(run_again)])
    [corpus] = map(str, (root / "store/data").iterdir())
    return [
        ["study", "schema"],
        ["study", "plan", str(file), *at_root],
        ["study", "diff", str(file), str(file), *at_root],
        ["study", "status", "small", *at_root],
        ["study", "jobs", str(file), *at_root],
        run_again,
        ["study", "clean", *at_root],
        ["study", "cancel", "small", *at_root],
        ["analyze", study],
        ["claims", study],
        ["figures", study, "--format", "csv", "--out", str(folder / "figures")],
        ["paper", "--format", "md", "--out", str(folder / "paper")],
        ["corpus", "inspect", corpus],
        ["corpus", "verify", corpus],
        # The run has written it: this is the time of an up-to-date report.
        ["study", "report", "small", *at_root],
    ]


def measure(rounds: int, reading: Sequence[Sequence[str]]) -> Iterator[dict[str, Any]]:
    """Start every command, and print what it took beside the limits."""
    listed, _ = run_process([sys.executable, "-c", LIST_COMMANDS])
    asked = [["--version"], *([*path, "--help"] for path in json.loads(listed))]
    programs = {program_of(arguments): " ".join(["biphasic", *arguments]) for arguments in asked}
    limits = {code: f"python -c '{code}'" for code in (NOTHING, HEAVY)}
    readers = {
        program_of(arguments): " ".join(["biphasic", *arguments[:2]]) for arguments in reading
    }
    starts = starts_of([*limits, *programs, *readers], rounds=rounds)
    for code, name in (limits | programs | readers).items():
        start = starts[code]
        over = start.seconds - starts[NOTHING].seconds
        ratio = start.seconds / starts[HEAVY].seconds
        cpu_ratio = start.cpu_seconds / starts[HEAVY].cpu_seconds
        is_slow = over > SLOW_SECONDS if code in programs else cpu_ratio > READING_SHARE
        print(
            f"{name:40} {start.seconds:5.2f} s, {start.cpu_seconds:5.2f} s CPU, "
            f"{start.peak_bytes / 1e6:4.0f} MB;  {over:+.2f} s over Python alone, "
            f"{ratio:.2f}x torch and transformers, {cpu_ratio:.2f}x in CPU"
            f"{'  SLOW' if is_slow and code not in limits else ''}",
            flush=True,
        )
        yield {
            "program": name,
            **asdict(start),
            "over_python_seconds": over,
            "over_torch_and_transformers": ratio,
            "cpu_over_torch_and_transformers": cpu_ratio,
        }


def main() -> None:
    """Read the command line and run."""
    parser = command_line(__doc__, "commands")
    parser.add_argument("--rounds", type=int, default=5, help="the fastest is reported")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reading = finish_study(Path(folder))
        write_records(options.json, list(measure(options.rounds, reading)))


if __name__ == "__main__":
    main()
