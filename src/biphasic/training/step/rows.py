"""The rows of every step, from the corpus of its phase."""

from __future__ import annotations

from biphasic.data.rows import BatchShape, RowBatch, RowPlan, RowReader
from biphasic.training.data import TrainingData
from biphasic.training.recipe import Recipe


class StepRows:
    """Reads a recipe's rows: a pure function of data, recipe and step.

    Reading a corpus resumes where it stopped, however many phases with another corpus lie between.
    As in identities, a corpus is identified by its content: a copy in another folder is the same.
    """

    def __init__(self, recipe: Recipe, data: TrainingData) -> None:
        """Prepare one plan per corpus.

        Raises:
            ConfigError: Rows have no room for text.
        """
        self._phases, fingerprint = recipe.placed_phases, data.fingerprint
        self._contents = [fingerprint.hash_of(placed.corpus) for placed in self._phases]
        self._readers: dict[str, RowReader] = {}
        for content, placed in zip(self._contents, self._phases, strict=True):
            if content in self._readers:
                continue
            corpus, shapes = data.corpus_of(placed.corpus), self._shapes_of(content)
            plan = RowPlan(corpus.lengths, shapes, data_seed=recipe.seeds.data_seed)
            self._readers[content] = RowReader(corpus, plan, data.tokenizer.special_ids)

    def batch(self, step: int) -> RowBatch:
        """Return the rows of update `step` of the run."""
        phase = next(placed for placed in self._phases if step < placed.end)
        content = self._contents[phase.index]
        before = sum(shape.num_steps for shape in self._shapes_of(content, end=phase.index))
        return self._readers[content].batch(before + step - phase.start)

    def _shapes_of(self, content: str, *, end: int | None = None) -> list[BatchShape]:
        """Return the shapes of the rows that phases, up to `end`, read from a corpus."""
        pairs = zip(self._contents[:end], self._phases[:end], strict=True)
        return [placed.batches for phase_content, placed in pairs if phase_content == content]
