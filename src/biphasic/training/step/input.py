"""All that an update needs besides the model: made from data alone, so ahead of time if wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from biphasic.data.rows import RowBatch
from biphasic.distributed import ALONE, ProcessGroup
from biphasic.model.shape import ModelShape
from biphasic.objectives.supervision import Supervision, Vocabulary
from biphasic.training.compute import ComputeConfig
from biphasic.training.ledger import step_flops
from biphasic.training.recipe import Recipe
from biphasic.training.step.passes import Pass
from biphasic.training.step.rows import StepRows


@dataclass(frozen=True)
class StepInput:
    """What an update reads, and what is known of it before it is made.

    Attributes:
        batch: The rows of all ranks, for the records.
        sha256: Their hash.
        passes: What the model of this rank reads, in one pass or in several; pinned where the
            device is CUDA. None where chance gave its rows no label.
        num_supervised: Labels of all passes of all ranks.
        flops: Of the whole update, all ranks together.
    """

    batch: RowBatch
    sha256: bytes
    passes: tuple[Pass, ...]
    num_supervised: int
    flops: int


class StepInputs:
    """Reads, masks, hashes and lays out what steps need: a pure function of the step.

    Each rank reads and masks the rows of all, which takes a thousandth of a step, and then takes
    its share of them; so rows, masks and records cannot depend on how many ranks there are.
    """

    def __init__(
        self,
        recipe: Recipe,
        rows: StepRows,
        vocabulary: Vocabulary,
        *,
        shape: ModelShape,
        first_position: int,
        device: torch.device,
        compute: ComputeConfig,
        ranks: ProcessGroup = ALONE,
    ) -> None:
        """Check that passes hold the rows of every phase, and those of held-out text.

        Args:
            recipe: What is trained.
            rows: Its rows.
            vocabulary: What objectives know of the tokenizer.
            shape: Of the model, for its FLOPs.
            first_position: Of a sequence's first token (`model.forward.first_position`).
            device: Where the model computes.
            compute: How many tokens a pass may hold.
            ranks: Who shares the rows.

        Raises:
            ConfigError: A pass cannot hold a row.
        """
        self._recipe, self._rows, self._vocabulary = recipe, rows, vocabulary
        self._shape, self._first_position = shape, first_position
        self._pins, self._compute, self._ranks = device.type == "cuda", compute, ranks
        # Held-out rows are as long as the recipe says, whatever its phases set.
        for length in (
            recipe.max_seqlen,
            *(each.batches.max_seqlen for each in recipe.placed_phases),
        ):
            compute.rows_per_pass(length)

    def of(self, step: int) -> StepInput:
        """Return what update `step` of the run needs.

        Raises:
            DataError: The rows hold nothing to learn from.
        """
        batch = self._rows.batch(step)
        objective = self._recipe.phase_at(step).objective(step)
        parts = objective.supervise(batch, self._vocabulary, mask_seed=self._recipe.seeds.mask_seed)
        rows_per_pass = self._compute.rows_per_pass(batch.packed.row_length)
        passes = (
            Pass.of(each, first_position=self._first_position)
            for part in shares(parts, self._ranks)
            for each in part.split(rows_per_pass)
        )
        return StepInput(
            batch=batch,
            sha256=batch.sha256(),
            passes=tuple(each.pinned() if self._pins else each for each in passes),
            num_supervised=sum(len(part.labels) for part in parts),
            flops=sum(
                step_flops(
                    self._shape,
                    rows=part.rows,
                    supervised_tokens=len(part.labels),
                    causal=part.causal,
                )
                for part in parts
            ),
        )


def shares(parts: Sequence[Supervision], ranks: ProcessGroup) -> Iterator[Supervision]:
    """Return a rank's rows of each part, as far as they have labels.

    Each part is divided by itself: where objectives take unlike time, every rank gets of each.
    """
    if ranks.is_alone:
        yield from parts
        return
    before = 0
    for part in parts:
        start, end = ranks.share(part.rows.num_rows, before=before)
        before += part.rows.num_rows
        if start < end and len((share := part.part(start, end)).labels):
            yield share
