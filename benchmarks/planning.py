"""What it costs to look at a study: seconds and memory of `biphasic study plan`.

Two cases, each a process of its own, imports included: the reference grid as it is shipped
(`studies/paper.yaml`, against 10 s and 1 GiB), and a made-up study of 100,000 jobs (against 60 s).
Neither has any data, so nothing but planning is measured. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from harness import run_process, write_records

STUDIES = Path(__file__).parents[1] / "studies"
PAPER_LIMITS = {"seconds": 10.0, "peak_bytes": 1 << 30}
LARGE_LIMITS = {"seconds": 60.0}
NUM_JOBS = 100_000


def large_study() -> dict[str, Any]:
    """Return a study of 100,000 jobs: 1,000 arms, five states of each, twenty tasks.

    CLM of 50 lengths, then MLM at five rates, at two peak rates and with two seeds: arms share
    trunks, as those of real studies do.
    """
    return {
        "name": "large",
        "title": "Large",
        "corpus": {"sources": ["hf:owner/text"], "tokenizer": "owner/tokenizer"},
        "recipe": {
            "model": "nano",
            "max_seqlen": 512,
            "learning_rate": {"peak": 1e-3, "warmup_steps": 500, "decay_steps": 500},
        },
        "arms": [
            {
                "steps": 10_000,
                "phases": [{"objective": "clm"}, {"objective": "mlm"}],
                "axes": {
                    "phases.0.steps": list(range(150, 7_650, 150)),
                    "phases.1.mlm_probability": [0.2, 0.3, 0.4, 0.5, 0.6],
                    "recipe.learning_rate.peak": [1e-3, 2e-3],
                    "recipe.seeds.init_seed": [0, 1],
                },
            }
        ],
        "evaluation_points": [{"arms": ["*"], "steps": [7_800, 8_400, 9_000, 9_600]}],
        "tasks": [
            {"name": f"task-{number}", "source": source}
            for number, source in enumerate(["sst2", "mnli", "conll2003", "squad", "msmarco"] * 4)
        ],
        "finetuning": {"protocol": {"max_seqlen": 512}},
    }


def measure(file: Path, root: Path) -> dict[str, Any]:
    """Plan a study in a process of its own; return its numbers and its cost."""
    command = [sys.executable, "-c", "from biphasic.cli.main import main; main()"]
    arguments = ["study", "plan", str(file), "--json", "--rate", "1e14", "--root", str(root)]
    printed, cost = run_process([*command, *arguments])
    plan = json.loads(printed)
    groups = plan["num_checkpoints"] * len(plan["tasks"])
    return {
        "arms": sum(group["num_arms"] for group in plan["groups"]),
        "states": plan["num_states"],
        "steps": plan["shared"]["steps"],
        "steps_without_sharing": plan["alone"]["steps"],
        "jobs": plan["num_segments"] + groups,
        "seconds": cost.seconds,
        "cpu_seconds": cost.cpu_seconds,
        "peak_bytes": cost.peak_bytes,
    }


def line_of(name: str, record: dict[str, Any], limits: dict[str, float]) -> str:
    """Describe a measurement, and which of its limits it breaks."""
    broken = [key for key, most in limits.items() if record[key] > most]
    verdict = f"over the limit: {', '.join(broken)}" if broken else "within its limits"
    return (
        f"{name}: {record['arms']:,} arms, {record['states']:,} states, {record['jobs']:,} jobs, "
        f"{record['steps']:,} steps ({record['steps_without_sharing']:,} without sharing): "
        f"{record['seconds']:.1f} s ({record['cpu_seconds']:.1f} s of CPU), "
        f"{record['peak_bytes'] / 2**20:,.0f} MiB; {verdict}"
    )


def main() -> None:
    """Measure both, print a line for each, and write the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file for the records (JSON)")
    options = parser.parse_args()
    records = []
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / "large.yaml"
        large.write_text(yaml.safe_dump(large_study()), encoding="utf-8")
        cases = (("paper", STUDIES / "paper.yaml", PAPER_LIMITS), ("large", large, LARGE_LIMITS))
        for name, file, limits in cases:
            record = {"study": name, **measure(file, Path(folder) / "root")}
            print(line_of(name, record, limits), flush=True)
            records.append(record)
    if options.out:
        write_records(options.out, records)


if __name__ == "__main__":
    main()
