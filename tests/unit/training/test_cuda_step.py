"""Steps on a `cuda` device, without one: fake tensors have shape, type and device, but no numbers.

Reading a number raises an error, and so does computing with tensors of two devices. The backward
pass needs a device for its streams; it is tested with the kernels of CUDA on fake tensors of a CPU.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from biphasic.distributed import ALONE
from biphasic.model.compute import attention
from biphasic.training import loop
from biphasic.training.compute import ComputeConfig
from biphasic.training.lineage import Lineage
from biphasic.training.metrics_log import MetricsLog
from biphasic.training.optimizers.muon import Muon
from biphasic.training.run import Run, first_model
from biphasic.training.step.input import StepInput
from biphasic.training.step.optimizer import Optimizer, layer_matrices, set_precision
from short_runs import CLM, CPU, MLM

CUDA = torch.device("cuda:0")
LIBRARY = Path(torch.__file__).parent / "lib/libc10.so"
TYPE_CUDA, TYPE_META = 1, 14  # of c10::DeviceType
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

pytestmark = pytest.mark.skipif(not LIBRARY.is_file(), reason="torch keeps its guards elsewhere")


@pytest.fixture
def fake_cuda() -> Iterator[FakeTensorMode]:
    """Fake tensors of any device.

    Without a device, torch built for CUDA replaces its guard of devices by one that does nothing.
    torch built for CPUs has none to replace, so take that of the meta device, which does nothing.
    """
    library = ctypes.CDLL(str(LIBRARY))
    name = "_ZN3c104impl26device_guard_impl_registryE"
    guards = (ctypes.c_void_p * (TYPE_META + 1)).in_dll(library, name)
    before = guards[TYPE_CUDA]
    if before is None:
        guards[TYPE_CUDA] = guards[TYPE_META]
    yield FakeTensorMode()
    guards[TYPE_CUDA] = before


def fake_run(recipe, data, *, device: torch.device) -> Run:
    """Return a run at its start, with two passes to a step; called in a fake mode."""
    with device:
        model = first_model(recipe, data)
    weights = set_precision(model, recipe.precision)
    run = Run(
        lineage=Lineage(recipe, data.fingerprint),
        data=data,
        compute=ComputeConfig(max_tokens_per_pass=2 * recipe.max_seqlen),
        ranks=ALONE,
        model=model.train(),
        optimizer=Optimizer(weights, recipe.optimizer, layer_matrices=layer_matrices(model)),
        divided=None,
        log=MetricsLog([], None, next_step=1),
        parent=None,
        code=(),
    )
    run.enter(recipe.phase_at(0))
    return run


def faked(given: StepInput, mode: FakeTensorMode) -> StepInput:
    """Return a step's input, on the CPU, as fake tensors."""
    passes = (
        replace(rows, **{name: mode.from_tensor(tensor) for name, tensor in rows._tensors()})
        for rows in given.passes
    )
    return replace(given, passes=tuple(passes))


def check_steps(run: Run, mode: FakeTensorMode, *, steps: int) -> None:
    """Take some steps, and check what they leave."""
    device, phase = run.model.device, run.lineage.recipe.phase_at(0)
    working = {name: weight.dtype for name, weight in run.optimizer.weights.working.items()}
    inputs = loop._inputs(run)
    inputs._pins = False  # no device reads it
    for step in range(steps):
        given = inputs.of(step)
        assert len(given.passes) == 2
        with mode:
            _, *values = loop._update(run, phase, faked(given, mode))
        for value in values:  # loss and norm
            assert (value.shape, value.dtype, value.device) == ((), torch.float32, device)
    weights = run.optimizer.weights
    assert {name: weight.dtype for name, weight in weights.working.items()} == working
    moments = run.optimizer.state_tensors()
    num_moments = 3 * len(weights.masters)
    first = dict.fromkeys(weights.masters, "exp_avg")
    if isinstance(run.lineage.recipe.optimizer, Muon):
        matrices = layer_matrices(run.model)
        num_moments -= 2 * len(matrices)
        first |= dict.fromkeys(matrices, "momentum_buffer")
    assert len(moments) == num_moments
    for tensor in (*weights.masters.values(), *moments.values()):
        assert (tensor.dtype, tensor.device) == (torch.float32, device)
    for name, master in weights.masters.items():
        assert moments[f"{name}.{first[name]}"].shape == master.shape == weights.working[name].shape
        assert weights.working[name].device == device


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("phase", [CLM, MLM])
def test_a_step_stays_on_the_device_and_reads_no_number(
    fake_cuda, training_data, make_recipe, monkeypatch, phase, precision, optimizer
):
    recipe = make_recipe(phase, precision=precision, optimizer={"name": optimizer})
    with fake_cuda:
        run = fake_run(recipe, training_data, device=CUDA)

    def backward(loss: torch.Tensor) -> None:
        """Leave what autograd promises: gradients like their parameters."""
        assert loss.requires_grad
        assert loss.device == CUDA
        for parameter in run.model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    monkeypatch.setattr(torch.Tensor, "backward", backward)
    check_steps(run, fake_cuda, steps=2)


@pytest.mark.parametrize(
    ("phase", "precision", "backend"), [(CLM, "bf16", "varlen"), (MLM, "fp32", "sdpa")]
)
def test_the_kernels_of_cuda_have_a_backward_pass(
    training_data, make_recipe, monkeypatch, phase, precision, backend
):
    assert attention.backend(CUDA, DTYPES[precision]) == backend
    monkeypatch.setattr(attention, "backend", lambda *_, **__: backend)
    with FakeTensorMode() as mode:
        run = fake_run(make_recipe(phase, precision=precision), training_data, device=CPU)
    run.compute = run.compute.model_copy(update={"cpu_kernels": False})
    check_steps(run, mode, steps=1)


def test_reading_a_number_would_be_noticed(fake_cuda):
    with fake_cuda:
        values = torch.zeros(3, device=CUDA)
        for read in (values.sum().item, values.tolist, lambda: bool(values[0] > 0)):
            with pytest.raises(DataDependentOutputException):
                read()
        with pytest.raises(DynamicOutputShapeException):
            values.nonzero()
        with pytest.raises(RuntimeError, match="devices"):
            values + torch.zeros(3)
