"""Arms against floors: what an encoder that learned nothing reaches on a dataset.

Floors are the study's baselines named `floor:NAME` and its untrained encoders. Each arm is tested
against each floor over seeds, by the spread of the pair itself, and over the test examples; a
baseline has one score for all seeds. Holm's procedure corrects all pairs of a dataset together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from biphasic.amounts import rate
from biphasic.analysis.estimate import LEVEL
from biphasic.analysis.scores.table import AT_END, UNTRAINED, Scores
from biphasic.analysis.statistics.contrast import contrast
from biphasic.analysis.statistics.pair_tests import holm
from biphasic.analysis.text import listing, points_cell, short
from biphasic.facts import FLOOR, REFERENCE, baseline_label

_ROUNDING = 1e-9  # of means of equal scores


@dataclass(frozen=True)
class FloorTests:
    """The arms of a dataset, and the floors that each is not clearly above, the best first."""

    scores: Scores
    dataset: str
    floors: tuple[str, ...]  # names, the one with the highest mean first
    not_above: Mapping[str, tuple[str, ...]]

    @property
    def above(self) -> list[str]:
        """The arms that are clearly above every floor."""
        return [name for name, floors in self.not_above.items() if not floors]

    def note(self, *names: str) -> str:
        """Say that a difference of arms is no evidence, as none is clearly above every floor."""
        floors = [self.not_above.get(name, self.floors) for name in names]
        if not self.not_above or not all(floors):
            return ""
        floor = floors[0][0]
        is_below = all(self._mean(name) <= self._mean(floor) for name in names)
        label = self.scores.labels[floor]
        label += f" {AT_END}" if self.scores.get(floor, self.dataset).is_at_end else ""
        return no_evidence(label, is_below=is_below)

    def sentence(self, title: str) -> str:
        """Say which arms are clearly above every floor; empty without tests."""
        if not self.not_above:
            return ""
        labels = self.scores.short_labels
        names = listing([labels[name] for name in self.above], most=6) if self.above else "no arm"
        verb = "are" if len(self.above) > 1 else "is"
        best = self.scores.get(self.floors[0], self.dataset).estimate
        return (
            f"On “{short(title)}”, {names} {verb} clearly above every floor "
            f"(the highest: {self.scores.labels[self.floors[0]]}, {points_cell(best)})."
            f"{self._provisional()}"
        )

    def _provisional(self) -> str:
        """Say which floors are scores of a grid that ends too early; empty without one."""
        found = {name: self.scores.get(name, self.dataset) for name in self.floors}
        ends = [
            f"{self.scores.labels[name]} {AT_END} ({listing([*map(rate, sorted(score.by_rate))])})"
            for name, score in found.items()
            if score.is_at_end
        ]
        if not ends:
            return ""
        return (
            f" Provisional: validation chooses the lowest or highest rate of {listing(ends)}, so "
            "at other rates this floor may be higher."
        )

    def _mean(self, name: str) -> float:
        found = self.scores.get(name, self.dataset).estimate
        return found.mean if found else 0.0


def no_evidence(floor: str, *, is_below: bool) -> str:
    """Say that scores are no evidence, as none is clearly above a floor."""
    which = "below" if is_below else "not clearly above"
    return f"{which} {floor}: not evidence of what pretraining adds"


def baseline_sentences(
    baselines: Mapping[str, float], mean: float, *, half_width: float = 0.0
) -> Iterator[str]:
    """Yield the scores of floors and references, and whether one is not clearly above floors."""
    # All in percentage points. Without an interval, only a score that is not higher says so.
    labels = {name: baseline_label(name).partition(": ")[2] for name in baselines}
    parts = {
        prefix: [f"{labels[n]} {of:.2f}" for n, of in baselines.items() if n.startswith(prefix)]
        for prefix in (FLOOR, REFERENCE)
    }
    if any(parts.values()):
        yield "; ".join(f"{prefix[:-1]}s: {', '.join(of)}" for prefix, of in parts.items() if of)
    floors = {name: of for name, of in baselines.items() if name.startswith(FLOOR)}
    highest = max(floors.values(), default=-math.inf) + _ROUNDING
    if mean - half_width <= highest:
        floor = max(floors, key=floors.__getitem__)
        yield no_evidence(baseline_label(floor), is_below=mean <= highest)


def floor_tests(scores: Scores, dataset: str) -> FloorTests:
    """Test each arm of a dataset against each floor; empty where nothing can be tested."""
    if dataset not in scores.floor_tests:
        scores.floor_tests[dataset] = _floor_tests(scores, dataset)
    return scores.floor_tests[dataset]


def _floor_tests(scores: Scores, dataset: str) -> FloorTests:
    known = {
        model.name: found.mean
        for model in (*scores.models, *scores.baselines)
        if (found := scores.get(model.name, dataset).estimate)
    }
    untrained = [model.name for model in scores.models if model.is_untrained]
    baselines = [model.name for model in scores.baselines if model.name.startswith(FLOOR)]
    floors = sorted((n for n in (*untrained, *baselines) if n in known), key=lambda n: -known[n])
    arms = [m.name for m in scores.models if m.objective != UNTRAINED or m.is_finished_encoder]
    pairs = [(arm, floor) for arm in arms if arm in known for floor in floors]
    tests = [
        contrast(scores, {(arm, dataset): 1.0, (floor, dataset): -1.0}, blocks=())
        for arm, floor in pairs
    ]
    p_values = holm(np.array([np.nan if t is None else t.p_value for t in tests], np.float64))
    if np.isnan(p_values).all():
        return FloorTests(scores, dataset, tuple(floors), {})
    lacking: dict[str, list[str]] = {arm: [] for arm, _ in pairs}
    for (arm, floor), test, p in zip(pairs, tests, p_values, strict=True):
        if test is None or not (p <= LEVEL and test.mean > 0):  # also where there is no test
            lacking[arm].append(floor)
    return FloorTests(scores, dataset, tuple(floors), {a: tuple(f) for a, f in lacking.items()})


def floor_sentences(scores: Scores, titles: Mapping[str, str]) -> Iterator[str]:
    """Yield for each dataset which arms are clearly above every floor."""
    for dataset in scores.datasets:
        if not dataset.is_average:
            yield floor_tests(scores, dataset.name).sentence(titles[dataset.name])
