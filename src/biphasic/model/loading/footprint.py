"""Estimates a model's memory from the headers of its files, before loading."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from biphasic.amounts import size
from biphasic.errors import ModelError, ModelFilesError
from biphasic.model.compute.device import compute_device

# Train in this precision, with fp32 weights and AdamW; or `load` only.
Use = Literal["fp32", "bf16", "fp32 by LoRA", "bf16 by LoRA", "load"]

# Bytes per parameter. fp32 weights: 4; gradients: 4; two moments: 8. bf16 adds working copies
# and their gradients: 2 + 2. Gradients and moments of the few weights of LoRA are not counted.
_BYTES: dict[Use, int] = {
    "load": 4, "fp32": 16, "bf16": 20, "fp32 by LoRA": 4, "bf16 by LoRA": 6
}  # fmt: skip
# Limit, usage, and a table whose file cache can be dropped: control groups v2, v1.
_GROUPS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)
_GROUP_FOLDER = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def stored_parameters(folder: Path | str) -> int:
    """Count the parameters in a folder's safetensors files, from their headers."""
    return sum(
        math.prod(tensor.get_shape())
        for file in weight_files(Path(folder))
        for _, tensor in stored_tensors(file)
    )


def weight_files(folder: Path) -> list[Path]:
    """Return the files that transformers reads weights from."""
    whole = folder / "model.safetensors"
    files = [whole] if whole.is_file() else sorted(folder.glob("model-*-of-*.safetensors"))
    if not files:
        remedy = "convert other formats first, as loading them can run code"
        if (folder / "onnx").is_dir():
            remedy = "give the model that the ONNX graph was made from"
        raise ModelFilesError(f"{folder}: no weights here (no model.safetensors); {remedy}")
    return files


def stored_tensors(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a safetensors file by name, reading only the header."""
    try:
        with safe_open(path, framework="np") as file:  # headers need no torch
            for name in file.keys():  # noqa: SIM118 - no mapping
                yield name, file.get_slice(name)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path.parent}: {path.name}: cannot be loaded ({error})") from None


def required_memory(folder: Path | str, *, use: Use = "bf16") -> int:
    """Estimate the memory of a model in bytes, without activations."""
    return stored_parameters(folder) * _BYTES[use]


def check_memory(folder: Path | str, *, use: Use = "bf16") -> None:
    """Raise an error for a model that does not fit into memory, before loading it."""
    # On a machine with a GPU the weights pass through main memory, and training must fit into GPU
    # memory.
    if use != "load" and compute_device().type == "cuda":
        import torch  # noqa: PLC0415 - already imported here; other checks do not need it

        free_on_gpu, _ = torch.cuda.mem_get_info()
        _refuse_larger(folder, use, free_on_gpu, "of the GPU's memory")
        use = "load"
    _refuse_larger(folder, use, free_memory(), "of memory")


def free_memory() -> float:
    """Return the bytes this process may still allocate; infinite if unknown."""
    # It is the lower of the system's available memory and the control group's limit.
    free = math.inf
    if _MEMINFO.is_file():
        free = 1024.0 * _table(_MEMINFO).get("MemAvailable:", math.inf)
    for limit, used, details, droppable in _GROUPS:
        paths = [_GROUP_FOLDER / name for name in (limit, used, details)]
        if not all(path.is_file() for path in paths):
            continue
        allowed, taken = (path.read_text().strip() for path in paths[:2])
        if allowed != "max":
            free = min(free, int(allowed) - int(taken) + _table(paths[2]).get(droppable, 0))
    return free


def _table(path: Path) -> dict[str, int]:
    """Read lines with a name and a number."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}


def _refuse_larger(folder: Path | str, use: Use, free: float, kind: str) -> None:
    needed = required_memory(folder, use=use)
    if needed > free:
        purpose = "to be loaded" if use == "load" else f"to be trained in {use}"
        raise ModelError(
            f"{folder}: {stored_parameters(folder) / 1e9:.2f} billion parameters need about "
            f"{size(needed)} {kind} {purpose}, without activations, but "
            f"{size(free)} are free"
        )
