"""Scores of models on datasets with the factors that the models differ in, whatever their source.

Tables, figures, claims and the report read this, be it made of a study's records, of other
people's results, or of the reference study's published table. All scores are percent points.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from biphasic.analysis.estimate import Estimate, estimate
from biphasic.analysis.scores.examples import CellInfluences, ExampleReader
from biphasic.analysis.scores.selection import GridScore, best_per_seed, best_rate
from biphasic.errors import DataError
from biphasic.records import Convention

PERCENT = 100.0
UNTRAINED = "none"
"""The objective of an encoder with random weights."""


@dataclass(frozen=True)
class ModelInfo:
    """One model and the factors that tell it from others.

    Attributes:
        name: Unique in its table.
        label: For people.
        size: Such as `210M` or `nano`; empty where unknown.
        parameters: Number of parameters without a language-model head, nominal in the paper's
            table; None where unknown.
        objective: `CLM`, `MLM`, `CLM+MLM`, another family of objectives, or `none`.
        mask_rate: Share of tokens that were masked, in the last phase that masked; None without.
        clm_steps: Optimizer steps of CLM, continued training included.
        mlm_steps: Optimizer steps of MLM, continued training included.
        total_steps: All optimizer steps.
        start: Objective or name of the finished model that continued training began with.
        continued_steps: Steps of continued training; 0 of all others, and of the model that a
            comparison of continued training begins with.
        is_final: False of a state on the way.
        flops: Of pretraining; None where unknown.
        group: Heading: `base`, `data_efficiency`, `pfs` or `cpt` in the paper's table, the arm's
            group in a study.
        identity: Equal of models that are one and the same under several names.
        replicate_of: Equal of models that differ in their pretraining seeds alone; empty where
            that is not known.
        pretraining_seeds: Of initial weights, order of rows and masks; empty where not known.
    """

    name: str
    label: str
    size: str = ""
    parameters: int | None = None
    objective: str = ""
    mask_rate: float | None = None
    clm_steps: int = 0
    mlm_steps: int = 0
    total_steps: int = 0
    start: str | None = None
    continued_steps: int = 0
    is_final: bool = True
    flops: float | None = None
    group: str = ""
    identity: str = ""
    replicate_of: str = ""
    pretraining_seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class DatasetInfo:
    """A dataset, or the average over all datasets of one task category.

    Attributes:
        name: Unique in its table.
        task: Category, in capitals: `SC`, `TC`, `QA`, `IR`, `SR`, `ZS`.
        metric: What scores are.
        is_average: Whether it stands for all datasets of its category.
        trained_on: Set that models were fine-tuned on, where it is another one.
    """

    name: str
    task: str
    metric: str
    is_average: bool = False
    trained_on: str = ""


@dataclass(frozen=True)
class Score:
    """One model on one dataset.

    Attributes:
        estimate: Mean and interval in percent points; None where no run has a score.
        by_seed: Test score of the run selected for each seed, in percent points; None where only
            means are known.
        is_complete: False while runs that might change it are missing.
        at_one_rate: Test score of each seed at the one learning rate whose mean validation score
            is best, in percent points; None where that is not known.
        one_rate: That rate.
        num_rates: Learning rates that were tried; None where that is not known.
    """

    estimate: Estimate | None
    by_seed: Mapping[int, float] | None = None
    is_complete: bool = True
    at_one_rate: Mapping[int, float] | None = None
    one_rate: float | None = None
    num_rates: int | None = None


@dataclass(frozen=True)
class Scores:
    """Models, datasets and their scores.

    Attributes:
        source: Where the scores come from, for people.
        convention: How intervals were computed.
        models: In order.
        datasets: In order; the average of a category stands after its datasets.
        cells: Scores by names of model and dataset; what is absent is unknown.
        num_pretraining_runs: Pretraining runs behind each model, at least; replicates are models
            of their own, unless `over_pretraining` has put them together.
        examples: Reads scores of single test examples; None where there are none to read.
        influences: Cells whose examples have been read already; see `example_compare.py`.
    """

    source: str
    convention: Convention
    models: tuple[ModelInfo, ...]
    datasets: tuple[DatasetInfo, ...]
    cells: Mapping[tuple[str, str], Score]
    num_pretraining_runs: int = 1
    examples: ExampleReader | None = field(default=None, compare=False)
    influences: dict[tuple[str, str], CellInfluences | DataError] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @cached_property
    def is_published(self) -> bool:
        """Tell whether only means and half-widths are known, as of a published table."""
        return all(score.by_seed is None for score in self.cells.values())

    @cached_property
    def _by_name(self) -> dict[str, ModelInfo]:
        return {model.name: model for model in self.models}

    def model(self, name: str) -> ModelInfo:
        """Return the model of a name.

        Raises:
            DataError: There is none.
        """
        if name not in self._by_name:
            raise DataError(f"{self.source}: no model '{name}'; known: {', '.join(self._by_name)}")
        return self._by_name[name]

    def select(self, **factors: Any) -> tuple[ModelInfo, ...]:
        """Return the models whose fields have the given values, in order.

        Args:
            factors: Fields of `ModelInfo`; a value may also be a set of allowed ones.

        Raises:
            DataError: There is no such field.
        """
        known = {field.name for field in dataclasses.fields(ModelInfo)}
        if unknown := sorted(set(factors) - known):
            raise DataError(
                f"no factor '{unknown[0]}' of a model; known: {', '.join(sorted(known))}"
            )
        return tuple(
            model
            for model in self.models
            if all(_fits(getattr(model, name), value) for name, value in factors.items())
        )

    def get(self, model: str, dataset: str) -> Score | None:
        """Return one score; None where it is unknown."""
        return self.cells.get((model, dataset))

    @cached_property
    def distinct(self) -> tuple[ModelInfo, ...]:
        """The models, each once, under the first of its names."""
        first: dict[str, ModelInfo] = {}
        for model in self.models:
            first.setdefault(model.identity or model.name, model)
        return tuple(first.values())

    @cached_property
    def replicates(self) -> tuple[tuple[ModelInfo, ...], ...]:
        """Models that differ in their pretraining seeds alone, two or more together."""
        groups: dict[str, list[ModelInfo]] = defaultdict(list)
        for model in self.distinct:
            if model.replicate_of:
                groups[model.replicate_of].append(model)
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)

    def dataset(self, name: str) -> DatasetInfo:
        """Return the dataset or average of a name.

        Raises:
            DataError: There is none.
        """
        for dataset in self.datasets:
            if dataset.name == name:
                return dataset
        known = ", ".join(dataset.name for dataset in self.datasets)
        raise DataError(f"{self.source}: no dataset '{name}'; known: {known}")

    def members(self, dataset: DatasetInfo) -> tuple[DatasetInfo, ...]:
        """Return the datasets that an average is over; of a dataset itself alone."""
        if not dataset.is_average:
            return (dataset,)
        return tuple(d for d in self.datasets if d.task == dataset.task and not d.is_average)

    @property
    def averages(self) -> tuple[DatasetInfo, ...]:
        """The averages over categories."""
        return tuple(dataset for dataset in self.datasets if dataset.is_average)


def score_of_grid(
    runs: Sequence[GridScore[Any]], *, convention: Convention, is_complete: bool
) -> Score:
    """Return the score of a model on a dataset from its grid of learning rates and seeds.

    Args:
        runs: Those that have scores, as shares.
        convention: How the interval is computed.
        is_complete: Whether no run is missing that might change it.
    """
    chosen, at_one = best_per_seed(runs), best_rate(runs)
    return Score(
        estimate=in_percent(estimate([run.test for run in chosen], convention=convention)),
        by_seed={run.seed: PERCENT * run.test for run in chosen},
        is_complete=is_complete,
        at_one_rate={run.seed: PERCENT * run.test for run in at_one} or None,
        one_rate=at_one[0].rate if at_one else None,
        num_rates=len({run.rate for run in runs}) or None,
    )


def in_percent(found: Estimate | None) -> Estimate | None:
    """Return an estimate of shares in percent points."""
    if found is None:
        return None
    half_width = None if found.half_width is None else PERCENT * found.half_width
    return Estimate(PERCENT * found.mean, half_width, found.num_seeds)


def with_averages(scores: Scores) -> Scores:
    """Add the average over each category of more than one dataset.

    Each seed is averaged over the datasets first, so the interval knows that one seed's scores go
    together. A seed that lacks a score on one dataset is left out; a model that lacks a dataset has
    no average, since an average over fewer datasets is of something else.
    """
    categories: dict[str, list[DatasetInfo]] = defaultdict(list)
    for dataset in scores.datasets:
        if not dataset.is_average:
            categories[dataset.task].append(dataset)
    datasets: list[DatasetInfo] = []
    cells = dict(scores.cells)
    for task, members in categories.items():
        datasets += members
        if len(members) < 2:
            continue
        metrics = {member.metric for member in members}
        average = DatasetInfo(
            average_name(task), task, metrics.pop() if len(metrics) == 1 else "mixed", True
        )
        datasets.append(average)
        for model in scores.models:
            parts = [scores.get(model.name, member.name) for member in members]
            if found := _average(parts, convention=scores.convention):
                cells[model.name, average.name] = found
    return dataclasses.replace(scores, datasets=tuple(datasets), cells=cells)


def at_one_rate(scores: Scores) -> Scores:
    """Return scores of one learning rate for all seeds, in place of the best rate of each seed.

    Scores of which that is not known are left out. Single examples are left out as well: they are
    those of the best rates.
    """
    cells = {}
    for key, score in scores.cells.items():
        if score.at_one_rate is not None:
            by_seed = dict(score.at_one_rate)
            found = estimate([*by_seed.values()], convention=scores.convention)
            cells[key] = dataclasses.replace(
                score, estimate=found, by_seed=by_seed, num_rates=score.num_rates and 1
            )
    return dataclasses.replace(scores, cells=cells, examples=None)


def average_name(task: str) -> str:
    """Return what the average over a category is called."""
    return f"{task} Average"


def average_by_seed(parts: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Average each seed over datasets; a seed that lacks one of them is left out."""
    common = set.intersection(*(set(part) for part in parts)) if parts else set()
    return {seed: sum(part[seed] for part in parts) / len(parts) for seed in sorted(common)}


def _average(parts: Sequence[Score | None], *, convention: Convention) -> Score | None:
    by_dataset = [part.by_seed for part in parts if part is not None and part.by_seed is not None]
    if len(by_dataset) < len(parts):
        return None
    by_seed = average_by_seed(by_dataset)
    one_rate = [part.at_one_rate for part in parts if part is not None and part.at_one_rate]
    seeds = {seed for found in by_dataset for seed in found}
    return Score(
        estimate=estimate([*by_seed.values()], convention=convention),
        by_seed=by_seed,
        is_complete=all(part.is_complete for part in parts if part) and set(by_seed) == seeds,
        at_one_rate=average_by_seed(one_rate) if len(one_rate) == len(parts) else None,
        num_rates=max((part.num_rates or 0 for part in parts if part), default=0) or None,
    )


def _fits(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, set | frozenset) else value == wanted
