"""MNTP against MiniLM, as README.md plans it: `against_minilm.py FOLDER/report/results.csv`.

Prints the table of differences: paired over seeds, corrected by Holm over the three tasks of each
number of labels.
"""

import csv
import sys
from pathlib import Path

from scipy.stats import ttest_rel

from biphasic.analysis.statistics.contrast import holm

HERE = Path(__file__).parent
# In percentage points: the forecast and the ends of its 90 % interval, as registered in README.md.
FORECASTS = {
    16: {"sst2": (-5, -15, 6), "uner_en": (5, -3, 15), "trec": (-3, -14, 9)},
    64: {"sst2": (-2, -11, 8), "uner_en": (13, 3, 24), "trec": (0, -9, 10)},
    256: {"sst2": (2, -4, 8), "uner_en": (18, 7, 29), "trec": (1, -6, 8)},
    1024: {"sst2": (4, 0, 9), "uner_en": (20, 10, 31), "trec": (2, -3, 6)},
}


def main(results: Path) -> None:
    """Print a row for each number of labels and task."""
    ours, theirs = {}, {}
    with results.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            if row["arm"] == "mntp" and row["selected"] == "true":
                ours[row["task"], int(row["seed"])] = 100 * float(row["test"])
    with (HERE / "minilm.csv").open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            task = f"{row['task']}-{row['labels']}"
            theirs[task, int(row["seed"])] = 100 * float(row["test"])
    covered = 0
    print("| Labels | Task | MNTP − MiniLM (95 % interval) | p, corrected | Forecast | Covered |")
    print("|---|---|---|---|---|---|")
    for labels, forecasts in FORECASTS.items():
        rows = []
        for task in forecasts:
            cell = f"{task}-{labels}"
            seeds = sorted(seed for name, seed in ours if name == cell)
            pairs = [[side[cell, seed] for seed in seeds] for side in (ours, theirs)]
            test = ttest_rel(*pairs)
            interval = test.confidence_interval(0.95)
            difference = (sum(pairs[0]) - sum(pairs[1])) / len(seeds)
            rows.append((task, difference, interval, test.pvalue))
        corrected = holm([row[-1] for row in rows])
        for (task, difference, (low, high), _), p in zip(rows, corrected, strict=True):
            expected, least, most = forecasts[task]
            is_covered = least <= difference <= most
            covered += is_covered
            p_text = f"{p:.3f}" if p >= 0.001 else "< 0.001"
            print(
                f"| {labels:,} | {task} | {difference:+.1f} ({low:+.1f} to {high:+.1f}) | {p_text} "
                f"| {expected:+} ({least:+} to {most:+}) | {'yes' if is_covered else 'no'} |"
            )
    print(f"\nForecast intervals that cover: {covered} of 12.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
