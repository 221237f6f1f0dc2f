"""Memory that a model will need, and what is free, from small files in known places."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from biphasic.amounts import size
from biphasic.errors import ModelError, ModelFilesError
from biphasic.model.loading import footprint
from biphasic.model.loading.build import load_pretrained
from biphasic.model.loading.footprint import (
    check_memory,
    free_memory,
    required_memory,
    stored_parameters,
)
from families import FAMILIES, save_family


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
