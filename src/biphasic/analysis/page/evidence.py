"""The comparisons of a page, and sentences about them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from biphasic.amounts import count
from biphasic.analysis.estimate import LEVEL
from biphasic.analysis.questions.answer import Answer, answer, with_study_correction
from biphasic.analysis.records import StudyRecords
from biphasic.analysis.scores.examples import ExampleScores
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.scores.table import UNTRAINED, Scores
from biphasic.analysis.statistics.compare import Family, family_of, ranked, unscored
from biphasic.analysis.statistics.replicates import by_recipe, over_pretraining
from biphasic.analysis.tables.sentences import (
    comparison_sentence,
    coverage_sentence,
    detectable_sentence,
    examples_sentence,
    method_sentence,
    pretraining_sentence,
    selection_sentence,
    words,
)
from biphasic.analysis.text import listing, points_cell, short
from biphasic.errors import DataError

_MOST_TITLES = 4  # maximum tasks or arms that a sentence lists by name
_MOST_TIED = 2
_MOST_WINNERS = 4  # maximum arms with a sentence in the headline
# Maximum tasks and arms for which the headline lists every clear difference.
_MOST_SPELLED_OUT = 2, 5
# Maximum scores of single examples read for a page, over all arms and seeds: about 30 seconds.
_MOST_EXAMPLES = 5_000_000


@dataclass(frozen=True)
class Verdict:
    """The outcome on one dataset, as text."""

    winner: str
    score: str
    sentence: str  # the difference and its certainty
    sentences: tuple[str, ...]  # further facts


def families(scores: Scores) -> dict[str, Family]:
    """Compare all pairs of arms on each dataset and average."""
    # Single examples are within the page's limit (`within_budget`).
    return {dataset.name: family_of(scores, dataset.name) for dataset in scores.datasets}


def page_scores(records: StudyRecords) -> tuple[Scores, Scores]:
    """Return the scores of a study's arms, and of its recipes if all have several runs."""

    def read() -> tuple[Scores, Scores]:
        scores = within_budget(records, study_scores(records))
        return scores, by_recipe(scores)

    return records.once("page scores", read)


def study_families(records: StudyRecords) -> dict[str, Family]:
    """Compare a study's finished arms on each dataset, or its recipes."""
    _, recipes = page_scores(records)
    return records.once("families", lambda: families(recipes.finished))


def study_answers(records: StudyRecords) -> tuple[Answer, ...]:
    """Answer the questions that a study asked before its results."""
    # All test examples of their comparisons are read: the page's limit depends on the other arms.

    def answers() -> tuple[Answer, ...]:
        scores = study_scores(records)
        recipes = by_recipe(scores)
        sources = [recipes]
        if recipes is scores and scores.replicates:  # only some of its recipes have several runs
            sources.append(over_pretraining(scores))
        questions = records.study.questions
        return with_study_correction([answer(question, sources) for question in questions])

    return records.once("answers", answers)


def within_budget(records: StudyRecords, scores: Scores) -> Scores:
    """Return scores that read single test examples up to the page's limit."""
    # The smallest test sets come first.
    read_all = scores.examples
    num_runs = len(scores.models) * max(len(records.study.seeds), 1)
    chosen: set[str] = set()
    left = _MOST_EXAMPLES
    for task in sorted(records.tasks, key=lambda task: task.num_test):
        left -= task.num_test * num_runs
        if left >= 0:
            chosen.add(task.name)

    def read(model: str, dataset: str) -> ExampleScores:
        if read_all is None or dataset not in chosen:
            raise DataError(f"{dataset}: more test examples than a page reads")
        return read_all(model, dataset)

    return dataclasses.replace(scores, examples=read_all and read)


def verdict(scores: Scores, family: Family) -> Verdict:
    """Describe which arm is best on a dataset, by how much, and how certainly."""
    dataset, labels = family.dataset.name, scores.short_labels
    order = ranked(scores, dataset)
    if not order:
        return Verdict("No result", "–", "No arm has a score.", ())
    best = scores.finished.best(dataset)
    names = [labels[name] for name in order if name in best]
    winner, sentence = f"All {len(order)} arms are level", "They have the same mean."
    if names:
        winner = listing(names) if len(names) <= _MOST_TIED else f"{len(names)} arms are level"
        sentence = _lead(family, labels)
    if absent := unscored(scores, dataset):
        sentence += (
            f" Without a score: {listing([labels[name] for name in absent], most=_MOST_TITLES)}."
        )
    score = points_cell(scores.cells[order[0], dataset].estimate)
    details = [_against_floor(scores, family)]
    for closest in family.with_best[:1]:
        details += [detectable_sentence(closest), examples_sentence(closest)]
    details.append(selection_sentence(scores, dataset))
    return Verdict(winner, score, sentence, tuple(filter(None, details)))


def _lead(family: Family, labels: Mapping[str, str]) -> str:
    if family.is_too_large:
        return method_sentence(family)
    if not family.with_best:
        return "No other arm has a score to compare it with."
    closest, *others = family.with_best
    lead = comparison_sentence(closest, labels)
    if family.has_clear_best and others:
        return f"{lead} It is also clearly ahead of every other arm."
    level = [labels[other.second] for other in others if other.verdict == "undecided"]
    if not level:
        return lead
    also = "also " if closest.verdict == "undecided" else ""
    names = listing(level, most=_MOST_TITLES)
    return f"{lead} There is {also}no clear difference from {names}."


def _against_floor(scores: Scores, family: Family) -> str:
    """Count the trained arms that are clearly above the untrained encoder, and those unscored."""
    absent = unscored(scores, family.dataset.name)
    floors = [m.name for m in scores.models if m.is_untrained and m.name not in absent]
    trained = [m.name for m in scores.models if m.objective != UNTRAINED]
    tests = ((family.compare(name, floor) for floor in floors) for name in trained)
    verdicts = [{test.verdict for test in of_arm if test is not None} for of_arm in tests]
    if not any(found - {"unknown"} for found in verdicts):
        return ""
    clear, lacking = verdicts.count({"higher"}), len({*trained} & {*absent})
    return words().above_untrained(clear, len(trained), len(floors), lacking)


def headline(
    scores: Scores, by_dataset: Mapping[str, Family], titles: Mapping[str, str]
) -> list[str]:
    """Describe clear differences, the highest scores and missing ones, without averages."""
    # Each difference is listed only if there are few tasks and arms.
    every = [dataset.name for dataset in scores.datasets if not dataset.is_average]
    datasets = [name for name in every if scores.means(name)]
    most_tasks, most_arms = _MOST_SPELLED_OUT
    spelled_out = len(datasets) <= most_tasks and len(scores.models) <= most_arms
    sentences = []
    if spelled_out and len(scores.models) > 2:
        texts = [clear_differences(scores, by_dataset[name], titles[name]) for name in datasets]
        sentences = [text for text in texts if text]
    wins: dict[str, list[str]] = defaultdict(list)
    tied = []
    for dataset in datasets:
        if len(by_dataset[dataset].order) < 2:
            continue
        best = scores.finished.best(dataset)
        if len(best) == 1:
            wins[best.pop()].append(dataset)
        else:
            tied.append(titles[dataset])
    winners = sorted(wins, key=lambda name: -len(wins[name]))
    for name in winners[:_MOST_WINNERS]:
        clear = [titles[dataset] for dataset in wins[name] if by_dataset[dataset].has_clear_best]
        where = _all_or([titles[dataset] for dataset in wins[name]], len(every))
        surely = ", clearly ahead" if clear else ", but not clearly ahead"
        of_some = f" on {_all_or(clear, 0)}" if 0 < len(clear) < len(wins[name]) else ""
        label = scores.short_labels[name]
        sentences.append(f"{label} scores highest on {where}{surely} of every other arm{of_some}.")
    if left := [dataset for name in winners[_MOST_WINNERS:] for dataset in wins[name]]:
        others = count(len(winners) - _MOST_WINNERS, "other arm")
        sentences.append(f"{others} on {_all_or([titles[dataset] for dataset in left], 0)}.")
    if tied:
        sentences.append(f"On {_all_or(tied, len(every))} several arms share the highest mean.")
    return [*sentences, *_absences(scores, every, titles)] if datasets else []


def _absences(scores: Scores, datasets: Sequence[str], titles: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence on the arms that lack a score on some tasks."""
    lacking: dict[tuple[str, ...], list[str]] = defaultdict(list)
    absent = {name: {*unscored(scores, name)} for name in datasets}
    for model in scores.models:
        if lacks := tuple(name for name in datasets if model.name in absent[name]):
            lacking[lacks].append(scores.short_labels[model.name])
    parts = [
        f"{listing(arms, most=_MOST_TITLES)} on "
        f"{_all_or([titles[name] for name in names], len(datasets))}"
        for names, arms in lacking.items()
    ]
    if parts:
        yield f"Without a score, and so not compared: {'; '.join(parts)}."


def clear_differences(scores: Scores, family: Family, title: str) -> str:
    """Describe which arms are clearly above which on a dataset; empty if there are none."""
    below: dict[tuple[str, ...], list[str]] = defaultdict(list)
    num_pairs = num_clear = 0
    for place, arm in enumerate(family.order):
        tests = [(other, family.compare(arm, other)) for other in family.order[place + 1 :]]
        worse = tuple(other for other, test in tests if test and test.verdict == "higher")
        num_pairs, num_clear = num_pairs + len(tests), num_clear + len(worse)
        if worse:
            below[worse].append(arm)

    def named(arms: Sequence[str]) -> str:
        return listing([scores.short_labels[arm] for arm in arms])

    parts = [
        f"{named(arms)} {'is' if len(arms) == 1 else 'are'} above {named(worse)}"
        for worse, arms in below.items()
    ]
    if not parts:
        return ""
    verb = "is" if num_clear == 1 else "are"
    counted = f"{num_clear} of {count(num_pairs, 'difference')} {verb} clear"
    return f"On “{short(title)}” {counted}: {'; '.join(parts)}."


def _all_or(titles: Sequence[str], num_tasks: int) -> str:
    if len(titles) == num_tasks > 1:
        return "both tasks" if num_tasks == 2 else f"all {num_tasks} tasks"
    if len(titles) > _MOST_TITLES:
        return f"{len(titles)} of {num_tasks} tasks" if num_tasks else f"{len(titles)} tasks"
    return listing([f"“{short(title)}”" for title in titles])


def caveats(scores: Scores) -> list[str]:
    """Describe how intervals were computed, how often they cover the truth, and what they omit."""
    seeds = [
        score.estimate.num_seeds
        for (_, dataset), score in scores.cells.items()
        if score.estimate and (scores.is_replicated or not scores.dataset(dataset).is_zero_shot)
    ]
    ends = sorted({min(seeds), max(seeds)}, reverse=True) if seeds else []
    sentences = [coverage_sentence(scores.convention, number, scores.unit) for number in ends]
    if any(model.objective != UNTRAINED for model in scores.models):
        sentences.append(pretraining_sentence(scores))
    if not any(score.estimate for score in scores.cells.values()):
        return sentences
    are_finished = scores.finished.models == scores.models
    has_questions = any(planned.question for planned in scores.planned)
    sentences.append(words().clear(scores, LEVEL, are_finished, has_questions))
    sentences.append(words().tested(scores.unit if seeds else ""))
    return sentences
