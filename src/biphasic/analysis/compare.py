"""Two models on one dataset: by how much they differ, and how sure that is.

Seeds are paired: a seed draws the same head and the same batches for both models, so what it adds
to both drops out of the difference. A difference counts as clear where a paired t test over seeds
finds it, corrected for the family of comparisons it belongs to, and where an interval over test
examples as well excludes zero, if there are examples to look at. Where only means and half-widths
are known, as in a published table, Welch's test stands in.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Literal

from scipy.special import stdtr, stdtrit

from biphasic.analysis.estimate import NORMAL_QUANTILE, Estimate, estimate, interval_quantile
from biphasic.analysis.exact import ExactTest, sign_flip_test, wilcoxon_test
from biphasic.analysis.example_compare import compare_examples
from biphasic.analysis.multiple import holm
from biphasic.analysis.power import LEVEL, EffectSize, detectable_difference, effect_size
from biphasic.analysis.resample import ExampleInterval
from biphasic.analysis.score_table import DatasetInfo, Score, Scores
from biphasic.errors import DataError
from biphasic.records import ZERO_SHOT, Convention

Verdict = Literal["higher", "lower", "undecided", "unknown"]
_NOTHING_RANDOM = ZERO_SHOT.upper()
"""Kind of tasks that are scored once, without seeds."""


@dataclass(frozen=True)
class Comparison:
    """Two models on a dataset.

    Attributes:
        first: Name of a model.
        second: Name of the other.
        dataset: Name of the dataset or average.
        kind: Whether seeds were paired.
        difference: First minus second, in percent points, by the scores' convention.
        differences: Of each seed that both have, in percent points; empty where not paired.
        p_value: Two-sided, of Student's paired t test, or Welch's; None without two seeds each, or
            where the pairs' differences have no spread. Zero-shot scores have no seeds: theirs is
            over test examples.
        p_adjusted: The same, corrected for the family: by Holm, zero-shot by Bonferroni.
        family_size: Comparisons it was corrected for.
        examples: Interval over seeds and test examples.
        examples_missing: Why there is none; empty where there is.
    """

    first: str
    second: str
    dataset: str
    kind: Literal["paired", "unpaired"]
    difference: Estimate
    differences: tuple[float, ...]
    p_value: float | None
    p_adjusted: float | None
    family_size: int
    examples: ExampleInterval | None
    examples_missing: str

    @property
    def num_pairs(self) -> int:
        """Seeds that both models have; 0 where not paired."""
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
        """The exact test over ranks, where it applies."""
        return wilcoxon_test(self.differences)

    @cached_property
    def detectable(self) -> float | None:
        """Difference that four in five such comparisons would show, uncorrected; percent points."""
        return detectable_difference(self.differences)

    @property
    def verdict(self) -> Verdict:
        """Whether the first is higher: `undecided` if data cannot tell, `unknown` if untested."""
        if self.p_adjusted is None:
            return "unknown"
        is_lasting = self.examples is None or self.examples.excludes_zero
        if self.p_adjusted > LEVEL or not is_lasting or self.difference.mean == 0:
            return "undecided"
        return "higher" if self.difference.mean > 0 else "lower"

    @property
    def is_clear(self) -> bool:
        """Tell whether the models differ beyond doubt."""
        return self.verdict in {"higher", "lower"}

    @property
    def is_floored(self) -> bool:
        """Tell whether no outcome of the exact tests could have been significant."""
        return self.sign_flip is not None and not self.sign_flip.can_decide(
            level=LEVEL, family_size=self.family_size
        )


def compare_arms(
    scores: Scores, first: str, second: str, dataset: str, *, with_examples: bool = True
) -> Comparison | None:
    """Compare two models on one dataset, as a family of its own; None where one has no score.

    Args:
        scores: Of both.
        first: Name of a model.
        second: Name of the other.
        dataset: Name of a dataset or average.
        with_examples: Whether to read scores of single examples, where there are any.

    Raises:
        DataError: There is no such model or dataset.
    """
    scores.model(first), scores.model(second)
    pair = _Pair.of(scores, first, second, _dataset(scores, dataset))
    if pair is None:
        return None
    return _compare(scores, pair, p_adjusted=pair.p_value, family_size=1, examples=with_examples)


def compare_with_best(
    scores: Scores,
    dataset: str,
    *,
    models: Sequence[str] | None = None,
    with_examples: bool = True,
) -> tuple[Comparison, ...]:
    """Compare the model with the highest mean with every other, in order of their means.

    The best one was found by looking at all, so p values are corrected for all pairs of models.

    Args:
        scores: Of the models.
        dataset: Name of a dataset or average.
        models: Names of those that take part; all when None.
        with_examples: Whether to read scores of single examples, where there are any.

    Raises:
        DataError: There is no such dataset.
    """
    about = _dataset(scores, dataset)
    order = ranked(scores, dataset, models=models)
    pairs = [_Pair.of(scores, a, b, about) for a, b in combinations(order, 2)]
    known = [pair for pair in pairs if pair is not None and pair.p_value is not None]
    adjusted = holm([pair.p_value for pair in known if pair.p_value is not None])
    by_pair = {(p.first, p.second): value for p, value in zip(known, adjusted, strict=True)}
    return tuple(
        _compare(
            scores,
            pair,
            p_adjusted=by_pair.get((pair.first, pair.second)),
            family_size=len(pairs if about.task == _NOTHING_RANDOM else known) or 1,
            examples=with_examples,
        )
        for pair in pairs[: max(len(order) - 1, 0)]
        if pair is not None
    )


def ranked(scores: Scores, dataset: str, *, models: Sequence[str] | None = None) -> list[str]:
    """Return the names of the models that have a score, best first; ties keep their order."""
    means: dict[str, float] = {}
    for model in scores.models:
        score = scores.get(model.name, dataset)
        is_asked = models is None or model.name in models
        if is_asked and score is not None and score.estimate is not None:
            means[model.name] = score.estimate.mean
    return sorted(means, key=lambda name: -means[name])


def indistinguishable(
    scores: Scores, dataset: str, *, models: Sequence[str] | None = None
) -> set[str]:
    """Return the models that the data cannot tell from the best, the best itself left out.

    By convention `paper`, those whose interval overlaps with the best one's; else those whose
    comparison with it is not clear over seeds. Without an interval nothing can be told: such models
    are among them.
    """
    order = ranked(scores, dataset, models=models)
    if not order:
        return set()
    if scores.convention != "paper":
        found = compare_with_best(scores, dataset, models=models, with_examples=False)
        return {comparison.second for comparison in found if not comparison.is_clear}
    best = _estimate(scores, order[0], dataset)
    others = ((name, _estimate(scores, name, dataset)) for name in order[1:])
    return {name for name, other in others if not _is_apart(best, other)}


def _estimate(scores: Scores, model: str, dataset: str) -> Estimate | None:
    score = scores.get(model, dataset)
    return None if score is None else score.estimate


def _is_apart(best: Estimate | None, other: Estimate | None) -> bool:
    if best is None or other is None or None in {best.half_width, other.half_width}:
        return False
    return best.low > other.high


@dataclass(frozen=True)
class _Pair:
    """Two models' scores before any test that takes time."""

    first: str
    second: str
    dataset: DatasetInfo
    by_seed: Mapping[int, float] | None
    """Differences by seed, where both have seeds in common."""
    difference: Estimate
    p_value: float | None

    @classmethod
    def of(cls, scores: Scores, first: str, second: str, dataset: DatasetInfo) -> _Pair | None:
        found = scores.get(first, dataset.name), scores.get(second, dataset.name)
        if None in found or any(score.estimate is None for score in found if score):
            return None
        one, other = (score for score in found if score is not None)
        differences = _differences(one, other)
        if differences:
            difference = estimate([*differences.values()], convention=scores.convention)
            p_value = _paired_p_value([*differences.values()])
        else:
            difference, p_value = _welch(one, other, convention=scores.convention)
        assert difference is not None  # noqa: S101 - there is a score on either side
        return cls(first, second, dataset, differences or None, difference, p_value)


def _differences(one: Score, other: Score) -> dict[int, float]:
    if one.by_seed is None or other.by_seed is None:
        return {}
    return {
        seed: score - other.by_seed[seed]
        for seed, score in sorted(one.by_seed.items())
        if seed in other.by_seed
    }


def _paired_p_value(differences: Sequence[float]) -> float | None:
    num = len(differences)
    deviation = statistics.stdev(differences) if num > 1 else 0.0
    if deviation == 0:
        return None
    t_value = statistics.fmean(differences) / deviation * math.sqrt(num)
    return float(2 * stdtr(num - 1, -abs(t_value)))


def _welch(one: Score, other: Score, *, convention: Convention) -> tuple[Estimate, float | None]:
    """Compare two means with intervals (Welch 1947); the seeds are not paired."""
    first, second = one.estimate, other.estimate
    assert first is not None  # noqa: S101 - checked by the only caller
    assert second is not None  # noqa: S101
    mean, num = first.mean - second.mean, min(first.num_seeds, second.num_seeds)
    if first.half_width is None or second.half_width is None:
        return Estimate(mean, None, num), None
    parts = [
        (found.half_width or 0.0) ** 2
        / interval_quantile(found.num_seeds, convention=convention) ** 2
        for found in (first, second)
    ]
    error = math.sqrt(sum(parts))
    if error == 0:
        return Estimate(mean, 0.0, num), None
    seeds = (first.num_seeds, second.num_seeds)
    freedom = sum(parts) ** 2 / sum(p**2 / (n - 1) for p, n in zip(parts, seeds, strict=True))
    quantile = NORMAL_QUANTILE if convention == "paper" else float(stdtrit(freedom, 0.975))
    return Estimate(mean, quantile * error, num), float(2 * stdtr(freedom, -abs(mean) / error))


def _compare(
    scores: Scores,
    pair: _Pair,
    *,
    p_adjusted: float | None,
    family_size: int,
    examples: bool,
) -> Comparison:
    values = tuple((pair.by_seed or {}).values())
    plain = Comparison(
        first=pair.first,
        second=pair.second,
        dataset=pair.dataset.name,
        kind="paired" if values else "unpaired",
        difference=pair.difference,
        differences=values,
        p_value=pair.p_value,
        p_adjusted=p_adjusted,
        family_size=family_size,
        examples=None,
        examples_missing="scores of single examples were not asked for",
    )
    if not examples:
        return plain
    try:
        found = compare_examples(scores, pair.first, pair.second, pair.dataset, pair.by_seed or {})
    except DataError as error:
        return dataclasses.replace(plain, examples_missing=str(error))
    whole = dataclasses.replace(plain, examples=found, examples_missing="")
    if pair.dataset.task != _NOTHING_RANDOM:
        return whole
    adjusted = min(1.0, found.p_value * family_size)
    return dataclasses.replace(whole, p_value=found.p_value, p_adjusted=adjusted)


def _dataset(scores: Scores, name: str) -> DatasetInfo:
    for dataset in scores.datasets:
        if dataset.name == name:
            return dataset
    known = ", ".join(dataset.name for dataset in scores.datasets)
    raise DataError(f"{scores.source}: no dataset '{name}'; known: {known}")
