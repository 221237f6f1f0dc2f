"""A run's metrics: one JSON object per line; TensorBoard and Weights & Biases are views of it.

Weights & Biases is off by default. `BIPHASIC_WANDB` names the project; child processes inherit it.
It is offline unless `WANDB_MODE` says otherwise; wandb's other variables have their usual meaning.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from biphasic.child import variables_set
from biphasic.errors import ConfigError, install_command
from biphasic.model.compute.device import compute_device
from biphasic.numerics import is_other_code, running_code
from biphasic.records import HeldoutLine, StateRecord, TrainingLine
from biphasic.training.lineage import NUMERICS_VERSION
from biphasic.version import __version__

PROJECT = "BIPHASIC_WANDB"


class MetricsLog:
    """Lines of metrics since the last planned state."""

    # The lines are held in memory and written with each checkpoint, so a resumed run has the same
    # lines as an uninterrupted one. Views are written immediately.

    def __init__(self, lines: list[str], tensorboard: Path | None, *, next_step: int) -> None:
        """Continue after `lines`; without a folder for TensorBoard there are no views."""
        # Events of `next_step` and later are replaced.
        self.lines = list(lines)
        evaluated = [line["heldout"] for line in self.read() if "heldout" in line]
        self.heldout: dict[str, float] = evaluated[-1] if evaluated else {}  # the last losses
        self._writer = self._wandb = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - plans need no torch

            self._writer = SummaryWriter(str(tensorboard), purge_step=next_step)
            self._wandb = _wandb_run(tensorboard)

    def write(self, line: TrainingLine | HeldoutLine) -> None:
        """Append a line."""
        self.lines.append(json.dumps(line.model_dump(), sort_keys=True, allow_nan=False))
        if isinstance(line, HeldoutLine):
            self.heldout = line.heldout
            judged = {} if line.minimal_pairs is None else {"minimal_pairs": line.minimal_pairs}
            scalars = {f"heldout/{name}": value for name, value in (line.heldout | judged).items()}
        else:
            names = ("loss", "learning_rate", "gradient_norm", "tokens_per_second")
            scalars = {f"train/{name}": getattr(line, name) for name in names}
        if self._writer:
            for name, value in scalars.items():
                self._writer.add_scalar(name, value, line.step)
        if self._wandb:
            self._wandb.log(scalars, step=line.step)

    def read(self) -> list[dict[str, Any]]:
        """Return the fields of all lines."""
        return [json.loads(line) for line in self.lines]

    def text(self) -> str:
        """Return all lines as a file's content."""
        return "".join(f"{line}\n" for line in self.lines)

    def close(self) -> None:
        """Flush the views."""
        if self._writer:
            self._writer.close()
        if self._wandb:
            self._wandb.finish()


@contextmanager
def viewed_in_wandb(project: str | None) -> Iterator[None]:
    """Log the runs of a block to a project; None leaves it to the environment."""
    with variables_set({} if project is None else {PROJECT: project}):
        if os.environ.get(PROJECT):
            _wandb()  # fail before any work
        yield


def _wandb_run(folder: Path) -> Any:
    """Start a run named after a folder of event files; None if no project is named."""
    project = os.environ.get(PROJECT)
    if not project:
        return None
    return _wandb().init(
        project=project,
        name=folder.name,
        dir=str(folder.parents[1]),
        mode=os.environ.get("WANDB_MODE", "offline"),
    )


def _wandb() -> Any:
    try:
        return importlib.import_module("wandb")
    except ImportError:
        raise ConfigError(
            f"wandb: Weights & Biases is not installed; install it with: {install_command('wandb')}"
        ) from None


_NUMERIC = (
    "numerics_version",
    "torch",
    "transformers",
    "instruction_set",
    "threads",
    "products",
    "device",
    "accelerator",
    "processes",
    "max_tokens_per_pass",
    "compile",
    "predicted_only",
    "cpu_kernels",
    "shard",
    "shard_size",
)  # settings of a state's `environment` and `compute` that can change numbers, by rounding
_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "scikit-learn", "scipy")


def environment() -> dict[str, Any]:
    """Return versions, hardware and thread count as JSON, without names of hosts or people."""
    import torch  # noqa: PLC0415 - commands that only read studies need no environment

    from biphasic.model.cpu.products import processor, products  # noqa: PLC0415 - torch

    device = compute_device()
    return {
        "biphasic": __version__,
        "numerics_version": NUMERICS_VERSION,
        "python": platform.python_version(),
        "libraries": _library_versions(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "products": str(products()),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "accelerator": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }


def changed_settings(before: StateRecord, compute: Mapping[str, Any]) -> str:
    """Describe what differs from an earlier record and can change numbers, as `threads 1 -> 4`."""
    # Settings that an old record lacks are left out.
    earlier = _settings(before.environment, before.compute)
    now = _settings(environment(), compute)
    changes = [
        f"{name} {earlier[name]} -> {now[name]}"
        for name in now
        if name in earlier and earlier[name] != now[name]
    ]
    if is_other_code("pretraining", before.code):
        code = before.code[-1] if before.code else "unknown"
        changes.append(f"code {code[:12]} -> {running_code('pretraining')[:12]}")
    return ", ".join(changes)


def _settings(environment: Mapping[str, Any], compute: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that can change numbers, by readable name."""
    all_settings = {**environment, **environment.get("libraries", {}), **compute}
    settings = {
        name.replace("_", " "): "none" if (value := all_settings[name]) is None else str(value)
        for name in _NUMERIC
        if name in all_settings
    }
    if "device" in settings:  # cuda:1 computes as cuda:0 does
        settings["device"] = settings["device"].partition(":")[0]
    return settings


@cache  # called at every checkpoint, and reading package metadata is slow
def _library_versions() -> dict[str, str]:
    return {name: version(name) for name in _LIBRARIES}
