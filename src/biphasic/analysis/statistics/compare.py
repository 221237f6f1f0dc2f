"""Compares two models on one dataset, and tests the difference.

Seeds are paired: a seed draws the same head and the same batches for both models, so their shared
effect cancels in the difference. A difference is clear if it is larger than other seeds and other
test examples explain, corrected for its family of comparisons. There are two p values: of a paired
t test over seeds and, if examples are available, of a test over seeds and test examples together.
The larger one is corrected. If only means and half-widths are known, as in a published table,
Welch's test is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.scores.table import DatasetInfo, Scores
from biphasic.analysis.statistics.crossed import ExampleInterval, joint_p_values
from biphasic.analysis.statistics.example_compare import compare_examples, family_errors
from biphasic.analysis.statistics.paired import (
    LEVEL,
    EffectSize,
    ExactTest,
    detectable_difference,
    effect_size,
    sign_flip_test,
    wilcoxon_test,
)
from biphasic.analysis.statistics.pairs import all_pairs, pair_of
from biphasic.errors import DataError

Verdict = Literal["higher", "lower", "undecided", "unknown"]


@dataclass(frozen=True)
class ModelComparison:
    """Two models on a dataset.

    Attributes:
        difference: First minus second, in percentage points, by the scores' convention.
        differences: By seed that both have, in percentage points; empty if not paired.
        p_value: Two-sided, of Student's paired t test, or Welch's; None without two seeds each, or
            if the pairs' differences have no spread. Zero-shot scores have no seeds: theirs is
            over test examples.
        p_adjusted: The larger of `p_value` and that over seeds and test examples, corrected for the
            family: by Holm, zero-shot by Bonferroni.
        p_over_seeds: `p_value` alone, corrected likewise.
        family_size: Number of comparisons corrected for.
        examples: Interval over seeds and test examples; not corrected.
        examples_missing: Why there is no such interval; empty if there is one.
        unit: What the pairs are, as in `Scores`.
    """

    first: str
    second: str
    dataset: str
    difference: Estimate
    differences: tuple[float, ...]
    p_value: float | None
    p_adjusted: float | None
    p_over_seeds: float | None
    family_size: int
    examples: ExampleInterval | None
    examples_missing: str
    unit: str

    @property
    def num_pairs(self) -> int:
        """Seeds that both models have; 0 if not paired."""
        return len(self.differences)

    @cached_property
    def effect(self) -> EffectSize | None:
        """Mean over standard deviation of the differences."""
        return effect_size(self.differences)

    @cached_property
    def sign_flip(self) -> ExactTest | None:
        """The exact test over pairs."""
        return sign_flip_test(self.differences)

    @cached_property
    def wilcoxon(self) -> ExactTest | None:
        """The exact test over ranks, if it applies."""
        return wilcoxon_test(self.differences)

    @cached_property
    def detectable(self) -> float | None:
        """Difference detected with 80 % power, uncorrected; percentage points."""
        return detectable_difference(self.differences)

    @property
    def verdict(self) -> Verdict:
        """Whether the first is higher: `undecided` if not clear, `unknown` if untested."""
        if self.p_adjusted is None:
            return "unknown"
        if self.p_adjusted > LEVEL or self.difference.mean == 0:
            return "undecided"
        return "higher" if self.difference.mean > 0 else "lower"

    @property
    def is_clear(self) -> bool:
        """Return whether the difference is clear."""
        return self.verdict in {"higher", "lower"}

    @property
    def is_floored(self) -> bool:
        """Return whether no outcome of the exact tests could have been significant."""
        return self.sign_flip is not None and self.sign_flip.floor * self.family_size > LEVEL


@dataclass(frozen=True)
class Family:
    """All pairs of some models on a dataset, whose p values are corrected together.

    Attributes:
        order: Names of the models that have a score, best first.
        p_adjusted: Of each pair, as in `ModelComparison`; NaN without a test.
        p_over_seeds: Likewise.
        size: Number of pairs corrected for.
    """

    scores: Scores
    dataset: DatasetInfo
    order: tuple[str, ...]
    p_adjusted: NDArray[np.float64]
    p_over_seeds: NDArray[np.float64]
    size: int
    with_examples: bool

    @cached_property
    def with_best(self) -> tuple[ModelComparison, ...]:
        """The best model against every other, in order of their means."""
        comparisons = (self.compare(self.order[0], other) for other in self.order[1:])
        return tuple(comparison for comparison in comparisons if comparison is not None)

    @property
    def has_clear_best(self) -> bool:
        """Return whether the best model is clearly ahead of every other."""
        return bool(self.with_best) and all(one.is_clear for one in self.with_best)

    def compare(self, first: str, second: str) -> ModelComparison | None:
        """Compare two models; None if one has no score."""
        pair = pair_of(self.scores, first, second, self.dataset.name)
        if pair is None:
            return None
        low, high = sorted((self._places[first], self._places[second]))
        # Index of the pair in `itertools.combinations`.
        place = low * len(self.order) - low * (low + 1) // 2 + high - low - 1
        about, values = self.dataset, tuple(pair.by_seed.values())
        interval, missing = None, "scores of single examples were not requested"
        if self.with_examples:
            try:
                interval = compare_examples(self.scores, first, second, about, pair.by_seed)
                missing = ""
            except DataError as error:
                missing = str(error)
        over_examples = interval.p_value if interval and about.is_zero_shot else None
        return ModelComparison(
            first=first,
            second=second,
            dataset=about.name,
            difference=pair.difference,
            differences=values,
            p_value=pair.p_value if over_examples is None else over_examples,
            p_adjusted=_known(self.p_adjusted[place]),
            p_over_seeds=_known(self.p_over_seeds[place]),
            family_size=self.size,
            examples=interval,
            examples_missing=missing,
            unit=self.scores.unit,
        )

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.order)}


def family_of(
    scores: Scores,
    dataset: str,
    *,
    models: Sequence[str] | None = None,
    with_examples: bool = True,
) -> Family:
    """Test all pairs of models on a dataset and correct the p values together.

    Raises:
        DataError: The dataset is unknown.
    """
    about = scores.dataset(dataset)
    order = ranked(scores, dataset, models=models)
    tests = all_pairs(scores, order, dataset)
    larger = tests.p_values
    if with_examples and scores.examples is not None:
        errors = family_errors(scores, order, about)
        # Never below the p value over seeds alone.
        joint = joint_p_values(tests.means, tests.squared_errors, tests.num_seeds, errors)
        larger = np.where(np.isnan(joint), tests.p_values, joint)
        if not about.is_zero_shot:
            larger[np.isnan(tests.p_values)] = np.nan
    size = len(larger) if about.is_zero_shot else max(int((~np.isnan(larger)).sum()), 1)
    correct = _bonferroni if about.is_zero_shot else holm
    return Family(
        scores=scores,
        dataset=about,
        order=tuple(order),
        p_adjusted=correct(larger),
        p_over_seeds=correct(tests.p_values),
        size=size,
        with_examples=with_examples,
    )


def holm(p_values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Correct the p values of a family of comparisons, in the order given; NaN is left out.

    The smallest of m is multiplied by m, the next by m - 1, and so on; none may be lower than the
    one before it, or exceed 1.

    Reference: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    adjusted = np.array(p_values, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(adjusted))
    order = known[np.argsort(adjusted[known], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(adjusted[order] * factors), 1.0)
    return adjusted


def _bonferroni(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.minimum(p_values * len(p_values), 1.0)


def ranked(scores: Scores, dataset: str, *, models: Sequence[str] | None = None) -> list[str]:
    """Return the names of the models that have a score, best first; ties keep their order."""
    means = scores.means(dataset)
    asked = means if models is None else set(models)
    return sorted((name for name in means if name in asked), key=lambda name: -means[name])


def indistinguishable(
    scores: Scores, dataset: str, *, models: Sequence[str] | None = None
) -> set[str]:
    """Return the models that are not clearly below the best, without the best itself.

    With convention `paper`, their interval overlaps with the best one's; otherwise their comparison
    with it is not clear. Models without an interval are included, as they cannot be tested.
    """
    order = ranked(scores, dataset, models=models)
    if not order:
        return set()
    if scores.convention != "paper":
        comparisons = family_of(scores, dataset, models=models).with_best
        return {comparison.second for comparison in comparisons if not comparison.is_clear}
    found = {name: scores.cells[name, dataset].estimate for name in order}
    best = found.pop(order[0])
    return {name for name, other in found.items() if not _is_apart(best, other)}


def _is_apart(best: Estimate | None, other: Estimate | None) -> bool:
    if best is None or other is None or None in {best.half_width, other.half_width}:
        return False
    return best.low > other.high


def _known(p_value: float) -> float | None:
    return None if np.isnan(p_value) else float(p_value)
