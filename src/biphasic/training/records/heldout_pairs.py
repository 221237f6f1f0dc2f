"""Held-out losses of phases that train on pairs, on the pairs of queries that they hold out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from biphasic.data.pairs.rows import PairReader, chosen_pairs
from biphasic.errors import ConfigError
from biphasic.model.compute.forward import first_position
from biphasic.objectives.supervision import Supervision
from biphasic.training.compute import ComputeConfig
from biphasic.training.data import TrainingData
from biphasic.training.recipe import Recipe
from biphasic.training.step.passes import Pass, pass_loss

HELDOUT_BATCH = 64
"""Pairs whose documents compete, whatever a phase's batch; all of them, if there are fewer."""
HELDOUT_BATCHES = 16
"""Batches, at most: 1,024 pairs."""
FEWEST_PAIRS = 2
HELDOUT_SEED = 0


class HeldoutPairs:
    """A fixed sample of the held-out pairs of each phase."""

    def __init__(self, recipe: Recipe, data: TrainingData, compute: ComputeConfig) -> None:
        """Check that each phase that holds out pairs has some."""
        self._recipe, self._data, self._compute = recipe, data, compute
        # By phase: the reader of its held-out pairs, and the number of batches.
        self._samples: dict[int, tuple[PairReader, int]] = {}
        for placed in recipe.placed_phases:
            reading = placed.phase.reading
            if reading is None or not reading.heldout_fraction:
                continue
            pairs = data.pairs[reading.folder]
            count = len(chosen_pairs(pairs, reading.heldout_fraction, "heldout"))
            if count < FEWEST_PAIRS:
                raise ConfigError(
                    f"phases.{placed.index}.heldout_fraction: {reading.heldout_fraction:g} holds "
                    f"out {count} of the {len(pairs):,} pairs of {pairs.folder}; give a larger "
                    "share"
                )
            batch = min(HELDOUT_BATCH, count)
            reader = PairReader(
                pairs, data.tokenizer, replace(reading, batch=batch), first_place=0,
                max_seqlen=placed.batches.max_seqlen, data_seed=HELDOUT_SEED, split="heldout",
            )  # fmt: skip
            self._samples[placed.index] = reader, min(count // batch, HELDOUT_BATCHES)

    @torch.no_grad()
    def evaluate(
        self,
        model: PreTrainedModel,
        *,
        step: int,
        report: Callable[[str], None],
        loss: Callable[[Pass], Tensor] | None,
    ) -> dict[str, float]:
        """Return the mean loss of the phase of the last update, by its objective; empty if none.

        `report` and `loss` are as in `HeldoutLoss.evaluate`.
        """
        if not step:
            return {}
        placed = self._recipe.phase_at(step - 1)
        if placed.index not in self._samples:
            return {}
        reader, num_batches = self._samples[placed.index]
        compute = loss or partial(pass_loss, model)
        total, count = 0.0, 0.0
        for number in range(num_batches):
            report(f"held-out pairs, batch {number + 1:,} of {num_batches:,}")
            batch = reader.batch(number)
            (part,) = placed.phase.supervise(batch, self._data.vocabulary, mask_seed=HELDOUT_SEED)
            rows_per_pass = self._compute.rows_per_pass(batch.packed.row_length)
            total += float(_summed(model, part, compute, rows_per_pass))
            count += part.normaliser
        return {placed.phase.short_name: total / count}


def _summed(
    model: PreTrainedModel,
    whole: Supervision,
    compute: Callable[[Pass], Tensor],
    rows_per_pass: int | None,
) -> Tensor:
    """Return the summed loss of pairs that are read in several passes."""
    passes = [
        Pass.of(part, first_position=first_position(model)).to(model.device)
        for part in whole.split(rows_per_pass)
    ]
    outputs = [compute(given) for given in passes]
    loss = whole.loss
    assert loss is not None  # noqa: S101 - objectives on pairs have one
    if not loss.couples:
        return torch.stack(outputs).sum()
    numbers = torch.cat([given.labels for given in passes])
    vectors = torch.cat(outputs)[numbers.argsort()]
    return loss.summed(vectors, numbers.sort().values)
