"""Two models on a dataset: their difference, and whether it is clear."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from biphasic.amounts import count
from biphasic.analysis.estimate import LEVEL, Estimate
from biphasic.analysis.statistics.contrast import Contrast

Verdict = Literal["higher", "lower", "undecided", "unknown"]


@dataclass(frozen=True)
class ModelComparison:
    """Two models on a dataset."""

    first: str
    second: str
    dataset: str
    # First minus second, in percentage points, over seeds, by the scores' convention.
    difference: Estimate
    contrast: Contrast | None  # the test of paired seeds; None if no seed is common
    # Two-sided, of the test that decides, uncorrected; None without two seeds each, or if the
    # pairs' differences have no spread. Zero-shot scores have no seeds: theirs is over test
    # examples.
    p_value: float | None
    p_adjusted: float | None  # corrected for the family; `p_over_seeds` likewise, over seeds alone
    p_over_seeds: float | None
    family_size: int
    num_arms: int | None  # number of arms whose pairs Tukey's correction covers; None for Holm's
    is_planned: bool  # whether the study named it beforehand; all others are exploratory
    unit: str  # what the pairs are, as in `Scores`
    # Whether a model has seeds that the other lacks: the difference is not that of the two means.
    is_of_common_seeds: bool
    is_at_end: bool  # whether a score is at an end of the rates tried, so this is provisional

    @property
    def differences(self) -> tuple[float, ...]:
        """By seed that both have, in percentage points; empty if not paired."""
        return () if self.contrast is None else tuple(self.contrast.by_seed.values())

    @property
    def num_pairs(self) -> int:
        """Seeds that both models have; 0 if not paired."""
        return len(self.differences)

    @property
    def num_examples(self) -> int:
        """Test examples that the interval and the test cover; 0 if they are unknown."""
        return 0 if self.contrast is None else self.contrast.num_examples

    @property
    def num_clusters(self) -> int:
        """Clusters of these examples, or the examples if they have none."""
        return 0 if self.contrast is None else self.contrast.num_clusters

    @property
    def examples_text(self) -> str:
        """Number of test examples, and of their clusters where there are fewer."""
        if self.contrast is None:
            return ""
        num, text = self.num_clusters, count(self.num_examples, "test example")
        return f"{text} in {count(num, 'cluster')}" if num < self.num_examples else text

    @property
    def uses_blocks(self) -> bool:
        """Whether the test pools the variance of all arms."""
        return self.contrast is not None and self.contrast.is_pooled

    @property
    def interval(self) -> tuple[float, float] | None:
        """Ends of the 95 % interval by the test that decides, not corrected; None if unknown."""
        if self.contrast is not None:
            return self.contrast.interval
        return None if self.p_value is None else (self.difference.low, self.difference.high)

    @cached_property
    def detectable(self) -> float | None:
        """Difference that would be clear with 80 % power, in percentage points."""
        if self.contrast is None:
            return None
        return self.contrast.detectable(self.family_size, num_arms=self.num_arms)

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
