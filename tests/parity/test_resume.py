"""Interrupted equals uninterrupted, and a shared trunk equals training alone: bitwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from biphasic.errors import StoppedError
from biphasic.files import read_json
from biphasic.training import loop
from biphasic.training import state as state_module
from biphasic.training.compute import ComputeConfig
from biphasic.training.lineage import Lineage, TrainingData
from biphasic.training.loop import RunOptions, train_segment
from short_runs import CLM, MLM, Killed, killing, metrics

SCHEDULE = {"peak": 2e-3, "warmup_steps": 2, "decay_steps": 2}
CHANGES: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "bf16": {"precision": "bf16"},
    "muon": {"precision": "bf16", "optimizer": {"name": "muon"}},
}
BERT = {**MLM, "replacement": "bert"}


pytestmark = pytest.mark.usefixtures("unprobed")


def content(folder: Path) -> dict[str, object]:
    """Return all that must be equal: everything but times."""
    details = read_json(folder / "state.json")
    del details["seconds"]
    names = ("model.safetensors", "optimizer.safetensors", "config.json", "tokenizer.json")
    return {
        "details": details,
        "metrics": metrics(folder),
        **{name: (folder / name).read_bytes() for name in names},
    }


class Runner:
    """Trains the recipe of these tests in a store."""

    def __init__(
        self,
        make_recipe: Callable,
        data: TrainingData,
        compute: ComputeConfig | None = None,
        **changes: Any,
    ) -> None:
        self.compute = compute or ComputeConfig()
        self.recipe = make_recipe(CLM, BERT, learning_rate=SCHEDULE, **changes)
        self.lineage, self.data = Lineage(self.recipe, data.fingerprint), data

    def __call__(
        self, store: Path, *, start: int = 0, end: int = 6, every: int = 1, kill_at: int = 0
    ) -> Path:
        options = RunOptions(
            checkpoint_every=every, heldout_every=2, report=killing(kill_at), compute=self.compute
        )
        return train_segment(self.lineage, self.data, store, start=start, end=end, options=options)

    def killed(self, store: Path, **settings: int) -> None:
        with pytest.raises(Killed):
            self(store, **settings)


# AdamW and bf16 are in these two, and together in `behind`.
@pytest.fixture(scope="module", params=["fp32", "muon"])
def runner(request, make_recipe, training_data) -> Runner:
    return Runner(make_recipe, training_data, **CHANGES[request.param])


@pytest.fixture(scope="module")
def references() -> dict[str, dict]:
    return {}


@pytest.fixture
def expected(runner, references, tmp_path_factory) -> dict[str, object]:
    """The state of an uninterrupted run without checkpoints."""
    key = runner.lineage.identities[-1]
    if key not in references:
        references[key] = content(runner(tmp_path_factory.mktemp("alone"), every=0))
    return references[key]


def test_killed_after_every_update(runner, expected, tmp_path):
    for step in range(1, 6):
        runner.killed(tmp_path, kill_at=step)
        kept = sorted(path.name for path in (tmp_path / "progress").glob("*/step-*"))
        assert kept == [f"step-{n:08d}" for n in range(max(step - 1, 1), step + 1)]
    assert content(runner(tmp_path)) == expected
    assert list((tmp_path / "progress").iterdir()) == []


def test_killed_between_checkpoints(runner, expected, tmp_path):
    for step, last in ((1, None), (3, "step-00000002"), (5, "step-00000004")):
        runner.killed(tmp_path, every=2, kill_at=step)
        kept = sorted(path.name for path in (tmp_path / "progress").glob("*/step-*"))
        assert (kept[-1] if kept else None) == last
    assert content(runner(tmp_path, every=2)) == expected


def test_killed_during_a_checkpoint(runner, expected, tmp_path, monkeypatch):
    for victim, call in (("save_file", 2), ("write_json", 2), ("save_file", 4), ("write_json", 4)):
        calls: list[int] = []
        module = safetensors.torch if victim == "save_file" else state_module
        original = getattr(module, victim)

        def kill(*arguments, calls=calls, original=original, last=call, **options):
            calls.append(1)
            if len(calls) == last:
                raise Killed
            return original(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(module, victim, kill)
            runner.killed(tmp_path)
    assert content(runner(tmp_path)) == expected


@pytest.mark.parametrize("branch", [0, 2, 3, 4])
def test_a_branch_from_a_shared_segment_equals_training_alone(runner, expected, tmp_path, branch):
    trunk = runner(tmp_path, end=branch)
    found = content(runner(tmp_path, start=branch))
    assert found["details"]["parent"] == (trunk.name if branch else None)
    assert found["details"] == {**expected["details"], "parent": found["details"]["parent"]}
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert found[name] == expected[name]
    # The trunk's lines and the branch's, one after the other, are those of the whole run; the
    # trunk ends with a look at the held-out text that the whole run may not have taken.
    chained = found["metrics"]
    if branch:
        chained = content(trunk)["metrics"] + chained
    kept = [line for line in chained if "heldout" not in line or line["step"] in (2, 4, 6)]
    assert kept == expected["metrics"]


def test_a_segment_of_a_longer_arm_serves_a_shorter_one(runner, expected, tmp_path, make_recipe):
    # The trunk is trained as the first steps of an all-CLM arm of another length.
    longer = make_recipe(
        {**CLM, "steps": 9},
        learning_rate={**SCHEDULE, "decay_steps": 4},
        precision=runner.recipe.precision,
        optimizer=runner.recipe.optimizer,
        seeds={"mask_seed": 0},
    )
    lineage = Lineage(longer, runner.data.fingerprint)
    assert lineage.identities[3] == runner.lineage.identities[3]
    train_segment(
        lineage, runner.data, tmp_path, start=0, end=3, options=RunOptions(heldout_every=2)
    )
    found = content(runner(tmp_path, start=3))
    assert found["model.safetensors"] == expected["model.safetensors"]
    assert found["optimizer.safetensors"] == expected["optimizer.safetensors"]
    assert found["details"]["ledger"] == expected["details"]["ledger"]


def test_killed_in_a_branch(runner, expected, tmp_path):
    runner(tmp_path, end=3)
    runner.killed(tmp_path, start=3, kill_at=5)
    found = content(runner(tmp_path, start=3))
    assert found["model.safetensors"] == expected["model.safetensors"]
    assert found["details"]["rows_sha256"] == expected["details"]["rows_sha256"]
    steps = [line["step"] for line in found["metrics"] if "loss" in line]
    assert steps == [4, 5, 6]


@pytest.fixture(scope="module")
def behind(make_recipe, training_data) -> Runner:
    """As on a GPU: in several passes, too, and with activations that are computed twice."""
    compute = ComputeConfig(
        max_tokens_per_pass=64, activation_checkpointing=True, read_back_every=3
    )
    return Runner(make_recipe, training_data, compute, precision="bf16")


@pytest.mark.parametrize(("every", "step"), [(1, 4), (2, 3), (4, 5)])
def test_killed_with_data_read_ahead_and_losses_read_back_later(
    behind, references, tmp_path, monkeypatch, step, every
):
    monkeypatch.setattr(loop, "steps_ahead", lambda _: 2)
    if "behind" not in references:
        references["behind"] = content(behind(tmp_path / "alone", every=0))
    behind.killed(tmp_path, every=every, kill_at=step)
    assert content(behind(tmp_path, every=every)) == references["behind"]


@pytest.mark.parametrize(("every", "step"), [(0, 1), (0, 6), (2, 3), (2, 6)])
def test_stopped_on_request(runner, expected, tmp_path, every, step):
    """What is there is saved, whether a checkpoint is due or not; after the last step all is."""
    steps: list[int] = []
    asked: list[int] = []

    def should_stop() -> bool:
        asked.append(1)
        return len(asked) == step

    options = RunOptions(
        checkpoint_every=every,
        heldout_every=2,
        report=lambda done: steps.append(done.step),
        should_stop=should_stop,
        compute=ComputeConfig(read_back_every=100),
    )
    if step < 6:
        with pytest.raises(StoppedError, match=f"stopped after {step} steps"):
            train_segment(
                runner.lineage, runner.data, tmp_path, start=0, end=6, options=options
            )  # fmt: skip
        checkpoint = max((tmp_path / "progress").glob("*/step-*"))
        assert checkpoint.name == f"step-{step:08d}"
        found = runner(tmp_path, every=every)
    else:
        found = train_segment(
            runner.lineage, runner.data, tmp_path, start=0, end=6, options=options
        )  # fmt: skip
    assert steps == [*range(1, step + 1)]
    content_found = content(found)
    if step == 6:  # which was computed otherwise
        content_found["details"]["compute"] = expected["details"]["compute"]
    assert content_found == expected


def test_heldout_evaluation_does_not_change_training(runner, expected, tmp_path):
    options = RunOptions(checkpoint_every=0, heldout_every=1)
    folder = train_segment(runner.lineage, runner.data, tmp_path, start=0, end=6, options=options)
    found = content(folder)
    assert found["model.safetensors"] == expected["model.safetensors"]
    losses = [line for line in found["metrics"] if "loss" in line]
    assert losses == [line for line in expected["metrics"] if "loss" in line]


def test_precisions_and_optimizers_differ(make_recipe, training_data, tmp_path):
    # Guards the tests above: they would hold for a setting that is ignored.
    folders = [
        Runner(make_recipe, training_data, **changes)(tmp_path, every=0)
        for changes in CHANGES.values()
    ]
    weights = {(folder / "model.safetensors").read_bytes() for folder in folders}
    assert len(weights) == len(CHANGES)
