"""Short runs, and what of two of them must be equal."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from biphasic.files import read_json
from biphasic.training import loop
from biphasic.training.compute import ComputeConfig
from biphasic.training.lineage import Lineage, TrainingData
from biphasic.training.loop import RunOptions, train_segment
from biphasic.training.recipe import Recipe
from biphasic.training.step.input import StepRows
from biphasic.training.step.pending import StepReport

CLM = {"objective": "clm", "steps": 3}
MLM = {"objective": "mlm", "steps": 3}
MIX = {
    "objective": "mix",
    "steps": 4,
    "objectives": [{"objective": "mlm"}, {"objective": "clm"}],
    "shares": [0.75, 0.25],
}
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Killed(BaseException):
    """Not an Exception: nothing may catch it, as nothing catches a kill."""


def killing(step: int) -> Callable[[StepReport], None]:
    """Return a report that kills its run after a step."""

    def report(done: StepReport) -> None:
        if done.step == step:
            raise Killed

    return report


def train(
    recipe: Recipe,
    data: TrainingData,
    store: Path,
    *,
    start: int = 0,
    end: int | None = None,
    options: dict | None = None,
    **compute: Any,
) -> Path:
    settings = RunOptions(
        **{"checkpoint_every": 0, **(options or {})}, compute=ComputeConfig(**compute)
    )
    lineage = Lineage(recipe, data.fingerprint)
    end = recipe.total_steps if end is None else end
    borders = [step for step in recipe.lora_borders if start < step < end]  # as plans cut there
    for first, last in pairwise([start, *borders, end]):
        state = train_segment(lineage, data, store, start=first, end=last, options=settings)
    return state


def metrics(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in lines]


def details(folder: Path) -> dict:
    state = read_json(folder / "state.json")
    return {key: value for key, value in state.items() if key not in {"seconds", "compute"}}


def assert_same(one: Path, other: Path) -> None:
    """All but times and how it was computed, to the last bit."""
    for name in ("model.safetensors", "optimizer.safetensors", "config.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert metrics(one) == metrics(other)
    assert details(one) == details(other)


def assert_close(one: Path, other: Path) -> None:
    """The same state, with weights that differ by the rounding of sums in another order."""
    assert one.name == other.name
    weights, others = (load_file(each / "model.safetensors") for each in (one, other))
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        # AdamW's steps of 2e-3 enlarge what rounding left.
        torch.testing.assert_close(weight, others[name], rtol=0, atol=2e-6)


def poison(
    monkeypatch: Any,
    recipe: Recipe,
    data: TrainingData,
    *steps: int,
    how: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss * float("nan"),
) -> None:
    """Make the loss of some steps, known by their labels, not finite whenever it is computed."""
    rows, bad = StepRows(recipe, data), []
    for step in steps:
        objective = recipe.phase_at(step).objective(step)
        (part,) = objective.supervise(rows.batch(step), data.vocabulary, mask_seed=0)
        bad.append(torch.from_numpy(part.labels))
    original = loop.pass_loss

    def poisoned(model: Any, given: Any, **options: Any) -> torch.Tensor:
        loss = original(model, given, **options)
        return how(loss) if any(torch.equal(given.labels, each) for each in bad) else loss

    monkeypatch.setattr(loop, "pass_loss", poisoned)
