"""How fast this machine trains in each precision, from a second of passes of a small model.

A model that is wider than `nano` is measured as one layer of its width: wide products are faster.

`python -m biphasic.study.sizing.speed PRECISION` prints it, for commands that load no torch.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from biphasic.data.building import DEFAULT_VOCAB_SIZE
from biphasic.data.packing import lay_out
from biphasic.data.rows import Piece, RowBatch
from biphasic.execution.slots import local_slots
from biphasic.files import digest
from biphasic.model.compute.device import compute_device
from biphasic.model.compute.forward import first_position
from biphasic.model.cpu.products import measured_once
from biphasic.model.loading.build import architecture_config, new_model
from biphasic.model.loading.configurations import model_shape
from biphasic.model.shape import PRESETS, Architecture
from biphasic.objectives.masking import Mlm
from biphasic.objectives.supervision import Vocabulary
from biphasic.study import lines_of
from biphasic.study.plan.cost import shape_of, state_bytes, training_cost
from biphasic.study.sizing.estimate import least_memory
from biphasic.training.compute import ComputeConfig
from biphasic.training.recipe import Recipe
from biphasic.training.step.input import Pass, pass_loss

_SECONDS = 1.0
_ROWS, _LENGTH = 8, 256
_HEAD_DIM, _WIDEST = 64, 2048  # A pass at this width takes seconds on a slow processor.
_SPECIAL = {"bos": 0, "eos": 1, "pad": 2, "mask": 3}
_CLEARLY = 1.15  # Gain from which another precision is recommended; less may be chance.
_DAYS = 14  # Updated libraries and other machines may have another speed.
_COPIES = 3  # The state and the newest two checkpoints.
_WORTH_MEASURING = 1e13  # FLOPs: a minute on a fast core.
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Measured(NamedTuple):
    """Speed of a small model's passes in one precision, and what the other one would gain."""

    per_second: float  # FLOPs of forward and backward passes.
    other_gain: float  # How many times as fast passes in the other precision are.
    at: float = 0.0  # Time of the measurement, in seconds since 1970.
    was_busy: bool = False  # Whether other work slowed it: more processes wanted to run than cores.

    def is_current(self) -> bool:
        """Return whether it still stands; otherwise the next command measures again."""
        return not self.was_busy and 0 <= time.time() - self.at < _DAYS * 24 * 3600


def measure_speed(precision: str, width: int = 0) -> Measured:
    """Return the speed of passes at a width on this machine; a second each, kept for some days."""
    name, model, device = f"speed-{precision}", PRESETS["nano"], compute_device()
    if device.type == "cuda":  # the cache may be shared with machines that have another GPU or none
        name += f"-{digest(torch.cuda.get_device_name(device))[:8]}"
    num_heads = min(width, _WIDEST) // _HEAD_DIM
    if (width := num_heads * _HEAD_DIM) > model.hidden_size:
        sizes = (1, width, 8 * width // 3, num_heads, num_heads)
        model = Architecture(**dict(zip(Architecture.model_fields, sizes, strict=True)))
        name += f"-{width}"
    measure = partial(_measured, precision, model)
    return measured_once(name, Measured, measure, is_current=Measured.is_current) or measure()


def _measured(precision: str, architecture: Architecture) -> Measured:
    # Other models, reading and updates make training half to twice as fast. These passes compute
    # all that FLOPs count, as fine-tunings do: MLM is up to 5 % faster, and CLM by 6 % in fp32.
    flops, passes = 0, {}
    was_busy = os.getloadavg()[0] > (os.cpu_count() or 1)  # before these passes load it, too
    for name in (precision, _other(precision)):
        flops, passes[name] = _small_pass(_DTYPES[name], architecture)
        # The first pass of each would otherwise decide a comparison of a few.
        passes[name]()  # libraries start, and buffers are made
    # Other work on the machine slows passes and their processor time, so precisions alternate,
    # and their fastest passes are compared.
    own = time.perf_counter if compute_device().type == "cuda" else time.process_time
    fastest = dict.fromkeys(passes, math.inf)
    num_passes, passed, begin = 0, 0.0, time.perf_counter()
    while time.perf_counter() - begin < len(passes) * _SECONDS:
        for name, run in passes.items():
            start, own_start = time.perf_counter(), own()
            run()
            fastest[name] = min(fastest[name], own() - own_start)
            if name == precision:
                num_passes, passed = num_passes + 1, passed + time.perf_counter() - start
    gain = fastest[precision] / fastest[_other(precision)]
    return Measured(num_passes * flops / passed, gain, time.time(), was_busy)


def _small_pass(dtype: torch.dtype, architecture: Architecture) -> tuple[int, Callable[[], None]]:
    """Return the FLOPs of a pass of a model, and a function that runs it."""
    config = architecture_config(
        architecture, vocab_size=DEFAULT_VOCAB_SIZE, max_seqlen=_LENGTH, special_ids=_SPECIAL
    )
    # Fewer rows of a wider model, whose passes take longer.
    rows = max(1, _ROWS * PRESETS["nano"].hidden_size // architecture.hidden_size)
    model = new_model(config, init_seed=0)
    torch.nn.Module.to(model, compute_device(), dtype)
    tokens = [len(_SPECIAL) + np.arange(_LENGTH) + _LENGTH * row for row in range(rows)]
    packed = lay_out(tokens, [[row] for row in range(rows)], row_length=_LENGTH, pad_id=2)
    pieces = tuple(Piece(0, row, 0, _LENGTH - 2) for row in range(rows))
    batch = RowBatch(packed, pieces, packed.spans + np.array([1, -1]))
    vocabulary = Vocabulary(DEFAULT_VOCAB_SIZE, _SPECIAL["mask"], frozenset(_SPECIAL.values()))
    [part] = Mlm(objective="mlm").supervise(batch, vocabulary, mask_seed=0)
    given = Pass.of(part, first_position=first_position(model)).to(compute_device())
    shape = model_shape(model)
    flops = shape.update_flops(part.rows, supervised_tokens=len(part.labels), causal=False)

    def run() -> None:
        loss = pass_loss(model, given)
        loss.backward()
        loss.item()  # waits for a GPU

    return flops, run


def _other(precision: str) -> str:
    [other] = _DTYPES.keys() - {precision}
    return other


def precision_advice(precision: str, measured: Measured) -> str:
    """Name the other precision if it is clearly faster on this machine."""
    if measured.other_gain < _CLEARLY:
        return ""
    gain = f"{measured.other_gain:.1f} times as fast on this processor"
    return f"precision: {_other(precision)} would be {gain}"


def cost_here(recipe: Recipe, *, start: int, vocab_size: int, compute: ComputeConfig) -> str:
    """Say what training from a step on costs here, from a second of measurement."""
    # Nothing is measured, and the text is empty, for a training of about a minute or less.
    cost = training_cost(recipe, start=start, end=recipe.total_steps, vocab_size=vocab_size)
    if cost.flops is None or cost.flops < _WORTH_MEASURING:
        return ""
    shape = shape_of(recipe, vocab_size=vocab_size)
    speed = measure_speed(recipe.precision, shape.attention_width if shape else 0)
    seconds = cost.flops / (speed.per_second * compute.processes)
    is_gpu = compute_device().type == "cuda"
    memory = least_memory(recipe, vocab_size=vocab_size, compute=compute, is_gpu=is_gpu)
    state = state_bytes(recipe, vocab_size=vocab_size) or 0
    [line] = lines_of(
        "time",
        seconds=seconds,
        length=None,
        per_second=float(f"{cost.tokens / seconds:.2g}"),
        is_known=recipe.architecture is not None,
        memory=memory,
        for_each=" for each process" if compute.processes > 1 else "",
        disk=_COPIES * state,
        advice=precision_advice(recipe.precision, speed),
    )
    return line


if __name__ == "__main__":
    given = sys.argv[1]
    measured = measure_speed(given)
    found = {
        "flops_per_second": measured.per_second,
        "num_jobs": len(local_slots()),
        "advice": precision_advice(given, measured),
    }
    print(json.dumps(found))  # noqa: T201 - read by `estimate.py`
