"""Two models on one dataset: by how much they differ, and how sure that is.

Seeds are paired: a seed draws the same head and the same batches for both models, so what it adds
to both drops out of the difference. A difference counts as clear where a paired t test over seeds
finds it, corrected for the family of comparisons it belongs to, and where an interval over test
examples as well excludes zero, if there are examples to look at. Where only means and half-widths
are known, as in a published table, Welch's test stands in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.exact import ExactTest, sign_flip_test, wilcoxon_test
from biphasic.analysis.example_compare import compare_examples
from biphasic.analysis.multiple import holm
from biphasic.analysis.pairs import Pair, all_p_values, pair_of
from biphasic.analysis.power import LEVEL, EffectSize, detectable_difference, effect_size
from biphasic.analysis.resample import ExampleInterval
from biphasic.analysis.score_table import DatasetInfo, Scores
from biphasic.errors import DataError
from biphasic.records import ZERO_SHOT

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
    for name in (first, second):
        scores.model(name)
    about = scores.dataset(dataset)
    pair = pair_of(scores, first, second, dataset)
    if pair is None:
        return None
    return _compare(
        scores, pair, about, p_adjusted=pair.p_value, family_size=1, examples=with_examples
    )


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
    about = scores.dataset(dataset)
    order = ranked(scores, dataset, models=models)
    p_values = all_p_values(scores, order, dataset)
    is_known = ~np.isnan(p_values)
    adjusted = np.full(len(p_values), np.nan)
    adjusted[is_known] = holm(p_values[is_known])
    family = len(p_values) if about.task == _NOTHING_RANDOM else int(is_known.sum())
    # The first pairs are those with the best.
    pairs = [pair_of(scores, order[0], other, dataset) for other in order[1:]]
    return tuple(
        _compare(
            scores,
            pair,
            about,
            p_adjusted=None if pair.p_value is None else float(value),
            family_size=max(family, 1),
            examples=with_examples,
        )
        for pair, value in zip(pairs, adjusted, strict=False)
        if pair is not None
    )


def ranked(scores: Scores, dataset: str, *, models: Sequence[str] | None = None) -> list[str]:
    """Return the names of the models that have a score, best first; ties keep their order."""
    means: dict[str, float] = {}
    asked = None if models is None else set(models)
    for model in scores.models:
        score = scores.get(model.name, dataset)
        is_asked = asked is None or model.name in asked
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


def _compare(
    scores: Scores,
    pair: Pair,
    about: DatasetInfo,
    *,
    p_adjusted: float | None,
    family_size: int,
    examples: bool,
) -> Comparison:
    values = tuple(pair.by_seed.values())
    plain = Comparison(
        first=pair.first,
        second=pair.second,
        dataset=about.name,
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
        found = compare_examples(scores, pair.first, pair.second, about, pair.by_seed)
    except DataError as error:
        return dataclasses.replace(plain, examples_missing=str(error))
    whole = dataclasses.replace(plain, examples=found, examples_missing="")
    if about.task != _NOTHING_RANDOM:
        return whole
    adjusted = min(1.0, found.p_value * family_size)
    return dataclasses.replace(whole, p_value=found.p_value, p_adjusted=adjusted)
