"""Sources of the spread of scores, as far as the data show them.

There are four sources, as standard deviations in percentage points, pooled over models:

- the pretraining seed: spread of the means of models that differ in nothing else, minus the
  contribution of fine-tuning seeds to those means;
- the fine-tuning seed: spread over seeds at one learning rate for all;
- the choice of the learning rate: what choosing it per seed adds to that spread;
- the test examples: how the mean would vary on as many other examples.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from biphasic.amounts import count
from biphasic.analysis.scores.table import DatasetInfo, Score, Scores
from biphasic.analysis.statistics.crossed import influences
from biphasic.errors import DataError


class SpreadSource(NamedTuple):
    """One source of spread."""

    name: str  # what varies
    # Standard deviation that it causes, in percentage points; None if unknown.
    deviation: float | None
    basis: str  # data of the estimate, or why there is none


class VarianceSplit(NamedTuple):
    """The sources of spread on one dataset."""

    pretraining: SpreadSource
    finetuning: SpreadSource
    rate_choice: SpreadSource
    examples: SpreadSource


Found = tuple[float | None, str]  # `SpreadSource.deviation` and `.basis`


def variance_split(scores: Scores, dataset: str) -> VarianceSplit:
    """Split the spread of scores on one dataset; of recipes, that of their single runs."""
    scores = scores if scores.runs is None else scores.runs.finished
    about = scores.dataset(dataset)
    keys = ((model.name, dataset) for model in scores.distinct)
    by_model = {key[0]: scores.cells[key] for key in keys if key in scores.cells}
    found = _finetuning(by_model), _rate_choice(by_model)
    if about.is_zero_shot:
        found = ((None, "zero-shot: nothing is fine-tuned"),) * 2
    return VarianceSplit(
        SpreadSource("pretraining seed", *_pretraining(scores, by_model, about)),
        SpreadSource("fine-tuning seed", *found[0]),
        SpreadSource("choice of the learning rate", *found[1]),
        SpreadSource("test examples", *_examples(scores, about, by_model)),
    )


def _pretraining(scores: Scores, by_model: dict[str, Score], dataset: DatasetInfo) -> Found:
    between: list[tuple[float, int]] = []
    is_noise_known = True
    for group in scores.replicates:
        members = [by_model[model.name] for model in group if model.name in by_model]
        means = [score.estimate.mean for score in members if score.estimate]
        if len(means) < 2:
            continue
        noise = [(_variance(score.by_seed), len(score.by_seed or ())) for score in members]
        known = [value / num for value, num in noise if value is not None]
        # Means of runs also differ by the noise of their fine-tunings, which is subtracted; it may
        # exceed the difference by chance.
        excess = statistics.variance(means) - (statistics.fmean(known) if known else 0.0)
        # Weighted by degrees of freedom, as variances of many runs are known better.
        between.append((excess, len(means) - 1))
        is_noise_known = is_noise_known and (bool(known) or dataset.is_zero_shot)
    if not between:
        return None, "each model was pretrained once"
    freedom = sum(weight for _, weight in between)
    pooled = sum(value * weight for value, weight in between) / freedom
    runs = f"{freedom + len(between)} pretraining runs of {count(len(between), 'recipe')}"
    noise_note = "" if is_noise_known else "; it includes that of the fine-tuning seed"
    # A negative estimate of a variance means that there is no sign of any. It is cut only after
    # pooling, as cutting each would bias the mean upwards.
    return math.sqrt(max(pooled, 0.0)), f"{runs}{noise_note}"


def _finetuning(by_model: dict[str, Score]) -> Found:
    variances = [_variance(score.at_one_rate) for score in by_model.values()]
    known = [value for value in variances if value is not None]
    if not known:
        return None, "no model has two seeds at one learning rate"
    basis = f"{count(len(known), 'model')}, one learning rate for all seeds of each"
    return math.sqrt(statistics.fmean(known)), basis


def _rate_choice(by_model: dict[str, Score]) -> Found:
    if all((score.num_rates or 1) < 2 for score in by_model.values()):
        return None, "one learning rate only"
    added = []
    for score in by_model.values():
        chosen, fixed = _variance(score.by_seed), _variance(score.at_one_rate)
        if chosen is not None and fixed is not None:
            added.append(chosen - fixed)
    if not added:
        return None, "no model has two seeds at one learning rate"
    excess = statistics.fmean(added)
    basis = f"{count(len(added), 'model')}, the best rate of each seed against one for all"
    if excess < 0:
        basis += "; it made scores vary less, not more"
    return math.sqrt(max(excess, 0.0)), basis


def _examples(scores: Scores, dataset: DatasetInfo, by_model: dict[str, Score]) -> Found:
    members, shares = scores.members(dataset), scores.shares(dataset)
    variances, reasons = [], list[str]()
    for model in by_model:
        try:
            cells = {member: influences(scores, model, member.name) for member in members}
        except DataError as error:
            reasons.append(str(error))
            continue
        # The squared standard error over test examples of a mean over seeds. Datasets may share
        # their examples.
        means: dict[tuple[str, str], Any] = {}
        for member, cell in cells.items():
            key = member.data or member.name, cell.ids_sha256
            means[key] = means.get(key, 0.0) + shares[member.name] * np.mean(
                [*cell.by_seed.values()], axis=0
            )
        errors = (float(mean.var(ddof=1)) / len(mean) for mean in means.values())
        variances.append(math.fsum(errors))
    others = len({*reasons}) - 1
    why = "".join(reasons[:1]) + f", and {others} more" * (others > 0)
    if not variances:
        return None, why or "no model has a score"
    basis = count(len(variances), "model") + (f"; {len(reasons)} without: {why}" if reasons else "")
    return math.sqrt(statistics.fmean(variances)), basis


def _variance(by_seed: Mapping[int, float] | None) -> float | None:
    values = [*(by_seed or {}).values()]
    return statistics.variance(values) if len(values) > 1 else None
