"""Held-out losses, on rows that no arm trains on.

Settings are constants, which makes the numbers of all states comparable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from biphasic.data.rows import BatchShape, RowBatch, RowPlan, RowReader
from biphasic.objectives.clm import Clm
from biphasic.objectives.mlm import Mlm
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.training.data import TrainingData
from biphasic.training.step.passes import Pass, summed_loss

HeldoutObjective = Literal["clm", "mlm"]

HELDOUT_TOKENS = 32_768
"""Nominal size of the sample in tokens, including padding."""
HELDOUT_MLM_PROBABILITY = 0.4
"""The study's main rate (arXiv 2507.00994, section 3)."""
HELDOUT_SEED = 0
"""Seed of rows and masks."""


class HeldoutLoss:
    """A fixed sample of the held-out corpus."""

    def __init__(self, data: TrainingData, *, max_seqlen: int, rows_per_batch: int) -> None:
        """Read the sample: the first rows of the corpus's plan, at most one epoch."""
        corpus = data.heldout
        tokens = min(HELDOUT_TOKENS, corpus.num_tokens)
        num_batches = max(tokens // (max_seqlen * rows_per_batch), 1)
        shape = BatchShape(max_seqlen, rows_per_batch, num_batches)
        plan = RowPlan(corpus.lengths, [shape], data_seed=HELDOUT_SEED)
        reader = RowReader(corpus, plan, data.tokenizer.special_ids)
        self._batches: list[RowBatch] = [reader.batch(step) for step in range(num_batches)]
        self._vocabulary = data.vocabulary

    @torch.no_grad()  # not inference mode: weights gathered in it could not be trained
    def evaluate(
        self,
        model: PreTrainedModel,
        *,
        rows_per_pass: int | None = None,
        objectives: tuple[HeldoutObjective, ...] = ("clm", "mlm"),
        report: Callable[[str], None] | None = None,
        loss: Callable[[Pass], Tensor] | None = None,
    ) -> dict[str, float]:
        """Return the mean loss per supervised token in nats, by objective.

        `rows_per_pass` limits memory; None reads the whole batch at once. `report` receives a short
        text before each batch. `loss` is as in `summed_loss`.
        """
        configs: dict[HeldoutObjective, ObjectiveConfig] = {
            "clm": Clm(objective="clm"),
            "mlm": Mlm(objective="mlm", mlm_probability=HELDOUT_MLM_PROBABILITY),
        }
        losses: dict[str, float] = {}
        for name in objectives:
            total, count = 0.0, 0
            for number, batch in enumerate(self._batches, start=1):
                if report:
                    place = f"batch {number:,} of {len(self._batches):,}"
                    report(f"held-out {name.upper()} loss, {place}")
                (part,) = configs[name].supervise(batch, self._vocabulary, mask_seed=HELDOUT_SEED)
                for supervision in part.split(rows_per_pass):
                    total += float(summed_loss(model, supervision, loss=loss))
                    count += len(supervision.labels)
            losses[name] = total / count
        return losses
