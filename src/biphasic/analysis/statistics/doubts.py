"""Why scores say little: they are not valid results, or an encoder that learned nothing has them.

Floors are the study's baselines named `floor:NAME` and its untrained encoders. Each arm is tested
against each floor over seeds, by the spread of the pair itself, and over the test examples; a
baseline has one score for all seeds. Holm's procedure corrects all pairs of a dataset together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.scores.table import (
    AT_END,
    END_NOTE,
    DatasetInfo,
    ModelInfo,
    Scores,
)
from biphasic.analysis.statistics.compare import welch
from biphasic.analysis.statistics.contrast import contrast, corrected
from biphasic.analysis.statistics.paired import NO_SPREAD
from biphasic.analysis.text import flat, listing
from biphasic.analysis.words import words
from biphasic.errors import DataError
from biphasic.facts import FLOOR, REFERENCE, MetricFacts, baseline_label

_MOST_PLACES = 5


def doubt(estimate: Estimate | None, metric: MetricFacts, *, blank: str = "") -> str:
    """Return why a mean in percentage points is not a valid result; empty if it is valid."""
    if estimate is None or estimate.half_width is None:
        return ""
    if estimate.half_width > NO_SPREAD:
        is_wide = 2 * estimate.half_width > (200 if metric.is_signed else 100)
        return "the interval is wider than the scale" if is_wide else ""
    if blank or estimate.mean:
        return blank or "every seed has the same score"
    return metric.at_zero


def cell_doubt(scores: Scores, model: str, dataset: DatasetInfo) -> str:
    """Return why a score is not a valid result, using its predictions; empty if it is valid."""
    score = scores.get(model, dataset.name)
    if score.by_seed is None:  # published means are not checked
        return ""
    text = doubt(score.estimate, dataset.metric_facts)
    if not text or scores.examples is None or len(set(score.by_seed.values())) > 1:
        return text
    try:
        runs = scores.examples(model, dataset.name).by_seed.values()
    except DataError:
        return text
    blanks = {run.blank for run in runs}
    blank = blanks.pop() if len(blanks) == 1 else ""
    return doubt(score.estimate, dataset.metric_facts, blank=blank)


def doubt_notes(
    scores: Scores,
    *,
    models: Sequence[ModelInfo] | None = None,
    datasets: Sequence[DatasetInfo] | None = None,
) -> list[str]:
    """Explain the sign of scores at an end of the rates, and list scores that are not valid."""
    places, is_at_end = dict[str, list[str]](), False
    for dataset in scores.datasets if datasets is None else datasets:
        for model in scores.models if models is None else models:
            if text := cell_doubt(scores, model.name, dataset):
                places.setdefault(text, []).append(f"{flat(model.label)} on {flat(dataset.name)}")
            is_at_end |= scores.get(model.name, dataset.name).is_at_end
    invalid = [
        f"No result, as {text}: {listing(names, most=_MOST_PLACES)}."
        for text, names in places.items()
    ]
    return [*([END_NOTE] if is_at_end else []), *invalid]


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
        # A floor is above no floor; nothing is known of what was not tested.
        known = {**dict.fromkeys(self.floors, self.floors), **self.not_above}
        floors = [known.get(name, ()) for name in names]
        if not self.not_above or not all(floors):
            return ""
        floor = floors[0][0]
        is_below = all(self._mean(name) < self._mean(floor) for name in names)
        return words().no_evidence(self._label(floor), is_below)

    def _label(self, floor: str) -> str:
        is_at_end = self.scores.get(floor, self.dataset).is_at_end
        return f"{self.scores.labels[floor]} {AT_END}" if is_at_end else self.scores.labels[floor]

    def _mean(self, name: str) -> float:
        found = self.scores.get(name, self.dataset).estimate
        return found.mean if found else 0.0


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
    highest = max(floors.values(), default=-math.inf)
    if mean - half_width <= highest + _ROUNDING:
        floor = max(floors, key=floors.__getitem__)
        meaning = "the model may have learned nothing"
        yield words().no_evidence(baseline_label(floor), mean < highest - _ROUNDING, meaning)


def floor_tests(scores: Scores, dataset: str) -> FloorTests:
    """Test each arm of a dataset against each floor; empty where nothing can be tested."""
    if dataset not in scores.floor_tests:
        scores.floor_tests[dataset] = _floor_tests(scores, dataset)
    return scores.floor_tests[dataset]


def _floor_tests(scores: Scores, dataset: str) -> FloorTests:
    known = {
        model.name: found
        for model in (*scores.models, *scores.baselines)
        if (found := scores.get(model.name, dataset).estimate)
    }
    untrained = [model.name for model in scores.models if model.is_untrained]
    baselines = [model.name for model in scores.baselines if model.name.startswith(FLOOR)]
    floors = [name for name in (*untrained, *baselines) if name in known]
    floors.sort(key=lambda name: -known[name].mean)
    arms = [model.name for model in scores.models if not model.is_untrained]
    pairs = [(arm, floor) for arm in arms if arm in known for floor in floors]
    # No pooled variance: what a run does to all arms does not cancel against a floor. Without a
    # seed in common, means are compared, as in families.
    tests = corrected([
        contrast(scores, {(arm, dataset): 1.0, (floor, dataset): -1.0}, blocks=())
        or welch(known[arm], known[floor], scores.convention)
        for arm, floor in pairs
    ])  # fmt: skip
    verdicts = [test.verdict for test in tests if test]
    if {*verdicts} <= {"unknown"}:
        return FloorTests(scores, dataset, tuple(floors), {})
    lacking: dict[str, list[str]] = {arm: [] for arm, _ in pairs}
    for (arm, floor), verdict in zip(pairs, verdicts, strict=True):
        if verdict != "higher":
            lacking[arm].append(floor)
    return FloorTests(scores, dataset, tuple(floors), {a: tuple(f) for a, f in lacking.items()})
