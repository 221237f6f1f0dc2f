"""Fine-tuned weights on disk for as long as a grid runs: those of the best run so far."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from biphasic.files import MANIFEST, complete_folder, is_complete, read_json, verify_folder
from biphasic.tasks.finetune import TrainedModel
from biphasic.training.state import save_tensors

_BODY, _HEAD = "body.safetensors", "head.safetensors"
_REMEDY = "run again"


@dataclass(frozen=True)
class KeptModel:
    """What one fine-tuning has left.

    Attributes:
        learning_rate: Which it was.
        seed: Likewise.
        steps: Optimizer steps that were taken.
        metrics: By split, then by name.
        body: Tensors of the body by name.
        head: Tensors of the head by name.
    """

    learning_rate: float
    seed: int
    steps: int
    metrics: dict[str, dict[str, float]]
    body: dict[str, Tensor]
    head: dict[str, Tensor]


class BestModel:
    """Keeps the model with the best validation score among those that it is offered.

    Of equals it keeps that with the smaller rate, then that with the smaller seed: so the parts of
    a grid, each with a folder of its own, hold the best of the whole grid among them. Where there
    is no validation score nothing is trained, and all are the same.
    """

    def __init__(self, folder: Path) -> None:
        """Keep models in a folder, which holds nothing else."""
        self._folder = folder

    def offer(self, finetuned: TrainedModel) -> None:
        """Keep a model if it is better than what is there; one that diverged never is."""
        result = finetuned.results[0]
        if result.scores is None:
            return
        metrics = {split: scores.metrics for split, scores in result.scores.items()}
        offered = {
            "learning_rate": result.learning_rate,
            "seed": result.seed,
            "steps": result.steps,
            "metrics": metrics,
            "score": metrics.get("validation", {}).get(result.task.metric, 0.0),
        }
        if is_complete(self._folder):
            if _rank(read_json(self._folder / MANIFEST)) <= _rank(offered):
                return
            # What is there goes first: two large models may not fit on the disk.
            shutil.rmtree(self._folder)
        with complete_folder(self._folder, **offered) as partial:
            save_tensors(finetuned.weights, partial / _BODY)
            save_tensors(finetuned.head, partial / _HEAD)


def _rank(described: dict[str, Any]) -> tuple[float, float, int]:
    return -described["score"], described["learning_rate"], described["seed"]


def find_kept(folder: Path, *, learning_rate: float, seed: int) -> KeptModel | None:
    """Return a fine-tuning if one of the folders below `folder` has it."""
    for path in sorted(folder.glob(f"*/{MANIFEST}")):
        held = verify_folder(path.parent, remedy=_REMEDY)
        if (held["learning_rate"], held["seed"]) == (learning_rate, seed):
            return KeptModel(
                learning_rate,
                seed,
                steps=held["steps"],
                metrics=held["metrics"],
                body=load_file(path.parent / _BODY),
                head=load_file(path.parent / _HEAD),
            )
    return None
