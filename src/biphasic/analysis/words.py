"""Templates with their filters, and the sentences of `templates/words.j2`."""

from __future__ import annotations

from functools import cache
from typing import Any

import jinja2

from biphasic.amounts import (
    amount,
    count,
    duration,
    number,
    p_value,
    percent,
    probability,
    rate,
    scientific,
)
from biphasic.analysis.estimate import METHODS, expected_coverage
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.text import flat, listing, metric_name, objective_name, points_cell, short
from biphasic.records import Convention


def environment(**options: Any) -> jinja2.Environment:
    """Return an environment of the package's templates; `options` are those of jinja."""
    made = jinja2.Environment(  # noqa: S701 - a page asks for it, other templates use their filters
        loader=jinja2.PackageLoader("biphasic.analysis"),
        undefined=jinja2.StrictUndefined,
        **{"trim_blocks": True, "lstrip_blocks": True, **options},
    )
    made.globals.update(count=count)
    made.filters.update(
        amount=amount, cell=points_cell, duration=duration, flat=flat, grouped="{:,}".format,
        listing=listing, metric=metric_name, number=number, objective=objective_name,
        p_value=p_value, percent=percent, points="{:+z.2f}".format, probability=probability,
        rate=rate, scientific=scientific, short=short,
    )  # fmt: skip
    return made


@cache
def words() -> Any:
    """Return the macros of `templates/words.j2`, which return texts."""
    # Sentences are escaped where they are shown.
    return environment().get_template("words.j2").module


def coverage_sentence(convention: Convention, num_seeds: int, unit: str = "seed") -> str:
    """Describe how often intervals of a convention cover the truth."""
    # `num_seeds` is the smallest number of seeds, or of another `unit`, of any interval.
    share = expected_coverage(num_seeds, convention=convention) if num_seeds > 1 else 0.0
    return words().coverage(convention, METHODS[convention], num_seeds, unit, f"{100 * share:.0f}")


def interval_note(scores: Scores) -> str:
    """Return a sentence about the intervals and the variance that they do not cover."""
    numbers = sorted(
        {
            score.num_seeds
            for score in scores.cells.values()
            if score.estimate is not None and score.estimate.half_width is not None
        }
    )
    convention = scores.convention
    share = expected_coverage(numbers[0], convention=convention) if numbers else 0.0
    return words().intervals(scores, numbers, METHODS[convention], round(100 * share))


def selection_sentence(scores: Scores, dataset: str) -> str:
    """Describe what choosing the learning rate per seed adds to scores; empty without a choice."""
    # Both choices use validation scores only; the gain is in test scores.
    gains = selection_gains(scores, dataset)
    name, most = max(gains.items(), key=lambda item: abs(item[1]), default=("", 0.0))
    mean = sum(gains.values()) / max(len(gains), 1)
    labels = (scores.runs or scores).short_labels
    return words().selection(gains, mean, most, labels.get(name, ""))


def selection_gains(scores: Scores, dataset: str) -> dict[str, float]:
    """Return for each model the mean of each seed's best rate minus that of one rate for all."""
    # Gains are in percentage points, over the seeds that both have, if several rates were tried. Of
    # recipes, they are those of their single runs.
    scores = scores if scores.runs is None else scores.runs.finished
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
