"""Sentences about comparisons and intervals; their words are in `templates/words.j2`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import jinja2

from biphasic.amounts import count, number, probability
from biphasic.analysis.estimate import METHODS, expected_coverage
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.statistics.compare import MOST_ARMS, Family, ModelComparison
from biphasic.analysis.statistics.contrast import FEWEST
from biphasic.analysis.statistics.variance import SpreadSource
from biphasic.analysis.text import listing, short
from biphasic.records import Convention


@cache
def words() -> Any:
    """Return the macros of `templates/words.j2`, which return texts."""
    environment = jinja2.Environment(  # noqa: S701 - sentences are escaped where they are shown
        loader=jinja2.PackageLoader("biphasic.analysis"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(count=count)
    environment.filters.update(
        number=number, probability=probability, listing=listing, grouped="{:,}".format,
        points="{:+z.2f}".format,
    )  # fmt: skip
    return environment.get_template("words.j2").module


def comparison_sentence(
    comparison: ModelComparison, labels: Mapping[str, str] | None = None
) -> str:
    """Describe by how much one model is above another, and how certainly."""
    # `labels` are short display names.
    names = (comparison.first, comparison.second)
    shown = ((labels or {}).get(name) or short(name) for name in names)
    return words().comparison(comparison, *shown)


def examples_sentence(comparison: ModelComparison) -> str:
    """Describe how much of the error comes from test examples, or why that is unknown."""
    return words().examples(comparison)


def detectable_sentence(comparison: ModelComparison) -> str:
    """Describe the smallest difference that could have been clear; empty if unknown."""
    return words().detectable(comparison)


def method_sentence(family: Family) -> str:
    """Describe how the variance over pretraining runs was pooled, or why not; empty for seeds."""
    return words().method(family, MOST_ARMS, FEWEST)


def coverage_sentence(convention: Convention, num_seeds: int, unit: str = "seed") -> str:
    """Describe how often intervals of a convention cover the truth."""
    # `num_seeds` is the smallest number of seeds, or of another `unit`, of any interval.
    if num_seeds < 2:
        return f"One {unit} gives no interval."
    covered = f"{100 * expected_coverage(num_seeds, convention=convention):.0f}"
    claim = f"cover the true mean about {covered} times in 100 with {num_seeds} {unit}s"
    short_of = "" if covered == "95" else ", not 95"
    return f"Intervals by convention '{convention}' ({METHODS[convention]}) {claim}{short_of}."


def pretraining_sentence(scores: Scores) -> str:
    """Describe what intervals do not cover."""
    return words().pretraining(scores)


def selection_sentence(scores: Scores, dataset: str) -> str:
    """Describe what choosing the learning rate per seed adds to scores; empty without a choice."""
    # Both choices use validation scores only; the gain is in test scores.
    gains = selection_gains(scores, dataset)
    name, most = max(gains.items(), key=lambda item: abs(item[1]), default=("", 0.0))
    mean = sum(gains.values()) / max(len(gains), 1)
    return words().selection(gains, mean, most, scores.short_labels.get(name, ""))


def selection_gains(scores: Scores, dataset: str) -> dict[str, float]:
    """Return for each model the mean of each seed's best rate minus that of one rate for all."""
    # Gains are in percentage points, over the seeds that both have, if several rates were tried.
    gains: dict[str, float] = {}
    for model in scores.distinct:
        score = scores.get(model.name, dataset)
        if not score.by_seed or not score.at_one_rate:
            continue
        common = sorted(set(score.by_seed) & set(score.at_one_rate))
        # The best rate of one seed is that of all.
        if len(common) > 1 and (score.num_rates or 1) > 1:
            difference = sum(score.by_seed[seed] - score.at_one_rate[seed] for seed in common)
            gains[model.name] = difference / len(common)
    return gains


def source_sentence(source: SpreadSource) -> str:
    """Describe how much one source of spread contributes, or why that is unknown."""
    return words().source(source)
