"""Where models compute, and what fits there; no test machine has a GPU."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

from biphasic.amounts import size
from biphasic.errors import ConfigError, ModelError, ModelFilesError
from biphasic.execution.slots import devices_environment, local_slots
from biphasic.model.compute.device import (
    compute_device,
    computing_on,
    device_environment,
    on_compute_device,
    parse_device,
    visible_devices,
)
from biphasic.model.loading import footprint
from biphasic.model.loading.build import load_pretrained
from biphasic.model.loading.footprint import (
    check_memory,
    free_memory,
    required_memory,
    stored_parameters,
)
from families import FAMILIES, save_family


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


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_counted_without_loading(family, tmp_path):
    folder = save_family(family, tmp_path)
    count = sum(parameter.numel() for parameter in load_pretrained(folder).parameters())
    assert stored_parameters(folder) == count


def test_half_precision_counts_as_it_will_be_trained(tmp_path):
    folder = save_family("qwen3", tmp_path)
    count = stored_parameters(folder)
    load_pretrained(folder).to(torch.bfloat16).save_pretrained(folder)
    assert required_memory(folder, use="load") == 4 * count
    assert required_memory(folder, use="fp32") == (4 + 4 + 8) * count
    assert required_memory(folder, use="bf16") == (4 + 4 + 8 + 2 + 2) * count


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Stand in for the system's files."""
    (tmp_path / "group" / "memory").mkdir(parents=True)
    monkeypatch.setattr(footprint, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(footprint, "_GROUP_FOLDER", tmp_path / "group")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def write(available: int | None = None, **group: str) -> None:
        if available is not None:
            (tmp_path / "meminfo").write_text(
                f"MemTotal: 9999999 kB\nMemFree: 1 kB\nMemAvailable: {available} kB\nHugePages: 0\n"
            )
        for name, text in group.items():
            (tmp_path / "group" / name.replace("__", "/").replace("_m_", "memory.")).write_text(
                text
            )

    return write


def group(limit: str, used: int, droppable: int) -> dict[str, str]:
    stat = f"anon 5\ninactive_file {droppable}\nactive_file 7\n"
    return {"_m_max": f"{limit}\n", "_m_current": f"{used}\n", "_m_stat": stat}


def test_an_unknown_memory_limit_is_no_limit(machine):
    assert free_memory() == math.inf


def test_the_least_of_system_and_group_is_free(machine):
    machine(4000)
    assert free_memory() == 4000 * 1024
    machine(**group("max", 10, 0))
    assert free_memory() == 4000 * 1024
    machine(**group("1000000", 300_000, 50_000))  # caches of files can be dropped
    assert free_memory() == 750_000
    machine(**group("90000000", 300_000, 0))
    assert free_memory() == 4000 * 1024


def test_the_older_kind_of_group(machine):
    machine(
        4000,
        memory___m_limit_in_bytes="1000000",
        memory___m_usage_in_bytes="400000",
        memory___m_stat="inactive_file 1\ntotal_inactive_file 100000\n",
    )
    assert free_memory() == 700_000


def test_a_model_larger_than_memory_is_refused_unread(machine, tmp_path, monkeypatch):
    folder = save_family("qwen3", tmp_path / "model")
    monkeypatch.setattr(torch, "load", lambda *_: pytest.fail("reads weights"))
    needed = required_memory(folder, use="bf16")
    machine(needed // 1024 + 1)
    check_memory(folder)
    machine(needed // 1024 - 1)
    check_memory(folder, use="fp32")
    with pytest.raises(ModelError, match=rf"{size(needed)} of memory .* bf16") as error:
        check_memory(folder)
    assert str(error.value).startswith(f"{folder}: 0.00 billion parameters")
    assert "are free" in str(error.value)


def test_training_has_to_fit_into_the_gpu(machine, tmp_path, monkeypatch):
    folder = save_family("qwen3", tmp_path / "model")
    machine(required_memory(folder, use="load") // 1024 + 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    free = required_memory(folder, use="bf16")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 2 * free))
    check_memory(folder)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free - 1, 2 * free))
    with pytest.raises(ModelError, match="GPU's memory to be trained in bf16"):
        check_memory(folder)


def test_a_folder_without_weights_or_with_a_damaged_file(tmp_path):
    with pytest.raises(ModelFilesError, match=r"no weights here .*; convert other formats"):
        stored_parameters(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"12345678 not tensors")
    with pytest.raises(ModelError, match=r"model\.safetensors: cannot be loaded"):
        stored_parameters(tmp_path)
