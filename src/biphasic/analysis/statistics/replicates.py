"""Recipes that were pretrained more than once: intervals over pretraining runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import product, zip_longest
from typing import NamedTuple

from biphasic.amounts import count
from biphasic.analysis.scores.examples import ExampleReader, ExampleScores, mean_of_runs
from biphasic.analysis.scores.table import ModelInfo, Score, Scores, score_of_runs
from biphasic.errors import DataError
from biphasic.records import fixed_streams

# What a study adds to the names of arms that differ in their seeds.
_SEED = re.compile(r"(-(?:seed|init|data|mask)\d+)")


def by_recipe(scores: Scores) -> Scores:
    """Return scores over pretraining runs if every recipe has replicates, else unchanged."""
    replicated = {model.identity for group in scores.replicates for model in group}
    trained = [model for model in scores.distinct if not model.is_finished_encoder]
    if trained and all(model.identity in replicated for model in trained):
        return over_pretraining(scores)
    return scores


def over_pretraining(scores: Scores) -> Scores:
    """Return scores of recipes, with pretraining runs as seeds."""
    # A run's score is its mean over fine-tuning seeds, so intervals and comparisons cover
    # pretraining variance. Recipes are paired if they share pretraining seeds, which draw the same
    # initial weights, rows and masks. Models that were pretrained once are omitted. Only finished
    # encoders stay: their fine-tunings with the seeds of a run are paired with it.
    groups = scores.replicates
    if not groups:
        raise DataError(
            f"{scores.source}: each model was pretrained once; to measure pretraining variance, "
            "give arms several seeds, such as axes: {recipe.seed: [0, 1, 2]}"
        )
    distinct = {model.pretraining_seeds for group in groups for model in group}
    numbers = {seeds: number for number, seeds in enumerate(sorted(distinct))}
    is_balanced = len(set(map(len, groups))) == 1
    models = []
    for group in groups:
        label = _label(group, with_number=not is_balanced)
        one = dataclasses.replace(group[0], label=label, replicate_of="", pretraining_seeds=())
        models.append(one)
    finished = [model for model in scores.distinct if model.is_finished_encoder]
    models += [dataclasses.replace(one, label=f"{one.label} (1 run)") for one in finished]
    encoders = {model.name for model in finished}
    alone = [(one,) for one in (*finished, *scores.baselines)]
    members = {group[0].name: group for group in [*groups, *alone]}
    runs = _Runs(scores, members, numbers)

    def score(model: str, dataset: str) -> Score:
        own = {number: run.score for number, run in runs.of(model, dataset).items()}
        found = score_of_runs(own, convention=scores.convention)
        if model in encoders and len({tuple(one.by_seed or ()) for one in own.values()}) == 1:
            # All runs have the same fine-tuning seeds, or none: nothing varies between them.
            return dataclasses.replace(found, estimate=scores.get(model, dataset).estimate)
        return found

    fixed = [fixed_streams(model.pretraining_seeds for model in group) for group in groups]
    return dataclasses.replace(
        scores,
        models=tuple(models),
        cells={
            (model.name, dataset.name): score(model.name, dataset.name)
            for model in models
            for dataset in scores.datasets
        },
        baseline_cells={
            key: dataclasses.replace(score(*key), estimate=known.estimate)
            for key, known in scores.baseline_cells.items()
        },
        num_pretraining_runs=min(map(len, groups)),
        fixed_streams=tuple(dict.fromkeys(name for names in fixed for name in names)),
        shares_finetuning_seeds=_shares_seeds(scores, groups),
        runs=scores,
        examples=_reader(scores, runs),
    )


class _Run(NamedTuple):
    """The fine-tunings of a model that are of one pretraining run."""

    model: str
    score: Score


@dataclasses.dataclass(frozen=True)
class _Runs:
    """The pretraining runs of recipes, by the first model of each."""

    scores: Scores
    members: Mapping[str, tuple[ModelInfo, ...]]  # Of a finished encoder, the model alone.
    numbers: Mapping[tuple[int, ...], int]  # Of runs, by their seeds.

    def of(self, recipe: str, dataset: str) -> dict[int, _Run]:
        """Return the runs of a recipe by number."""
        runs: dict[int, _Run] = {}
        for model in self.members.get(recipe, ()):
            score = self.scores.get(model.name, dataset)
            if model.is_finished_encoder:
                for number, seeds in self._seeds(dataset).items():
                    runs[number] = _Run(model.name, _restricted(score, seeds))
            else:
                runs[self.numbers[model.pretraining_seeds]] = _Run(model.name, score)
        return runs

    def _seeds(self, dataset: str) -> dict[int, set[int]]:
        """Return the fine-tuning seeds of each run."""
        seeds: dict[int, set[int]] = {}
        for model in (model for group in self.members.values() for model in group):
            if not model.is_finished_encoder:
                own = self.scores.get(model.name, dataset).by_seed or {}
                seeds.setdefault(self.numbers[model.pretraining_seeds], set()).update(own)
        return seeds


def _restricted(score: Score, seeds: Collection[int]) -> Score:
    """Return a score of some fine-tuning seeds alone."""
    by_seed, spread = (
        {seed: value for seed, value in (by_seed or {}).items() if seed in seeds}
        for by_seed in (score.by_seed, score.rate_spread)
    )
    return dataclasses.replace(score, by_seed=by_seed, rate_spread=spread)


def _shares_seeds(scores: Scores, groups: Sequence[tuple[ModelInfo, ...]]) -> bool:
    """Return whether two runs of a recipe were fine-tuned with the same seed."""
    runs = (
        [scores.get(model.name, dataset.name).by_seed or {} for model in group]
        for group, dataset in product(groups, scores.datasets)
        if not dataset.is_zero_shot
    )
    return any(sum(map(len, seeds)) > len(set().union(*seeds)) for seeds in runs)


def _reader(scores: Scores, runs: _Runs) -> ExampleReader | None:
    """Return a reader of recipes' test examples: for each run, the mean of its fine-tunings."""
    read_one = scores.examples
    if read_one is None:
        return None

    def read(recipe: str, dataset: str) -> ExampleScores:
        ids: tuple[str, ...] | None = None
        clusters: tuple[str, ...] = ()
        by_run = {}
        for number, run in runs.of(recipe, dataset).items():
            if not run.score.by_seed:
                continue
            examples = read_one(run.model, dataset)
            if ids is not None and examples.ids != ids:
                raise DataError(f"{dataset}: the runs of {recipe} have different test examples")
            ids, clusters = examples.ids, examples.clusters
            by_run[number] = mean_of_runs([examples.by_seed[seed] for seed in run.score.by_seed])
        return ExampleScores(ids or (), by_run, clusters)

    return read


def _label(group: tuple[ModelInfo, ...], *, with_number: bool) -> str:
    """Return the members' common label, without the seeds in which they differ."""
    names = [_SEED.split(model.label) for model in group]
    parts = [set(part) for part in zip_longest(*names, fillvalue="")]
    if any(len(part) > 1 for part in parts[::2]):  # the text between seeds
        return f"{group[0].label} and {count(len(group) - 1, 'other run')}"
    label = "".join(part.pop() for part in parts if len(part) == 1)
    return f"{label} ({len(group)} runs)" if with_number else label
