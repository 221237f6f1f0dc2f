"""Scores of models on datasets, with the factors that distinguish the models, from any source.

Tables, figures, claims and the report use this table. It may come from a study's records, from
other tools, or from the reference study's published table. All scores are in percentage points.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from statistics import fmean, stdev
from typing import Any, TypeVar

from biphasic.analysis.estimate import (
    Estimate,
    GridScore,
    best_per_seed,
    best_rate,
    chosen_ends,
    estimate,
    over_seeds,
)
from biphasic.analysis.scores.examples import CellInfluences, ExampleReader
from biphasic.analysis.text import short_names
from biphasic.errors import DataError
from biphasic.facts import KindFacts, MetricFacts, facts_of
from biphasic.records import Convention

Key = TypeVar("Key", bound=Hashable)
PERCENT = 100.0
# Rates are written in decimals, so ten times 1e-5 may be slightly below 1e-4.
_DECADE = 10 * (1 + 1e-9)
UNTRAINED = "none"  # the objective of an encoder that the study does not train


@dataclass(frozen=True)
class ModelInfo:
    """One model and the factors that distinguish it."""

    name: str  # unique in its table
    label: str
    size: str = ""  # such as `210M` or `nano`; empty if unknown
    # Number of parameters without a language-model head, nominal in the paper's table; None if
    # unknown.
    parameters: int | None = None
    objective: str = ""  # `CLM`, `MLM`, `CLM+MLM`, another family of objectives, or `none`
    # Share of masked tokens in the last phase with masking; None without.
    mask_rate: float | None = None
    clm_steps: int = 0  # optimizer steps of CLM, including continued training
    mlm_steps: int = 0  # optimizer steps of MLM, including continued training
    total_steps: int = 0
    # Objective or name of the finished model that continued training started from.
    start: str | None = None
    # Steps of continued training; 0 for all others, including the start model of a comparison of
    # continued training.
    continued_steps: int = 0
    is_final: bool = True  # False for intermediate states
    is_finished_encoder: bool = False  # compared as it is; it has no pretraining seeds here
    flops: float | None = None  # FLOPs of pretraining; None if unknown
    labels: int | None = None  # tokens that pretraining predicted; None if unknown
    optimizer: str = ""  # its name in study files; empty if unknown
    attention: str = ""  # in fine-tuning and scoring, if its arm sets it
    # Heading: `base`, `data_efficiency`, `pfs` or `cpt` in the paper's table, the arm's group in a
    # study.
    group: str = ""
    identity: str = ""  # equal for one model under several names
    # Equal for models that differ only in their pretraining seeds; empty if unknown.
    replicate_of: str = ""
    # Seeds of initial weights, order of rows and masks; empty if unknown.
    pretraining_seeds: tuple[int, ...] = ()

    @property
    def is_untrained(self) -> bool:
        """Whether its weights are random; a pretrained model as it is has a start."""
        return self.objective == UNTRAINED and not self.start


@dataclass(frozen=True)
class DatasetInfo:
    """A dataset, or the average over all datasets of one task category."""

    name: str  # unique in its table
    task: str  # category, in capitals: `SC`, `TC`, `QA`, `IR`, `SR`, `ZS`
    metric: str
    is_average: bool = False
    trained_on: str = ""  # dataset that models were fine-tuned on, if it is another one
    num_train: int = 0  # training examples that a run reads; 0 if unknown
    data: str = ""  # hash of its examples, which several datasets may share; empty if unknown
    about: KindFacts | None = None  # facts about its kind of task; None for the first kinds
    example: str = "test example"  # what is scored one by one

    @property
    def is_zero_shot(self) -> bool:
        """Whether models are scored without fine-tuning, so nothing is random."""
        return not self.facts.is_trained

    @property
    def facts(self) -> KindFacts:
        """Facts about its kind of task."""
        return facts_of(self.task, self.about)

    @property
    def metric_facts(self) -> MetricFacts:
        """Facts about its metric."""
        return self.facts.metric(self.metric)


@dataclass(frozen=True)
class Score:
    """One model on one dataset."""

    estimate: Estimate | None  # mean and interval in percentage points; None if no run has a score
    # Test score of the selected run of each seed, in percentage points; None if only means are
    # known.
    by_seed: Mapping[int, float] | None = None
    is_complete: bool = True  # False while runs that might change it are missing
    is_at_end: bool = False  # whether a seed chose an end of the rates tried: provisional
    # Test score of each seed at the single learning rate with the best mean validation score, in
    # percentage points; None if unknown.
    at_one_rate: Mapping[int, float] | None = None
    one_rate: float | None = None  # that rate
    is_one_rate_at_end: bool = False  # whether that is an end of the rates tried
    num_rates: int | None = None  # number of learning rates tried; None if unknown
    # Standard deviation of each seed's test scores over the learning rates, from the lowest to ten
    # times the lowest, in percentage points; None if unknown.
    rate_spread: Mapping[int, float] | None = None
    # Test scores over seeds at each learning rate, in percentage points.
    by_rate: Mapping[float, Sequence[float]] = field(default_factory=dict)
    runs: Sequence[GridScore[Any]] = ()  # those with scores, as shares

    @property
    def num_seeds(self) -> int:
        """Number of seeds, or of pretraining runs."""
        return len(self.by_seed or ()) or (self.estimate.num_seeds if self.estimate else 0)


_UNKNOWN = Score(None)
AT_END = "‡"
END_NOTE = (
    f"{AT_END}: provisional: validation chooses the lowest or highest learning rate tried, so a "
    "wider grid of rates might give another score (finetuning.extend)."
)


@dataclass(frozen=True)
class Planned:
    """A comparison that the study named before its results, on some datasets."""

    # A side is a model, or all pretraining runs of a recipe; `minus` are two sides whose difference
    # is subtracted. Those of a question are corrected together; those of `compare` name none.

    first: tuple[str, ...]
    second: tuple[str, ...]
    datasets: tuple[str, ...]
    minus: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    question: str = ""


@dataclass(frozen=True)
class Scores:
    """Models, datasets and their scores."""

    source: str  # display name of the source
    convention: Convention
    models: tuple[ModelInfo, ...]
    # Datasets in order; the average of a category comes after its datasets.
    datasets: tuple[DatasetInfo, ...]
    # Scores by names of model and dataset; absent ones are unknown.
    cells: Mapping[tuple[str, str], Score]
    # Minimum number of pretraining runs per model; replicates are separate models, unless
    # `over_pretraining` has combined them.
    num_pretraining_runs: int = 1
    # What pretraining runs of a recipe have in common, such as `masks`.
    fixed_streams: tuple[str, ...] = ()
    # Whether pretraining runs are fine-tuned with the same seeds.
    shares_finetuning_seeds: bool = False
    # Scores of the single models, if `over_pretraining` has combined them.
    runs: Scores | None = field(default=None, compare=False, repr=False)
    # Reads per-example test scores; None if there are none.
    examples: ExampleReader | None = field(default=None, compare=False)
    # Comparisons named beforehand, which are corrected among themselves, those of each question
    # apart.
    planned: tuple[Planned, ...] = ()
    # Whether only scores of examples are known, and nothing of seeds, as in other tools' results.
    is_by_example: bool = False
    # Floors and references, which no family of all pairs includes.
    baselines: tuple[ModelInfo, ...] = ()
    baseline_cells: Mapping[tuple[str, str], Score] = field(default_factory=dict)
    influences: dict[tuple[str, str], CellInfluences | DataError] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )  # cache of examples already read; see `statistics/crossed.py`

    # Tests of arms against floors by dataset; see `doubts.py`.
    floor_tests: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def unit(self) -> str:
        """What intervals are over: `pretraining run`, `seed` (of fine-tuning), or `example`."""
        if self.is_by_example:
            return "example"
        return "pretraining run" if self.is_replicated else "seed"

    @property
    def is_replicated(self) -> bool:
        """Whether every model was pretrained more than once."""
        return self.num_pretraining_runs > 1

    @property
    def is_finetuned(self) -> bool:
        """Whether models are fine-tuned for any dataset."""
        return not all(dataset.is_zero_shot for dataset in self.datasets)

    @cached_property
    def is_published(self) -> bool:
        """Return whether only means and half-widths are known, as in a published table."""
        return all(score.by_seed is None for score in self.cells.values())

    @cached_property
    def labels(self) -> dict[str, str]:
        """Display names of the models and baselines, by name."""
        return {model.name: model.label for model in (*self.models, *self.baselines)}

    @cached_property
    def written_names(self) -> dict[str, str]:
        """Names of the models in files, by name."""
        # That of a recipe is its label if it is unique: its name is that of its first run.
        number, models = Counter(self.labels.values()), self.models if self.is_replicated else ()
        recipes = [model for model in models if not model.is_finished_encoder]
        own = {model.name: model.label for model in recipes if number[model.label] == 1}
        return {name: own.get(name, name) for name in self.labels}

    @cached_property
    def short_labels(self) -> dict[str, str]:
        """Display names of the models for use in sentences, by name."""
        shown = short_names(model.label for model in self.models)
        shown |= {model.label: model.label for model in self.baselines}
        return {name: shown[label] for name, label in self.labels.items()}

    def get(self, model: str, dataset: str) -> Score:
        """Return one score; it has no estimate if it is unknown."""
        key = model, dataset
        return self.cells.get(key) or self.baseline_cells.get(key, _UNKNOWN)

    def means(self, dataset: str) -> dict[str, float]:
        """Return the means of the models that have a score on a dataset, in percentage points."""
        # Rounded: the same number of right answers in other seeds gives another last bit.
        found = {model.name: self.get(model.name, dataset).estimate for model in self.models}
        return {name: round(value.mean, 9) for name, value in found.items() if value is not None}

    def best(self, dataset: str) -> set[str]:
        """Return the models with the highest mean on a dataset; none if all are equal."""
        means = self.means(dataset)
        highest = max(means.values(), default=0.0)
        best = {name for name, mean in means.items() if mean == highest}
        return set() if len(best) == len(means) > 1 else best

    @cached_property
    def finished(self) -> Scores:
        """The scores without intermediate models, which are shown and not compared."""
        return dataclasses.replace(
            self, models=tuple(model for model in self.models if model.is_final)
        )

    @cached_property
    def distinct(self) -> tuple[ModelInfo, ...]:
        """The models without duplicates, each under its first name."""
        first: dict[str, ModelInfo] = {}
        for model in self.models:
            first.setdefault(model.identity or model.name, model)
        return tuple(first.values())

    @cached_property
    def replicates(self) -> tuple[tuple[ModelInfo, ...], ...]:
        """Groups of at least two models that differ only in their pretraining seeds."""
        known = (model for model in self.distinct if model.replicate_of)
        groups = grouped(known, attrgetter("replicate_of")).values()
        return tuple(tuple(group) for group in groups if len(group) > 1)

    def dataset(self, name: str) -> DatasetInfo:
        """Return the dataset or average with a name."""
        for dataset in self.datasets:
            if dataset.name == name:
                return dataset
        known = ", ".join(dataset.name for dataset in self.datasets)
        raise DataError(f"{self.source}: no dataset '{name}'; known: {known}")

    def members(self, dataset: DatasetInfo) -> tuple[DatasetInfo, ...]:
        """Return the datasets of an average; for a dataset, only itself."""
        if not dataset.is_average:
            return (dataset,)
        return tuple(d for d in self.datasets if d.task == dataset.task and not d.is_average)

    def shares(self, dataset: DatasetInfo) -> dict[str, float]:
        """Return the weight of each dataset in an average, by name."""
        return _shares(self.members(dataset))

    @property
    def averages(self) -> tuple[DatasetInfo, ...]:
        """The averages over categories."""
        return tuple(dataset for dataset in self.datasets if dataset.is_average)


def grouped(
    models: Iterable[ModelInfo], key: Callable[[ModelInfo], Key]
) -> dict[Key, list[ModelInfo]]:
    """Group models by a key, in their order."""
    groups: dict[Key, list[ModelInfo]] = defaultdict(list)
    for model in models:
        groups[key(model)].append(model)
    return dict(groups)


def low_rates(rates: Iterable[float]) -> set[float]:
    """Return the learning rates from the lowest to ten times the lowest."""
    tried = set(rates)
    return {rate for rate in tried if rate <= _DECADE * min(tried)}


def score_of_grid(
    runs: Sequence[GridScore[Any]],
    *,
    convention: Convention,
    is_complete: bool,
    tried: Iterable[float] = (),
) -> Score:
    """Compute the score of a model on a dataset from its grid of learning rates and seeds."""
    # The runs' scores are shares; runs at rates that were `tried` too may have diverged.
    tried = {*tried, *(run.rate for run in runs)}
    chosen, at_one = best_per_seed(runs), best_rate(runs)
    by_rate: dict[float, list[float]] = defaultdict(list)
    for run in runs:
        if run.rate:  # a probe has none
            by_rate[run.rate].append(PERCENT * run.test)
    mean = estimate([run.test for run in chosen], convention=convention)
    low: dict[int, list[float]] = defaultdict(list)
    compared = low_rates(by_rate)
    for run in runs:
        if run.rate in compared:
            low[run.seed].append(PERCENT * run.test)
    most = max(map(len, low.values()), default=0)
    # A seed that lacks a rate is left out: its spread would be over other rates.
    spreads = {seed: stdev(values) for seed, values in low.items() if len(values) == most > 1}
    return Score(
        estimate=mean and mean.in_points,
        by_seed={run.seed: PERCENT * run.test for run in chosen},
        is_complete=is_complete,
        is_at_end=bool(chosen_ends(runs, tried)),
        at_one_rate={run.seed: PERCENT * run.test for run in at_one} or None,
        one_rate=at_one[0].rate if at_one else None,
        is_one_rate_at_end=bool(chosen_ends(over_seeds(runs), tried)),
        num_rates=len(by_rate) or None,
        rate_spread=spreads or None,
        by_rate=by_rate,
        runs=runs,
    )


def score_of_runs(runs: Mapping[int, Score], *, convention: Convention) -> Score:
    """Compute the score of a recipe from the scores of its pretraining runs."""
    by_run = {
        number: fmean(score.by_seed.values()) for number, score in runs.items() if score.by_seed
    }
    spreads = {run: fmean(of.rate_spread.values()) for run, of in runs.items() if of.rate_spread}
    common = set.intersection(*(set(score.by_rate) for score in runs.values())) if runs else set()
    return Score(
        estimate([*by_run.values()], convention=convention),
        by_run,
        is_complete=all(score.by_seed and score.is_complete for score in runs.values()),
        is_at_end=any(score.is_at_end for score in runs.values()),
        rate_spread=spreads or None,
        by_rate={rate: [fmean(of.by_rate[rate]) for of in runs.values()] for rate in common},
    )


def with_averages(scores: Scores) -> Scores:
    """Add the average over each category with more than one dataset."""
    # Each seed is averaged over the datasets first, so the interval accounts for correlations
    # within a seed. A seed without a score on one dataset is omitted. A model that lacks a dataset
    # has no average, as averages over fewer datasets are not comparable.
    single = [dataset for dataset in scores.datasets if not dataset.is_average]
    tuned = {dataset.task for dataset in single if not dataset.is_zero_shot}
    # Probes have one seed, so beside fine-tunings they are a category of their own.
    single = [
        dataclasses.replace(one, task=f"{one.task} probes")
        if one.is_zero_shot and one.task in tuned
        else one
        for one in single
    ]
    datasets: list[DatasetInfo] = []
    cells, of_baselines = dict(scores.cells), dict(scores.baseline_cells)
    for task in dict.fromkeys(dataset.task for dataset in single):
        members = [dataset for dataset in single if dataset.task == task]
        datasets += members
        if len(members) < 2:
            continue
        metrics = {member.metric for member in members}
        metric, name = metrics.pop() if len(metrics) == 1 else "mixed", average_name(task)
        average = DatasetInfo(name, task, metric, is_average=True, about=members[0].about)
        datasets.append(average)
        shares = [*_shares(members).values()]
        for model in (*scores.models, *scores.baselines):
            parts = [scores.get(model.name, member.name) for member in members]
            averaged, key = (
                _average(parts, shares, convention=scores.convention),
                (model.name, name),
            )
            if averaged and model in scores.models:
                cells[key] = averaged
            elif averaged and averaged.estimate:  # one number, copied to every seed
                mean = estimate([averaged.estimate.mean], convention=scores.convention)
                of_baselines[key] = dataclasses.replace(averaged, estimate=mean)
    return dataclasses.replace(
        scores, datasets=tuple(datasets), cells=cells, baseline_cells=of_baselines
    )


def at_one_rate(scores: Scores) -> Scores:
    """Return scores of one learning rate for all seeds, instead of the best rate of each seed."""
    # Single examples are omitted, because they belong to the best rates. A model without such a
    # score still counts in its family.
    cells = {
        key: dataclasses.replace(
            score,
            estimate=estimate([*score.at_one_rate.values()], convention=scores.convention),
            by_seed=score.at_one_rate,
            is_at_end=score.is_one_rate_at_end,
            num_rates=score.num_rates and 1,
            runs=[run for run in score.runs if run.rate == score.one_rate],
        )
        if score.at_one_rate is not None
        else Score(None, {}, is_complete=False)
        for key, score in scores.cells.items()
    }
    if not any(score.estimate for score in cells.values()):
        raise DataError(f"{scores.source}: no scores of all seeds at one rate; omit --one-rate")
    return dataclasses.replace(scores, cells=cells, examples=None)


def average_name(task: str) -> str:
    """Return the name of the average over a category."""
    return f"{task} Average"


def _shares(members: Sequence[DatasetInfo]) -> dict[str, float]:
    """Return weights that sum to 1; datasets with the same examples have that of one together."""
    # Such as one task with several `train_examples`, or with several filters of a harness.
    alike = Counter(member.data or member.name for member in members)
    return {m.name: 1 / (len(alike) * alike[m.data or m.name]) for m in members}


def average_by_seed(
    parts: Sequence[Mapping[int, float]], shares: Sequence[float]
) -> dict[int, float]:
    """Average each seed over datasets; a seed that lacks one of them is omitted."""
    common = set.intersection(*(set(part) for part in parts)) if parts else set()
    return {
        seed: sum(share * part[seed] for part, share in zip(parts, shares, strict=True))
        for seed in sorted(common)
    }


def _average(
    parts: Sequence[Score], shares: Sequence[float], *, convention: Convention
) -> Score | None:
    by_dataset = [part.by_seed for part in parts if part.by_seed is not None]
    if len(by_dataset) < len(parts):
        return None
    by_seed = average_by_seed(by_dataset, shares)
    one_rate = [part.at_one_rate for part in parts if part.at_one_rate]
    seeds = {seed for of_dataset in by_dataset for seed in of_dataset}
    return Score(
        estimate=estimate([*by_seed.values()], convention=convention),
        by_seed=by_seed,
        is_complete=all(part.is_complete for part in parts) and set(by_seed) == seeds,
        is_at_end=any(part.is_at_end for part in parts),
        at_one_rate=average_by_seed(one_rate, shares) if len(one_rate) == len(parts) else None,
        is_one_rate_at_end=any(part.is_one_rate_at_end for part in parts),
        num_rates=max(part.num_rates or 0 for part in parts) or None,
    )
