"""Where models compute. No test machine has a GPU: what is asked for is looked at instead."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from biphasic.errors import ConfigError
from biphasic.execution.slots import devices_environment, local_slots
from biphasic.model.compute.device import (
    compute_device,
    computing_on,
    device_environment,
    on_compute_device,
    parse_device,
    visible_devices,
)


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine that shows two GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())


@pytest.mark.parametrize(("has_gpu", "device"), [(True, "cuda"), (False, "cpu")])
def test_the_gpu_is_used_where_there_is_one(has_gpu, device, monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(nn.Module, "to", lambda model, to: asked.append(to) or model)
    model = nn.Linear(2, 2)
    assert on_compute_device(model) is model
    assert asked == [torch.device(device)]


@pytest.mark.parametrize(
    "text", ["gpu", "cuda:", "cuda:-1", "CPU", "mps", "", "cuda:1\n", "x" * 999]
)
def test_other_names_are_refused_in_a_line(two_gpus, text):
    with pytest.raises(ConfigError, match=r"device: unknown value '.*'; write cpu") as e:
        parse_device(text)
    assert "\n" not in str(e.value)
    assert len(str(e.value)) < 200


def test_missing_devices_are_refused(monkeypatch, two_gpus):
    with pytest.raises(ConfigError, match=r"device: cuda:2: .* 2 CUDA devices"):
        parse_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match=r"device: cuda: .* no CUDA device"):
        parse_device("cuda")


@pytest.mark.parametrize(
    ("text", "device", "visible", "environment"),
    [
        (None, "cuda", ["4", "7"], {}),
        ("cuda", "cuda", ["4", "7"], {"CUDA_VISIBLE_DEVICES": "4,7"}),
        ("cuda:1", "cuda:1", ["7"], {"CUDA_VISIBLE_DEVICES": "7"}),
        ("cpu", "cpu", [], {"CUDA_VISIBLE_DEVICES": ""}),
    ],
)
def test_a_choice_holds_within_its_block(two_gpus, text, device, visible, environment):
    with computing_on(parse_device(text)):
        with computing_on(None):
            assert compute_device() == torch.device(device)
        assert visible_devices() == visible
        assert device_environment() == environment
        [slot] = local_slots(num_workers=1)
        hidden = {"CUDA_VISIBLE_DEVICES": visible[0] if visible else ""}
        assert devices_environment([slot]) == hidden
    assert compute_device() == torch.device("cuda")
    assert device_environment() == {}
