"""The scores, comparisons and answers of a page, and the caveats of its intervals."""

from __future__ import annotations

import dataclasses

from biphasic.analysis.estimate import LEVEL
from biphasic.analysis.questions.answer import Answer, answer, with_study_correction
from biphasic.analysis.records import StudyRecords
from biphasic.analysis.scores.examples import ExampleScores
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.scores.table import UNTRAINED, Scores
from biphasic.analysis.statistics.compare import Family, family_of
from biphasic.analysis.statistics.replicates import by_recipe, over_pretraining
from biphasic.analysis.words import coverage_sentence, words
from biphasic.errors import DataError

# Maximum scores of single examples read for a page, over all arms and seeds: about 30 seconds.
_MOST_EXAMPLES = 5_000_000


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
        sentences.append(words().pretraining(scores))
    if not any(score.estimate for score in scores.cells.values()):
        return sentences
    are_finished = scores.finished.models == scores.models
    has_questions = any(planned.question for planned in scores.planned)
    sentences.append(words().clear(scores, LEVEL, are_finished, has_questions))
    sentences.append(words().tested(scores.unit if seeds else ""))
    return sentences
