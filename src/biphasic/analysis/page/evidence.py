"""What won, by how much, and how sure that is, in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from biphasic.analysis.estimate import Estimate, overlap
from biphasic.analysis.load import StudyRecords
from biphasic.analysis.page.cards import UNTRAINED, best_of, ranked, score_text
from biphasic.analysis.score_table import DatasetInfo, Scores
from biphasic.analysis.text import count, listing, short

_MOST_TITLES = 4
"""Tasks that a sentence of the headline names one by one."""


@dataclass(frozen=True)
class Verdict:
    """The outcome on one dataset."""

    winner: str
    score: str
    sentence: str
    """By how much, and how sure."""
    sentences: tuple[str, ...]
    """What else is known."""


def verdict(scores: Scores, dataset: DatasetInfo) -> Verdict:
    """Say which arm is best on a dataset, by how much, and how sure that is."""
    order = ranked(scores, dataset.name)
    if not order:
        return Verdict("No result", "–", "No fine-tuning has finished on this task.", ())
    best = best_of(scores, dataset.name)
    labels = {model.name: short(model.label) for model in scores.models}
    winner = listing([labels[name] for name, _ in order if name in best])
    rest = [entry for entry in order if entry[0] not in best]
    return Verdict(
        winner=winner,
        score=score_text(order[0][1]),
        sentence=_lead(order, rest, labels, is_shared=len(best) > 1),
        sentences=tuple(_against_floor(scores, dict(order))),
    )


def _lead(
    order: Sequence[tuple[str, Estimate]],
    rest: Sequence[tuple[str, Estimate]],
    labels: dict[str, str],
    *,
    is_shared: bool,
) -> str:
    shared = "They share the highest mean. " if is_shared else ""
    if not rest:
        return shared.strip()
    second, other = rest[0]
    gap = order[0][1].mean - other.mean
    return f"{shared}{gap:.2f} points ahead of {labels[second]}; {_overlap(order[0][1], other)}."


def _overlap(first: Estimate, second: Estimate) -> str:
    return {
        True: "their 95 % intervals overlap",
        False: "their 95 % intervals do not overlap",
        None: "without two seeds each there is no interval to compare",
    }[overlap(first, second)]


def _against_floor(scores: Scores, found: dict[str, Estimate]) -> list[str]:
    """Count the trained arms that are clearly above the untrained encoder."""
    floors = [m.name for m in scores.models if m.objective == UNTRAINED and m.name in found]
    trained = [m.name for m in scores.models if m.objective != UNTRAINED and m.name in found]
    if not floors or not trained or found[floors[0]].half_width is None:
        return []
    floor = found[floors[0]]
    clear = [
        name for name in trained
        if overlap(found[name], floor) is False and found[name].mean > floor.mean
    ]  # fmt: skip
    verb = "is" if len(clear) == 1 else "are"
    return [
        f"{len(clear)} of {count(len(trained), 'trained arm')} {verb} above the untrained encoder "
        "without overlap of intervals."
    ]


def headline(scores: Scores, titles: dict[str, str]) -> list[str]:
    """Say which arms score highest on which tasks, a sentence per arm; averages left out."""
    datasets = [dataset for dataset in scores.datasets if not dataset.is_average]
    wins: dict[str, list[str]] = defaultdict(list)
    for dataset in datasets:
        for name in best_of(scores, dataset.name):
            wins[name].append(f"“{short(titles[dataset.name])}”")
    return [
        f"{short(model.label)} scores highest on {_all_or(wins[model.name], len(datasets))}."
        for model in scores.models
        if model.name in wins
    ]


def _all_or(titles: list[str], num_tasks: int) -> str:
    if len(titles) == num_tasks > 1:
        return f"all {num_tasks} tasks"
    if len(titles) > _MOST_TITLES:
        return f"{len(titles)} of {num_tasks} tasks"
    return listing(titles)


def caveats(records: StudyRecords) -> list[str]:
    """Say what the intervals do not cover."""
    found = []
    if any(not arm.is_untrained for arm in records.arms):
        found.append(
            "Each arm was pretrained once: intervals cover fine-tuning seeds, not the luck of "
            "pretraining. Intervals that overlap do not prove arms equal."
        )
    return found
