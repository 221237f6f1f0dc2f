"""What is kept of the golden runs, where it was recorded, and what moved since.

Where the environment is the recorded one, numbers are equal to the last bit. Elsewhere sums are
taken in other orders. Measured by letting torch, MKL and oneDNN use other instructions (SSE4.1,
AVX2, AVX-512, without those for bf16), losses and norms in fp32 moved by up to 1e-5 (retrieval,
late; all others by 3e-6 at most), in bf16 by up to 2e-3 (a norm), scores by 1e-6. Tolerances are
five to ten times as large, for processors and versions that were not at hand. Masking 39.8 %
instead of 40 % moves losses by 2e-4, and is still seen in fp32.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from biphasic.data.rows import ROW_PLAN_VERSION
from biphasic.tasks.protocol import FINETUNING_VERSION
from biphasic.training import metrics_log as here
from biphasic.training.lineage import NUMERICS_VERSION

PATH = Path(__file__).parent / "losses.json"
EXACT = 0.0
FP32_TOLERANCE = 1e-4
"""Of losses and gradient norms computed in fp32, relative."""
BF16_TOLERANCE = 1e-2
"""The same in bf16."""
_SCORE_TOLERANCE = 0.2
"""Of scores, absolute: one of 24 examples may change sides, or of the six without an answer."""

# These let the libraries compute with other instructions than the processor's best.
_DISPATCH = (
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
)
_KNOWN = ("instruction_set", "processor", "products", "system", "threads")
_CACHES = ("l1d_cache_size", "l2_cache_size")
# Hashes of floating-point numbers; others are of integers, and the same everywhere.
_EXACT_ALONE = ("examples_sha256", "weights_sha256")

Run = Mapping[str, Any]
"""What is kept of a run: by step, by name, or as a hash."""


def versions() -> dict[str, int]:
    """Return the versions that stand for our code."""
    return {
        "FINETUNING_VERSION": FINETUNING_VERSION,
        "NUMERICS_VERSION": NUMERICS_VERSION,
        "ROW_PLAN_VERSION": ROW_PLAN_VERSION,
    }


def version_for(name: str) -> str:
    """Name the version that a change of a run's numbers raises."""
    return "FINETUNING_VERSION" if name.startswith("finetune-") else "NUMERICS_VERSION"


def environment() -> dict[str, Any]:
    """Return all that the last bits depend on, beside our code."""
    known = here.environment()
    processor = torch.cpu.get_capabilities()
    return {
        **{name: known[name] for name in _KNOWN},
        **known["libraries"],
        "capabilities": sorted(name for name, value in processor.items() if value is True),
        **{name: processor.get(name) for name in _CACHES},
        "dispatch": {name: os.environ[name] for name in _DISPATCH if name in os.environ},
    }


def foreign(recorded: Mapping[str, Any]) -> list[str]:
    """Name what differs between the recorded environment and this one."""
    found = environment()
    return [name for name in found if recorded.get(name) != found[name]]


def moved(recorded: Run, found: Run, *, tolerance: float) -> list[str]:
    """Say what moved, in a line for each kind of number; nothing where all is as recorded.

    Args:
        recorded: What is kept.
        found: What came out now.
        tolerance: Relative, for losses and norms; `EXACT` compares every bit of everything.
    """
    names = sorted({*recorded, *found})
    if tolerance != EXACT:
        names = [name for name in names if name not in _EXACT_ALONE]
    lines = []
    for name in names:
        before, now = recorded.get(name), found.get(name)
        if isinstance(before, str) and isinstance(now, str):
            line = "" if before == now else f"{before[:12]} recorded, {now[:12]} now"
        else:
            is_score = name == "scores"
            bound = _SCORE_TOLERANCE if is_score and tolerance != EXACT else tolerance
            line = _largest(_labelled(before), _labelled(now), bound, is_relative=not is_score)
        if line:
            lines.append(f"{name}: {line}")
    return lines


def _labelled(numbers: Any) -> dict[str, float]:
    if isinstance(numbers, list):
        return {f"step {step}": number for step, number in enumerate(numbers, 1)}
    return dict(sorted((numbers or {}).items()))


def _largest(
    before: Mapping[str, float], now: Mapping[str, float], bound: float, *, is_relative: bool
) -> str:
    """Say which of some numbers moved first, and which most."""
    if before.keys() != now.keys():
        return f"{len(before)} numbers recorded, {len(now)} now, or of other names"
    changes = {
        label: abs(now[label] - number) / (abs(number) if is_relative else 1.0)
        for label, number in before.items()
    }
    # Written so that a number which is none counts as moved.
    over = [label for label, change in changes.items() if not change <= bound]
    if not over:
        return ""
    first, most = over[0], max(over, key=changes.__getitem__)
    return (
        f"{len(over)} of {len(before)} moved; first {first}: {before[first]} recorded, "
        f"{now[first]} now (by {changes[first]:.1e}); most {most} (by {changes[most]:.1e})"
    )
