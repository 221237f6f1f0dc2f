"""Losses read back later."""

from collections import Counter

import pytest
from short_runs import CLM, CPU, CUDA, MLM, assert_same, metrics, train
from torch.utils._python_dispatch import TorchDispatchMode

from biphasic.errors import TrainingError
from biphasic.files import read_json
from biphasic.training import loop
from biphasic.training.compute import ComputeConfig, steps_ahead
from biphasic.training.loop import StepReport

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("every", [2, 4, 100])
def test_nothing_changes_but_when_it_is_known(tmp_path, training_data, make_recipe, every):
    recipe = make_recipe(CLM, MLM)
    told: dict[str, list[StepReport]] = {"at once": [], "later": []}
    folders = [
        train(
            recipe,
            training_data,
            tmp_path / name,
            options={"heldout_every": 2, "report": told[name].append},
            read_back_every=reads,
        )
        for name, reads in (("at once", 1), ("later", every))
    ]
    assert_same(*folders)
    one, other = (
        [(each.step, each.end, each.loss, each.tokens) for each in reports]
        for reports in told.values()
    )
    assert one == other
    assert [step for step, *_ in one] == [1, 2, 3, 4, 5, 6]


def test_losses_are_read_when_due_and_before_anything_else(
    tmp_path, training_data, make_recipe, monkeypatch
):
    read: list[int] = []
    original = loop.PendingSteps.read_back

    def spy(pending):
        steps = original(pending)
        read.append(steps[-1].record["step"])
        return steps

    monkeypatch.setattr(loop.PendingSteps, "read_back", spy)
    recipe = make_recipe({**CLM, "steps": 7}, {**MLM, "steps": 4})
    for name, options, every, expected in (
        ("due", {}, 3, [3, 6, 7, 10, 11]),  # 7 ends a phase, 11 the run
        ("saved", {"checkpoint_every": 5}, 100, [5, 7, 10, 11]),
        ("watched", {"heldout_every": 2}, 100, [2, 4, 6, 7, 8, 10, 11]),
        ("each", {}, None, list(range(1, 12))),
    ):
        read.clear()
        train(recipe, training_data, tmp_path / name, options=options, read_back_every=every)
        assert read == expected


def test_devices_differ():
    assert ComputeConfig().reads_back_every(CPU) == 1
    assert ComputeConfig().reads_back_every(CUDA) == 10
    assert ComputeConfig(read_back_every=3).reads_back_every(CPU) == 3
    assert (steps_ahead(CPU), steps_ahead(CUDA)) == (0, 2)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("step", [3, 4, 5])
def test_the_weights_before_a_fault_are_saved_though_later_updates_ran(
    tmp_path, training_data, make_recipe, monkeypatch, poison, step
):
    """Losses are read every other step, so an update runs after the one of step 4."""
    original = loop.pass_loss
    calls: list[int] = []

    def poisoned(model, given):
        calls.append(1)
        value = original(model, given)
        return value * poison if len(calls) == step + 1 else value

    monkeypatch.setattr(loop, "pass_loss", poisoned)
    recipe = make_recipe({**CLM, "steps": 12})
    clean = train(make_recipe({**CLM, "steps": step}), training_data, tmp_path / "clean")
    calls.clear()
    with pytest.raises(TrainingError, match=f"step {step}: the loss is not finite; lower"):
        train(
            recipe,
            training_data,
            tmp_path,
            options={"checkpoint_every": 2},
            read_back_every=100,
        )
    assert not (tmp_path / "states").exists()
    last = max((tmp_path / "progress").glob("*/step-*"))
    assert last.name == f"step-{step:08d}"
    names = ("model.safetensors", "optimizer.safetensors")
    assert all((last / name).read_bytes() == (clean / name).read_bytes() for name in names)
    kept, wanted = (read_json(folder / "state.json") for folder in (last, clean))
    assert all(kept[key] == wanted[key] for key in ("identity", "step", "rows_sha256", "ledger"))
    assert [line["step"] for line in metrics(last)] == list(range(1, step + 1))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_reads_no_number_from_the_device(
    tmp_path, training_data, make_recipe, monkeypatch, precision
):
    counts: Counter[str] = Counter()

    class Watcher(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            counts[func.name()] += 1
            return func(*args, **(kwargs or {}))

    original = loop._update

    def watched(*arguments):
        with Watcher():
            return original(*arguments)

    monkeypatch.setattr(loop, "_update", watched)
    recipe = make_recipe(CLM, MLM, precision=precision)
    train(recipe, training_data, tmp_path)
    assert counts["aten::_fused_adamw_"] == 6 * 2  # matrices and vectors
    reading = ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "equal", "unique")
    assert not {name: n for name, n in counts.items() if any(each in name for each in reading)}
