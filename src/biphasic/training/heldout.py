"""Held-out losses: on rows that no arm trains on, and on the pairs that a phase holds out.

Settings are constants, which makes the numbers of all states comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from biphasic.data.pairs import PairReader, chosen_pairs
from biphasic.data.rows import BatchShape, RowBatch, RowPlan, RowReader
from biphasic.errors import ConfigError, DataError
from biphasic.objectives.clm import Clm
from biphasic.objectives.masking import Mlm
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.supervision import Supervision
from biphasic.training import HELDOUT_OBJECTIVES
from biphasic.training.compute import ComputeConfig
from biphasic.training.lineage import TrainingData
from biphasic.training.recipe import Recipe
from biphasic.training.step.input import Pass, summed_loss

Measures = Mapping[str, tuple[ObjectiveConfig, int]]
"""Objectives by the name of their loss, and how often each masks the text."""

HELDOUT_TOKENS = 32_768  # nominal size of the sample in tokens, including padding
HELDOUT_MLM_PROBABILITY = 0.4  # the study's main rate (arXiv 2507.00994, section 3)
HELDOUT_SEED = 0  # seed of rows and masks
# Pairs whose documents compete, whatever a phase's batch; all of them, if there are fewer.
HELDOUT_BATCH = 64
HELDOUT_BATCHES = 16  # at most: 1,024 pairs
FEWEST_PAIRS = 2


def own_measures(recipe: Recipe, *, end: int) -> Measures:
    """Return the measures that objectives add with which a recipe trains before a step."""
    phases = (placed.phase for placed in recipe.placed_phases if placed.start < end)
    parts = (part for phase in phases for turn in phase.turns for _, part in turn.parts)
    return {name: measure for part in parts for name, measure in part.heldout_measures.items()}


class HeldoutLoss:
    """A fixed sample of the held-out corpus."""

    def __init__(self, data: TrainingData, *, max_seqlen: int, rows_per_batch: int) -> None:
        """Read the sample: the first rows of the corpus's plan, in whole batches."""
        # At most `HELDOUT_TOKENS` and about one epoch, but at least one batch. If that has more
        # tokens than the corpus, texts are read again, and MLM masks other tokens of them.
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
        objectives: tuple[str, ...] = HELDOUT_OBJECTIVES,
        own: Measures | None = None,
        report: Callable[[str], None] | None = None,
        loss: Callable[[Pass], Tensor] | None = None,
    ) -> dict[str, float]:
        """Return the mean loss per supervised token in nats, by objective."""
        # `objectives` are of CLM and MLM, and `own` are further measures. That of diffusion is per
        # token of the text: an upper bound, in expectation over masks, on the negative
        # log-likelihood. `rows_per_pass` limits memory; None reads the whole batch at once.
        # `report` receives a text before each batch. `loss` is as in `summed_loss`.
        # One rate for all arms, whatever rate they train with: losses at different rates are not
        # comparable.
        mlm = Mlm(objective="mlm", mlm_probability=HELDOUT_MLM_PROBABILITY)
        usual: Measures = {"clm": (Clm(objective="clm"), 1), "mlm": (mlm, 1)}
        measures = {name: usual[name] for name in objectives}
        measures |= {name: one for name, one in (own or {}).items() if name not in usual}
        losses: dict[str, float] = {}
        for name, (objective, num_draws) in measures.items():
            total, count, num_labels = 0.0, 0.0, 0
            for number, batch in enumerate(self._batches, start=1):
                if report:
                    place = f"batch {number:,} of {len(self._batches):,}"
                    report(f"held-out {name.upper()} loss, {place}")
                for seed in range(HELDOUT_SEED, HELDOUT_SEED + num_draws):
                    for part in objective.supervise(batch, self._vocabulary, mask_seed=seed):
                        for summed in _sums(model, part, rows_per_pass, loss):
                            total += summed
                        # Summed over batches and divided once, as in training: batches have
                        # different numbers of labels.
                        count += part.normaliser
                        num_labels += len(part.labels)
            if not num_labels:
                tokens = sum(batch.packed.num_tokens for batch in self._batches)
                raise DataError(
                    f"the held-out {name.upper()} loss has no label in a sample of {tokens:,} "
                    "tokens; hold out more documents"
                )
            losses[name] = total / count
        return losses


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
            # The loss of a pair grows with the number of documents that compete.
            size = min(HELDOUT_BATCH, count)
            reader = PairReader(
                pairs, data.tokenizer, replace(reading, batch=size), first_place=0,
                max_seqlen=placed.batches.max_seqlen, data_seed=HELDOUT_SEED, split="heldout",
            )  # fmt: skip
            num_batches = min(count // size, HELDOUT_BATCHES)
            batches = map(reader.batch, range(num_batches))
            if reading.margins and not any(len(batch.margins) for batch in batches):
                raise ConfigError(
                    f"phases.{placed.index}.heldout_fraction: no pair of {pairs.folder} that is "
                    "held out has a negative with scores of a teacher; give a larger share"
                )
            self._samples[placed.index] = reader, num_batches

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
        total, count = 0.0, 0.0
        for number in range(num_batches):
            report(f"held-out pairs, batch {number + 1:,} of {num_batches:,}")
            batch = reader.batch(number)
            (part,) = placed.phase.supervise(batch, self._data.vocabulary, mask_seed=HELDOUT_SEED)
            if not len(part.labels):  # no pair of the batch has a margin
                continue
            rows_per_pass = self._compute.rows_per_pass(batch.packed.row_length)
            total += sum(_sums(model, part, rows_per_pass, loss))
            count += part.normaliser
        return {placed.phase.short_name: total / count}


def _sums(
    model: PreTrainedModel,
    whole: Supervision,
    rows_per_pass: int | None,
    loss: Callable[[Pass], Tensor] | None,
) -> Iterator[float]:
    """Yield the summed losses of rows that may be read in several passes."""
    outputs = (summed_loss(model, part, loss=loss) for part in whole.split(rows_per_pass))
    if whole.loss is None or not whole.loss.couples:
        yield from map(float, outputs)
        return
    numbers = np.concatenate([part.labels for part in whole.split(rows_per_pass)])
    # A loss that couples texts expects them by their numbers; passes have them as they were packed.
    vectors = torch.cat([*outputs])[torch.from_numpy(numbers.argsort())]
    yield float(whole.loss.summed(vectors, torch.arange(len(vectors), device=vectors.device)))
