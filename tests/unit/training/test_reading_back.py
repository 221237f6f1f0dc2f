"""Losses read back later."""

from collections import Counter

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from biphasic.training import loop
from biphasic.training.compute import ComputeConfig, steps_ahead
from biphasic.training.step.pending import StepReport
from short_runs import CLM, CPU, CUDA, MLM, assert_same

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("every", [2, 4, 100])
def test_nothing_changes_but_when_it_is_known(train, make_recipe, every):
    recipe = make_recipe(CLM, MLM)
    reports_of: dict[str, list[StepReport]] = {"at once": [], "later": []}
    folders = [
        train(
            recipe,
            name,
            options={"heldout_every": 2, "report": reports_of[name].append},
            read_back_every=reads,
        )
        for name, reads in (("at once", 1), ("later", every))
    ]
    assert_same(*folders)
    one, other = (
        [(each.step, each.loss, each.tokens) for each in reports] for reports in reports_of.values()
    )
    assert one == other
    assert [step for step, *_ in one] == [1, 2, 3, 4, 5, 6]


def test_losses_are_read_when_due_and_before_anything_else(train, make_recipe, monkeypatch):
    read: list[int] = []
    original = loop.PendingSteps.read_back

    def spy(pending):
        steps = original(pending)
        read.append(steps[-1].step)
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
        train(recipe, name, options=options, read_back_every=every)
        assert read == expected


def test_devices_differ():
    assert ComputeConfig().reads_back_every(CPU) == 1
    assert ComputeConfig().reads_back_every(CUDA) == 10
    assert ComputeConfig(read_back_every=3).reads_back_every(CPU) == 3
    assert (steps_ahead(CPU), steps_ahead(CUDA)) == (0, 2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_reads_no_number_from_the_device(train, make_recipe, monkeypatch, precision):
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
    train(recipe)
    assert counts["aten::_fused_adamw_"] == 6 * 2  # matrices and vectors
    reading = ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "equal", "unique")
    assert not {name: n for name, n in counts.items() if any(each in name for each in reading)}
