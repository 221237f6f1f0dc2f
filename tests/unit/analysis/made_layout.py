"""Writes results as the reference study's public code leaves them."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from biphasic.analysis.scores.source import paper_scores


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


PUBLIC_NAMES = {
    "SST-2": "sst2", "OntoNotes": "ontonotes5", "CoNLL": "conll2003_en", "UNER": "uner_en",
    "SQuAD": "squad", "SQuAD-v2": "squad_v2", "ReCoRD": "record", "NQ": "nq",
    "MS MARCO": "msmarco", "MLDR": "mldr_en",
}  # fmt: skip
"""Folders of the public results, where they are not the paper's names."""


def write_public_results(root: Path, models: Collection[str] = ()) -> None:
    """Write the paper's means in its public layout, with a 13th dataset as its folders have it.

    Each model has two learning rates and one seed on each dataset, and 0.3 on `QA/qed`.
    """
    table = paper_scores()
    for model in table.distinct:
        if models and model.name not in models:
            continue
        for dataset in table.datasets:
            if dataset.is_average:
                continue
            mean = table.get(model.name, dataset.name).estimate.mean / 100
            name = PUBLIC_NAMES.get(dataset.name, dataset.name)
            place = f"results/{model.name}/{dataset.task}/{name}"
            place += "/msmarco_pairs_" if dataset.task == "IR" else ""
            write_cell(root, place, {"1e-04": [mean], "1e-05": [mean / 2]})
        write_cell(root, f"results/{model.name}/QA/qed", {"1e-04": [0.3], "1e-05": [0.1]})
