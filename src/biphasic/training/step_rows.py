"""The rows of every step, whichever corpus its phase reads."""

from __future__ import annotations

from pathlib import Path

from biphasic.data.rows import RowBatch, RowPlan, RowReader
from biphasic.training.data import TrainingData
from biphasic.training.recipe import Recipe


class StepRows:
    """Reads a recipe's rows: a pure function of data, recipe and step.

    Each corpus is read on where it was left, however many phases with another lie between.
    """

    def __init__(self, recipe: Recipe, data: TrainingData) -> None:
        """Prepare one plan per corpus.

        Raises:
            ConfigError: Rows leave no room for text.
        """
        self._phases = recipe.placed_phases
        self._readers: dict[Path | None, RowReader] = {}
        for folder in {placed.corpus for placed in self._phases}:
            corpus = data.corpus_of(folder)
            legs = recipe.legs_of(folder)
            plan = RowPlan(corpus.lengths, legs, data_seed=recipe.seeds.data_seed)
            self._readers[folder] = RowReader(corpus, plan, data.tokenizer.special_ids)

    def batch(self, step: int) -> RowBatch:
        """Return what update `step` of the run reads."""
        phase = next(placed for placed in self._phases if step < placed.end)
        before = sum(
            placed.phase.steps
            for placed in self._phases[: phase.index]
            if placed.corpus == phase.corpus
        )
        return self._readers[phase.corpus].batch(before + step - phase.start)
