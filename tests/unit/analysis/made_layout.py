"""Writes results as the reference study's public code leaves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_run(
    root: Path, place: str, rate: str, seed: int, validation: float, test: Any, **extra: Any
) -> Path:
    """Write `PLACE/lrRATE_sdSEED/results.json`; `test` may be scores of single examples.

    A place that ends with `/TRAINSET_` has a training set before the rate.
    """
    scores = {"score": test}
    if isinstance(test, list):
        scores = {"score": sum(test) / len(test), "scores_i": test}
    folder = f"{place}lr{rate}_sd{seed}" if place.endswith("_") else f"{place}/lr{rate}_sd{seed}"
    path = root / folder / "results.json"
    path.parent.mkdir(parents=True)
    content = {"validation": {"score": validation, "scores_i": []}, "test": scores, **extra}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def write_cell(root: Path, place: str, tests: dict[str, list[float]]) -> None:
    """Write runs at two or more rates; the first of the rates has the best validation scores."""
    for rank, (rate, scores) in enumerate(tests.items()):
        for seed, score in enumerate(scores):
            write_run(root, place, rate, seed, 0.9 - 0.1 * rank, score)
