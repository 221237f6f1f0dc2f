"""CPU time of our pretraining step against an expert's lean loop, alternating in one process.

The loop is what somebody who knows torch and transformers writes: the plain transformers model with
its own sdpa attention, the same packed rows and labels, a block mask, logits at labelled positions
only, clipping, fused AdamW; in bf16 under autocast. It runs in the callback after each of our
steps, so that both sides meet the same processor, memory and neighbours, and it profits from our
allocator's settings. Reported are the medians over steps of CPU seconds and of their ratio.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from harness import command_line, measured, write_records
from pretrain import trainer_model
from setup_pretraining import (
    MODELS,
    OBJECTIVES,
    PRECISIONS,
    Setting,
    prepare,
    print_numbers,
    train_until,
)
from torch.nn import functional

from biphasic.training.memory import tune_allocator
from biphasic.training.optimizers.adamw import AdamW
from biphasic.training.step.input import StepRows

VOCABULARY = 8_192
WARMUP_STEPS = 3


class LeanLoop:
    """A plain training loop over given rows."""

    def __init__(self, setting: Setting) -> None:
        """Build model and optimizer."""
        self._setting = setting
        self._data = setting.training_data()
        self._rows = StepRows(setting.recipe, self._data)
        self.model = trainer_model(setting, self._data)
        adamw = AdamW(name="adamw")
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        vectors = [p for p in self.model.parameters() if p.ndim <= 1]
        self._optimizer = torch.optim.AdamW(
            [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
            lr=1e-3, betas=(adamw.beta1, adamw.beta2), eps=adamw.epsilon,
            weight_decay=adamw.weight_decay, fused=True,
        )  # fmt: skip

    def step(self, number: int) -> None:
        """Do one update."""
        loss = self.loss(number)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        loss.item()

    def loss(self, number: int) -> torch.Tensor:
        """Return the mean loss of a step's labels."""
        recipe = self._setting.recipe
        batch = self._rows.batch(number)
        (part,) = recipe.phases[0].supervise(
            batch, self._data.vocabulary, mask_seed=recipe.seeds.mask_seed
        )
        rows = part.rows
        input_ids = torch.from_numpy(rows.input_ids)
        starts = torch.zeros(input_ids.numel(), dtype=torch.int32)
        starts[torch.from_numpy(rows.cu_seqlens)[:-1].long()] = 1
        segments = starts.cumsum(0).view(input_ids.shape)
        mask = segments[:, None, :, None] == segments[:, None, None, :]
        if part.causal:
            mask = mask.tril()
        with torch.autocast("cpu", torch.bfloat16, enabled=self._setting.precision == "bf16"):
            states = self.model.model(
                input_ids=input_ids,
                attention_mask=mask,
                position_ids=torch.from_numpy(rows.position_ids),
                use_cache=False,
            ).last_hidden_state
            logits = self.model.lm_head(states.flatten(0, 1)[torch.from_numpy(part.positions)])
        return functional.cross_entropy(logits.float(), torch.from_numpy(part.labels))


def measure(setting: Setting, steps: int) -> dict[str, float]:
    """Alternate both sides in this process."""
    tune_allocator()
    lean = LeanLoop(setting)
    ours: list[float] = []
    theirs: list[float] = []
    began = time.process_time()

    def has_enough(report: Any) -> bool:
        nonlocal began
        now = time.process_time()
        ours.append(now - began)
        lean.step(report.step)
        began = time.process_time()
        theirs.append(began - now)
        return len(ours) >= steps + WARMUP_STEPS

    train_until(setting, has_enough)
    ours, theirs = ours[WARMUP_STEPS:], theirs[WARMUP_STEPS:]
    ratios = [lean / own for lean, own in zip(theirs, ours, strict=True)]
    return {
        "our_cpu_seconds": statistics.median(ours),
        "lean_cpu_seconds": statistics.median(theirs),
        "ours_over_lean": statistics.median(ratios),
    }


def main() -> None:
    """Read the command line and run."""
    parser = command_line(__doc__, "lean_loop")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["nano", "micro", "25m"])
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=["clm", "mlm40"])
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=["fp32", "bf16"])
    parser.add_argument("--optimizer", choices=["adamw", "muon"], default="adamw", help="ours")
    parser.add_argument("--rows", type=int, default=8, help="of 256 tokens in a step")
    parser.add_argument("--steps", type=int, default=12, help="that are measured")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print_numbers(measure(Setting.parse(options.measure), options.steps))
        return
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as data:
        prepare(Path(data), [VOCABULARY])
        for precision in options.precisions:
            for model in options.models:
                for objective in options.objectives:
                    setting = Setting(
                        data, model, VOCABULARY, objective, precision, seconds=0,
                        rows_per_step=options.rows, optimizer=options.optimizer,
                    )  # fmt: skip
                    call = [__file__, "--steps", str(options.steps), "--measure", setting.dump()]
                    numbers = measured(call, threads=1)[0]
                    records.append({**setting.described(), **numbers})
                    ours, lean = numbers["our_cpu_seconds"], numbers["lean_cpu_seconds"]
                    print(
                        f"{precision} {model:6} {objective:6} ours {ours:.3f}, lean {lean:.3f} "
                        f"CPU s a step: {numbers['ours_over_lean']:.2f} times as fast",
                        flush=True,
                    )
    write_records(options.json, records)


if __name__ == "__main__":
    main()
