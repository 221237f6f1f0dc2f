"""Fine-tuned weights on disk while a grid runs: those of the best run so far."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from biphasic.files import read_json
from biphasic.store import MANIFEST, MODEL, complete_folder, is_complete
from biphasic.tasks.finetune import TrainedModel
from biphasic.training.state import save_tensors

_BODY, _HEAD = "body.safetensors", "head.safetensors"
_REMEDY = "run again"


@dataclass(frozen=True)
class KeptModel:
    """A saved fine-tuned model; metrics are by split, then by name."""

    learning_rate: float
    seed: int
    steps: int
    metrics: dict[str, dict[str, float]]
    body: dict[str, Tensor]
    head: dict[str, Tensor]


def keep_best(folder: Path, finetuned: TrainedModel) -> None:
    """Keep a model in a folder of its own, unless the one that is kept there is better."""
    # The score on validation decides; a diverged model is never kept. Ties go to the smaller rate,
    # then to the smaller seed, so the best model of a grid is among those that its parts keep.
    record, scores = finetuned.results[0]
    if record.status == "diverged":
        return
    offered = {
        "learning_rate": record.learning_rate,
        "seed": record.seed,
        "steps": record.steps,
        "metrics": {split: of.metrics for split, of in scores.items()},
        "score": record.score("validation", record.metric) or 0.0,
    }
    if is_complete(folder):
        if _rank(read_json(folder / MANIFEST)) <= _rank(offered):
            return
        # Delete the kept model first: two large models may not fit on the disk.
        shutil.rmtree(folder)
    with complete_folder(folder, **offered) as partial:
        save_tensors(finetuned.weights, partial / _BODY)
        save_tensors(finetuned.head, partial / _HEAD)


def _rank(described: dict[str, Any]) -> tuple[float, float, int]:
    return -described["score"], described["learning_rate"], described["seed"]


def find_kept(folder: Path, *, learning_rate: float, seed: int) -> KeptModel | None:
    """Return a kept model below `folder` by its rate and seed, or None."""
    for path in sorted(folder.glob(f"*/{MANIFEST}")):
        manifest = MODEL.open(path.parent, remedy=_REMEDY).verify().manifest
        if (manifest["learning_rate"], manifest["seed"]) == (learning_rate, seed):
            return KeptModel(
                learning_rate,
                seed,
                steps=manifest["steps"],
                metrics=manifest["metrics"],
                body=load_file(path.parent / _BODY),
                head=load_file(path.parent / _HEAD),
            )
    return None
