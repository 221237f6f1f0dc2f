"""Content of tables like those in the paper's Appendix C, independent of markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal

from biphasic.amounts import percent
from biphasic.analysis.figures.chart import interval_note, sizes
from biphasic.analysis.scores.reference import ReferenceValues, reference_values
from biphasic.analysis.scores.source import PAPER_SOURCE
from biphasic.analysis.scores.table import AT_END, DatasetInfo, ModelInfo, Scores, grouped
from biphasic.analysis.statistics.compare import indistinguishable
from biphasic.analysis.statistics.doubts import doubt_notes
from biphasic.analysis.text import flat, score_text
from biphasic.analysis.words import words

Mark = Literal["best", "level"]
_LEVEL = "≈"
_PROVISIONAL = "†"
_PAPER_GROUPS = {
    "base": "Base models",
    "data_efficiency": "On the way to 40,000 steps, before decay",
    "pfs": "CLM, then MLM, within a budget",
    "cpt": "Continued pretraining",
}


@dataclass(frozen=True)
class Sheet:
    """One table: models by datasets."""

    scores: Scores
    name: str  # unique among tables; letters, digits and hyphens
    title: str
    notes: tuple[str, ...]
    datasets: tuple[DatasetInfo, ...]  # one column each
    blocks: Sequence[tuple[ModelInfo, ...]]  # groups of models that are compared with each other
    # Whether a score is the best of its block and column, or not clearly below the best.
    marks: Mapping[tuple[str, str], Mark]
    reference: ReferenceValues  # another table's values

    @property
    def columns(self) -> tuple[str, ...]:
        """Headings: the model, then datasets, with metrics if they differ."""
        is_one = len({dataset.metric for dataset in self.datasets}) == 1
        names = ("Average" if dataset.is_average else dataset.name for dataset in self.datasets)
        metrics = ("" if is_one else f", {d.metric_facts.title}" for d in self.datasets)
        return ("Model", *map("".join, zip(names, metrics, strict=True)))

    def text(self, model: str, dataset: str, escape: Callable[[str], str], bold: str) -> str:
        """Write a score with its signs: level with the best, provisional, the paper's value."""
        key = model, dataset
        score, mark, reference = self.scores.get(*key), self.marks.get(key), self.reference.get(key)
        text = escape(score_text(score.estimate))
        signs = [
            *([_LEVEL] if mark == "level" else []),
            *([_PROVISIONAL] if not score.is_complete else []),
            *([AT_END] if score.is_at_end else []),
            *([f"[paper: {score_text(reference)}]"] if reference else []),
        ]
        return " ".join([bold.format(text) if mark == "best" else text, *map(escape, signs)])


def make_sheets(scores: Scores, *, reference: Scores | None = None) -> list[Sheet]:
    """Make a table for each group of models and category of tasks."""
    # Recipes of several pretraining runs are in one table for each category. Values of a reference
    # are shown beside the same cells.
    values = reference_values(scores, reference) if reference is not None else {}
    groups: list[str | None] = [*dict.fromkeys(model.group for model in scores.models)]
    if scores.runs is not None:
        groups = [None]
    tasks = [*dict.fromkeys(dataset.task for dataset in scores.datasets)]
    sheets = [_sheet(scores, group, task, values) for group in groups for task in tasks]
    seen: Counter[str] = Counter()
    for index, sheet in enumerate(sheets):
        seen[sheet.name] += 1
        if seen[sheet.name] > 1:
            sheets[index] = replace(sheet, name=f"{sheet.name}-{seen[sheet.name]}")
    return sheets


def marks(scores: Scores, dataset: DatasetInfo, models: Sequence[ModelInfo]) -> dict[str, Mark]:
    """Mark the best of some models on a dataset, and those not clearly below it."""
    # Models that share the highest mean are all best. Nothing is marked if fewer than two have a
    # score, or all are equal.
    names = {model.name for model in models}
    means = {name: mean for name, mean in scores.means(dataset.name).items() if name in names}
    if len(set(means.values())) < 2:
        return {}
    level = indistinguishable(scores, dataset.name, models=[*means])
    by_model: dict[str, Mark] = dict.fromkeys(level, "level")
    highest = max(means.values())
    by_model.update({name: "best" for name, mean in means.items() if mean == highest})
    return by_model


def _sheet(scores: Scores, group: str | None, task: str, values: ReferenceValues) -> Sheet:
    """Make the table of a group, or of all models."""
    models = tuple(model for model in scores.models if group in {None, model.group})
    group = group or ""
    datasets = tuple(dataset for dataset in scores.datasets if dataset.task == task)
    is_paper = scores.source == PAPER_SOURCE
    blocks = _blocks(models)
    marked: dict[tuple[str, str], Mark] = {
        (name, dataset.name): mark
        for block in blocks
        for dataset in datasets
        for name, mark in marks(scores, dataset, block).items()
    }
    category = datasets[0].facts.title
    heading = _PAPER_GROUPS.get(group, group) if is_paper else flat(group)
    title = f"{heading or flat(scores.source)}: {category}"
    if len({dataset.metric for dataset in datasets}) == 1:
        title += f", {datasets[0].metric_facts.title}"
    notes = tuple(_notes(scores, models, datasets, values, num_blocks=len(blocks)))
    baselines = tuple(
        model
        for model in scores.baselines
        if any(scores.get(model.name, dataset.name).estimate for dataset in datasets)
    )
    if baselines:
        blocks.append(baselines)
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in f"{group}-{task}".lower())
    name = "-".join(filter(None, name[:80].split("-"))) or "table"
    return Sheet(scores, name, title, notes, datasets, blocks, marked, values)


def _blocks(models: Sequence[ModelInfo]) -> list[tuple[ModelInfo, ...]]:
    """Split models into comparable blocks: of one size, after equally many steps."""
    # If a model would be alone, split by size only, or not at all. Untrained models of a split
    # table come first and are compared only with each other.
    trained = [model for model in models if model.total_steps]
    for factors in (("size", "total_steps"), ("size",)):
        blocks = grouped(trained, attrgetter(*factors))
        if len(blocks) > 1 and all(len(block) > 1 for block in blocks.values()):
            untrained = tuple(model for model in models if not model.total_steps)
            return [*([untrained] if untrained else []), *map(tuple, blocks.values())]
    return [tuple(models)]


def _constants(models: Sequence[ModelInfo]) -> list[str]:
    """Return what all models have in common: size, masking rate, steps."""
    shared = []
    if len(sizes(models)) == 1 and models[0].size:
        shared.append(flat(models[0].size))
    rates = {model.mask_rate for model in models if model.mask_rate is not None}
    if len(rates) == 1:
        shared.append(f"{percent(rates.pop())} of tokens masked in MLM")
    if len({model.total_steps for model in models}) == 1:
        shared.append(f"{models[0].total_steps:,} steps")
    return shared


def _notes(
    scores: Scores,
    models: Sequence[ModelInfo],
    datasets: Sequence[DatasetInfo],
    values: ReferenceValues,
    *,
    num_blocks: int,
) -> list[str]:
    keys = [(model.name, dataset.name) for model in models for dataset in datasets]
    is_incomplete = any(not scores.get(*key).is_complete for key in keys)
    has_paper, intervals = any(key in values for key in keys), interval_note(scores)
    notes = words().sheet(
        scores, _constants(models), num_blocks, is_incomplete, has_paper, PAPER_SOURCE, intervals
    )
    return [*notes.splitlines(), *doubt_notes(scores, models=models, datasets=datasets)]
