"""The decision on `adapt`'s default objective, by the rule that README.md registered.

Usage: .venv/bin/python evidence/decoder/primary.py runs, the root of decoder and decoder-references
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from biphasic.analysis.records import load_records
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.statistics.doubts import floor_tests
from biphasic.analysis.statistics.replicates import by_recipe

# Each objective: its arm, the answer to Q1 that favours it, Q1's differences that do, and the
# questions that compare it with the control, read both ways.
OBJECTIVES = {
    "MNTP": ("smollm2-mntp40-750", "supported", "above zero", ("Q2", "Q3")),
    "MLM": ("smollm2-mlm40-750", "counts against", "below zero", ("Q4", "Q5")),
}


def main(root: Path) -> None:
    """Print the answers that decide, the floors, and the decision."""
    with (root / "decoder/report/questions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    answers = {row["question"]: row["answer"] for row in rows}
    asked = ("Q1", *(name for *_, names in OBJECTIVES.values() for name in names))
    print("; ".join(f"{name}: {answers[name]}" for name in asked))
    scores = by_recipe(study_scores(load_records(root / "decoder-references")))
    tasks = [row["dataset"] for row in rows if row["question"] == "Q1"]
    for task in tasks:
        above = floor_tests(scores, task).above
        print(f"{task}: clearly above every floor: {', '.join(above) or 'no arm'}")
    decision = "undecided: the default stays, and README says so"
    for objective, (arm, favoured, clear, controls) in OBJECTIVES.items():
        deciding = [
            row["dataset"] for row in rows if row["question"] == "Q1" and row["clear"] == clear
        ]
        is_better = answers["Q1"].startswith(favoured) and all(
            answers[name].startswith("supported") for name in controls
        )
        if is_better and all(arm in floor_tests(scores, task).above for task in deciding):
            decision = f"{objective} is the default"
    is_open = any(row["complete"] == "no" for row in rows if row["question"] in asked)
    print(f"decision{', provisional, as runs are missing' * is_open}: {decision}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
