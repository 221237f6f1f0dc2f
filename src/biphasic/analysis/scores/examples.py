"""Per-example test scores, from which a metric over any subset can be computed.

A metric is a function of sums over examples: accuracy of one sum, entity F1 of three. Sums without
an example give the metric without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from biphasic.errors import DataError

Array = NDArray[np.float64]
Combine = Callable[[Array], Array]
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class RunExamples:
    """One run's test examples."""

    terms: Array  # [num_terms, num_examples]; contribution of each example to the sums
    combine: Combine  # maps sums [num_terms, ...] to values of the metric [...], as a share
    blank: str = ""  # note on predictions that are uninformative about single examples

    @property
    def value(self) -> float:
        """The metric over all examples."""
        return float(self.combine(self.terms.sum(axis=1)))

    @property
    def influences(self) -> Array:
        """How far each example moves the metric from its mean, [num_examples]; zero on average."""
        # For a mean of scores, it is each score minus the mean. Otherwise each example is left out
        # once (the jackknife; Efron and Tibshirani 1993, "An introduction to the bootstrap",
        # chapter 11).
        without = self.combine(self.terms.sum(axis=1, keepdims=True) - self.terms)
        return (len(without) - 1) * (without.mean() - without)

    @property
    def scores(self) -> Array:
        """The score of each example as a share; F1 has pseudo-values, with its value as mean."""
        return self.value + self.influences

    def grouped(self, groups: NDArray[np.int64]) -> RunExamples:
        """Return examples that are sums of groups; `groups` has the number of each one's group."""
        terms = np.stack([np.bincount(groups, weights=row) for row in self.terms])
        return replace(self, terms=terms)


@dataclass(frozen=True)
class ExampleScores:
    """Test examples of the run selected for each seed; `ids` name them in the order of terms."""

    ids: tuple[str, ...]
    by_seed: Mapping[int, RunExamples]
    # By example, what it shares with others, such as its document; empty if all are independent.
    clusters: tuple[str, ...] = ()


@dataclass(frozen=True)
class CellInfluences:
    """By seed, `RunExamples.influences` in percent points; with a hash of the examples' names."""

    # Of examples in clusters, they are those of clusters, and the hash covers both names.
    ids_sha256: str
    by_seed: Mapping[int, Array]
    num_examples: int


# Takes names of model and dataset; raises DataError with the reason if there are none.
ExampleReader = Callable[[str, str], ExampleScores]


def mean_examples(scores: Sequence[float] | Array) -> RunExamples:
    """Return examples of a metric that is the mean of their scores."""
    # The number of examples is a sum, too: without one of them, the mean divides by one less.
    terms = np.stack([np.asarray(scores, dtype=np.float64), np.ones(len(scores))])
    return RunExamples(terms, lambda sums: _ratio(sums[0], sums[1]))


def metric_examples(metric: str, columns: Mapping[str, Sequence[Any]]) -> RunExamples:
    """Return the contribution of each example to a metric."""
    build, needed = _builder(metric)
    if missing := [name for name in needed if name not in columns]:
        raise DataError(f"metric '{metric}' cannot be computed example by example: no {missing[0]}")
    return build(*(columns[name] for name in needed))


def mean_of_runs(runs: Sequence[RunExamples]) -> RunExamples:
    """Return examples of the mean of the metrics of several runs over the same examples."""
    borders = np.cumsum([len(run.terms) for run in runs])[:-1]

    def combine(sums: Array) -> Array:
        parts = np.split(sums, borders)
        return np.mean([run.combine(part) for run, part in zip(runs, parts, strict=True)], axis=0)

    return RunExamples(np.concatenate([run.terms for run in runs]), combine)


def check_value(examples: RunExamples, expected: float, *, where: str) -> None:
    """Check that examples give the score in the run's record."""
    value = examples.value
    if not abs(value - expected) <= _TOLERANCE:  # also catches NaN
        raise DataError(
            f"{where}: its examples give {value:.6f}, its record {expected:.6f}; skipped"
        )


def needed_columns(metric: str) -> tuple[str, ...]:
    """Return the columns of `scores.parquet` that a metric needs."""
    return _builder(metric)[1]


def _builder(metric: str) -> tuple[Callable[..., RunExamples], tuple[str, ...]]:
    """Return a function, and the columns it takes; other metrics are means of their column."""
    return _BUILDERS.get(metric, (mean_examples, (metric,)))


def _numbers(column: Sequence[Any]) -> Array:
    return np.asarray(column, dtype=np.float64)


def _micro_f1(
    expected: Sequence[Any], predicted: Sequence[Any], right: Sequence[Any], *, what: str
) -> RunExamples:
    terms = np.stack([_numbers(column) for column in (expected, predicted, right)])
    blank = "" if terms[1].any() else f"no {what} was predicted"
    return RunExamples(terms, lambda sums: _ratio(2 * sums[2], sums[0] + sums[1]), blank)


def _confusion(labels: Sequence[Any], predicted: Sequence[Any]) -> Array:
    """Return [3 * num_classes, num_examples]: true, predicted and correct, for each class."""
    # Each example has a class, or a list of classes.
    if len(labels) and isinstance(labels[0], list):
        both = (labels, predicted)
        classes: Any = sorted({name for column in both for row in column for name in row})
        is_true, is_guess = (
            np.array([[name in row for row in column] for name in classes], dtype=np.bool_).reshape(
                len(classes), len(column)
            )
            for column in both
        )
    else:
        label, guess = np.asarray(labels), np.asarray(predicted)
        classes = np.unique(np.concatenate([label, guess]))
        is_true, is_guess = label == classes[:, None], guess == classes[:, None]
    return np.concatenate([is_true, is_guess, is_true & is_guess]).astype(np.float64)


def _macro_f1(labels: Sequence[Any], predicted: Sequence[Any]) -> RunExamples:
    def combine(sums: Array) -> Array:
        true, guessed, right = np.split(sums, 3)
        # A class that is neither expected nor predicted has no F1 and is ignored.
        present = true + guessed > 0
        return _ratio((_ratio(2 * right, true + guessed) * present).sum(0), present.sum(0))

    return RunExamples(_confusion(labels, predicted), combine, _blank_labels(predicted))


def _blank_labels(predicted: Sequence[Any]) -> str:
    is_same = all(guess == predicted[0] for guess in predicted)
    return "every example got the same label" if is_same else ""


def _matthews(labels: Sequence[Any], predicted: Sequence[Any]) -> RunExamples:
    def combine(sums: Array) -> Array:
        true, guessed, right = np.split(sums, 3)
        total = true.sum(0)
        both = right.sum(0) * total - (true * guessed).sum(0)
        spread = (total**2 - (true**2).sum(0)) * (total**2 - (guessed**2).sum(0))
        return _ratio(both, np.sqrt(np.maximum(spread, 0.0)))

    return RunExamples(_confusion(labels, predicted), combine, _blank_labels(predicted))


def _pearson(values: Sequence[Any], predicted: Sequence[Any]) -> RunExamples:
    # Center first: large offsets would cost precision in the squares.
    x, y = (column - column.mean() for column in (_numbers(values), _numbers(predicted)))
    terms = np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y])

    def combine(sums: Array) -> Array:
        count, sum_x, sum_y, xx, yy, xy = sums
        spread = (count * xx - sum_x**2) * (count * yy - sum_y**2)
        return _ratio(count * xy - sum_x * sum_y, np.sqrt(np.maximum(spread, 0.0)))

    return RunExamples(terms, combine)


def _no_sums(*_: Sequence[Any]) -> RunExamples:
    raise DataError("Spearman's correlation uses ranks, so it is not a sum over examples")


def _ratio(numerator: Any, denominator: Any) -> Array:
    """Divide; 0 / 0 is 0, as in records."""
    numerator, denominator = np.asarray(numerator), np.asarray(denominator)
    return np.divide(
        numerator,
        denominator,
        out=np.zeros(np.broadcast_shapes(numerator.shape, denominator.shape)),
        where=denominator != 0,
    )


_BUILDERS: dict[str, tuple[Callable[..., RunExamples], tuple[str, ...]]] = {
    "accuracy": (mean_examples, ("correct",)),
    "macro_f1": (_macro_f1, ("label", "predicted")),
    "matthews": (_matthews, ("label", "predicted")),
    "entity_f1": (
        partial(_micro_f1, what="entity"),
        ("num_entities", "num_predicted", "num_right"),
    ),
    "micro_f1": (partial(_micro_f1, what="label"), ("num_labels", "num_predicted", "num_right")),
    "subset_accuracy": (mean_examples, ("correct",)),
    "pearson": (_pearson, ("value", "predicted")),
    "spearman": (_no_sums, ("value",)),
}
