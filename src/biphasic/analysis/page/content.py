"""The page's facts, scores, comparisons and answers, the rows of its tables, and its caveats."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

from biphasic.amounts import amount, count, duration, rate
from biphasic.analysis.claims import ClaimResult
from biphasic.analysis.claims.claim import tally
from biphasic.analysis.estimate import LEVEL, Estimate
from biphasic.analysis.questions.answer import Answer, answer, with_study_correction
from biphasic.analysis.records import ArmData, Problem, Status, StudyRecords
from biphasic.analysis.scores.examples import ExampleScores
from biphasic.analysis.scores.reference import ReferenceValues
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.scores.table import END_NOTE, PERCENT, UNTRAINED, DatasetInfo, Score, Scores
from biphasic.analysis.statistics.compare import Family, ModelComparison, families_of, sum_of
from biphasic.analysis.statistics.doubts import cell_doubt, floor_tests
from biphasic.analysis.statistics.replicates import by_recipe, over_pretraining
from biphasic.analysis.statistics.variance import SpreadSource, variance_split
from biphasic.analysis.tables.results import finetunings, trained_segments, zero_shot_runs
from biphasic.analysis.text import csv_text, plain, score_text
from biphasic.analysis.words import coverage_sentence, selection_gains, words
from biphasic.errors import DataError
from biphasic.records import ZERO_SHOT_SEED, RunRecord


@dataclass(frozen=True)
class Column:
    """One dataset or average on the page."""

    scores: Scores
    dataset: DatasetInfo
    first_cell: int  # place of its first score in the page's data
    reference: ReferenceValues  # the paper's values

    def score(self, model: str) -> Score:
        """Return the score of a model."""
        return self.scores.get(model, self.dataset.name)

    def cell(self, model: str) -> int:
        """Return the place of a score in the page's data."""
        return self.first_cell + [*self.scores.labels].index(model) * len(self.scores.datasets)

    def paper(self, model: str) -> Estimate | None:
        """Return the paper's value for the same training."""
        return self.reference.get((model, self.dataset.name))

    @cached_property
    def best(self) -> set[str]:
        """The models that are marked as the best."""
        return self.scores.finished.best(self.dataset.name)

    @cached_property
    def doubts(self) -> dict[str, str]:
        """Why the score of a model is not a valid result, or empty."""
        return {name: cell_doubt(self.scores, name, self.dataset) for name in self.scores.labels}


def columns_of(scores: Scores, reference: ReferenceValues, *, first_cell: int = 0) -> list[Column]:
    """Return a column for each dataset and average, in order."""
    return [
        Column(scores, dataset, first_cell + place, reference)
        for place, dataset in enumerate(scores.datasets)
    ]


def dataset_titles(records: StudyRecords, scores: Scores) -> Mapping[str, str]:
    """Return the title of each dataset and average."""
    titles = {task.name: task.title for task in records.tasks}
    return {dataset.name: titles.get(dataset.name, dataset.name) for dataset in scores.datasets}


def paper_text(estimate: Estimate | None) -> str:
    """Format a value of the paper as in its tables, `paper: 87.85 (0.13)`; empty if none."""
    return "" if estimate is None else f"paper: {score_text(estimate)}"


_STATUS: tuple[str, ...] = get_args(Status)


def store_link(page: Path, store: Path) -> str:
    """Return the relative link from a page to a store."""
    return quote(Path(os.path.relpath(store, page.parent)).as_posix())


def run_data(
    records: StudyRecords, sources: Sequence[Scores], paper: ReferenceValues, store: str
) -> dict[str, Any]:
    """Return arms, datasets and the runs of each cell, for the page's script."""
    # A run is `[seed, index of its rate, status, validation, test, whether it is selected, id]`,
    # with scores in percent points; an average over datasets and a recipe have the scores of their
    # seeds instead. `sources` are the scores of arms, then those of recipes if they are not the
    # same; `store` is the link to the store.
    scores = sources[0]
    models = [(source, model) for source in sources for model in source.models]
    rates = sorted({run.learning_rate for run in records.runs})
    titles = dataset_titles(records, scores)
    groups, selected = records.by_cell, records.selected
    cells = []
    for source, model in models:
        for dataset in source.datasets:
            key = model.name, dataset.name
            entry: dict[str, Any] = {}
            if key in selected and source is scores:
                chosen = {result.id for result in selected[key]}
                runs = [
                    _run(records, run, dataset.metric, rates=rates, chosen=chosen)
                    for run in groups.get(key, ())
                ]
                entry["runs"] = sorted(runs, key=lambda run: run[:2])  # by seed, then by rate
            elif by_seed := source.get(*key).by_seed:
                entry["seeds"] = [[seed, round(value, 2)] for seed, value in by_seed.items()]
                entry["unit"] = source.unit.capitalize()
            if reference := paper_text(paper.get(key)):
                entry["paper"] = reference
            cells.append(entry)
    return {
        "arms": [plain(model.label) for _, model in models],
        "datasets": [
            [plain(titles[dataset.name]), dataset.metric_facts.title] for dataset in scores.datasets
        ],
        "rates": [rate(value) if value else "none" for value in rates],
        "status": _STATUS,
        "records": f"{store}/finetunes",
        "cells": cells,
    }


def _run(
    records: StudyRecords, run: RunRecord, metric: str, *, rates: Sequence[float], chosen: set[str]
) -> list[Any]:
    scores = records.scores_of(run, metric)
    return [
        run.seed,
        rates.index(run.learning_rate),
        _STATUS.index(records.status(run)),
        *(None if score is None else round(PERCENT * score, 2) for score in scores),
        int(run.id in chosen),
        run.id,
    ]


_KINDS = {
    "missing": "Missing",
    "diverged": "Diverged",
    "damaged": "Damaged",
    "mixed": "Inconsistent",
    "code": "Made by other code",
}
_MOST_STATES = 20
# Maximum comparisons of one dataset, the closest first; the others are counted.
MOST_COMPARISONS = 24


def facts(records: StudyRecords) -> list[tuple[str, str]]:
    """Return the numbers at the top of the page."""
    segments = [segment for segment, _ in trained_segments(records)]
    results = finetunings(records)
    seconds = sum(part.seconds for part in (*segments, *results, *zero_shot_runs(records)))
    numbers = [_counted(records.arms, "arm"), _counted(records.tasks, "task")]
    if is_finetuned(records):
        seeds = _counted(records.study.seeds, "fine-tuning seed")
        numbers += [seeds, _counted(results, "fine-tuning")]
    if segments:
        numbers.append((amount(sum(part.tokens for part in segments)), "tokens trained"))
    return [*numbers, (duration(seconds), "compute time")]


def is_finetuned(records: StudyRecords) -> bool:
    """Return whether models are fine-tuned for any task."""
    return not all(task.is_zero_shot for task in records.tasks)


def _counted(things: Sequence[object], noun: str) -> tuple[str, str]:
    number, _, plural = count(len(things), noun).partition(" ")
    return number, plural


def gaps(records: StudyRecords, arm: str, dataset: str) -> str:
    """Return the runs that a score lacks."""
    scores = study_scores(records)
    members = scores.members(scores.dataset(dataset))
    runs = [run for one in members for run in records.by_cell.get((arm, one.name), ())]
    all_ended = runs and all(run in records.results for run in runs)
    why = "runs diverged" if all_ended else "runs missing"
    expected = len(records.seeds_of(arm, dataset))
    if not expected:
        return why
    return f"{len(records.selected[arm, dataset])} of {count(expected, 'seed')}, {why}"


def common_peak(records: StudyRecords) -> float | None:
    """Return the peak rate of all arms without a rate of their own; None if there are none."""
    recipe = records.study.provenance.get("recipe")
    schedule = recipe.get("learning_rate") if isinstance(recipe, dict) else None
    peak = schedule.get("peak") if isinstance(schedule, dict) else None
    has_it = any(arm.record.peak == peak and not arm.record.is_tuned for arm in records.arms)
    return peak if isinstance(peak, float) and has_it else None


def rate_rows(records: StudyRecords) -> Iterator[tuple[ArmData, list[list[str]]]]:
    """Yield each arm with its chosen rates for each tuned task, as `2e-4 ×3`."""
    tuned = [task.name for task in records.tasks if not task.is_zero_shot]
    for arm in records.arms:
        selected = (records.selected[arm.name, task] for task in tuned)
        rates = ((one.learning_rate for one in runs if one.learning_rate) for runs in selected)
        counts = map(Counter, rates)  # those of a probe are empty: its rate is 0
        yield arm, [[f"{rate(value)} ×{n}" for value, n in sorted(of.items())] for of in counts]


def planned_apart(family: Family) -> list[ModelComparison]:
    """Return the planned comparisons of a dataset that no question has."""
    scores, name = family.scores, family.dataset.name
    asked = {sum_of(scores, one) for one in scores.planned if one.question and name in one.datasets}
    return [one for one in family.of_plan if ((one.first, 1.0), (one.second, -1.0)) not in asked]


def methods(families: Iterable[Family], titles: Mapping[str, str]) -> dict[str, list[str]]:
    """Return how pairs are tested, with the tasks where they are."""
    found = defaultdict[str, list[str]](list)
    for family in families:
        if family.with_best and (sentence := words().method(family)):
            found[sentence].append(titles[family.dataset.name])
    return found


def problem_groups(problems: Sequence[Problem]) -> dict[str, list[str]]:
    """Return the texts of problems by the title of their kind; unknown kinds keep their name."""
    texts: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for problem in problems:
        texts.setdefault(problem.kind, []).append(problem.text)
    return {_KINDS.get(kind, kind.capitalize()): found for kind, found in texts.items() if found}


def problems_csv(problems: Sequence[Problem]) -> str:
    """Write every problem with its kind."""
    return csv_text(("kind", "text"), ((problem.kind, problem.text) for problem in problems))


def provenance(records: StudyRecords) -> list[tuple[str, list[tuple[str, str]]]]:
    """Flatten provenance into groups of names and values; scalars at the top come first."""
    study = records.study
    seeds = ", ".join(map(str, study.seeds))
    if {run.seed for run in study.runs} - {ZERO_SHOT_SEED, *study.seeds}:
        seeds += " (of the first pretraining run; each has its own)"
    general = [("name", study.name), ("statistics", f"convention '{study.convention}'")]
    if is_finetuned(records):
        rates = ", ".join(rate(value) for value in study.learning_rates)
        general += [("learning rates", rates), ("fine-tuning seeds", seeds)]
    general += [
        (f"{arm.label}: attention in fine-tuning", arm.record.attention)
        for arm in records.arms
        if arm.record.attention
    ]
    groups = []
    for name, value in study.provenance.items():
        if isinstance(value, dict):
            groups.append((_readable(name), list(_flatten(value))))
        else:
            general.append((_readable(name), _value(value)))
    if len(records.arms) <= _MOST_STATES:
        general += [(f"{arm.label}: state", arm.record.state) for arm in records.arms]
    return [("study", general), *groups]


def _flatten(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        path = f"{prefix}{_readable(str(name))}"
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{path} · ")
        else:
            yield path, _value(value)


def _value(value: Any) -> str:
    if isinstance(value, dict) and value:
        return "; ".join(f"{path} {text}" for path, text in _flatten(value))
    if isinstance(value, list | tuple):
        are_groups = len(value) > 1 and any(isinstance(item, dict) for item in value)
        return ", ".join(f"({_value(item)})" if are_groups else _value(item) for item in value)
    if value in (None, "", {}):
        return "–"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _readable(name: str) -> str:
    return name.replace("_", " ")


# Maximum scores of single examples read for a page, over all arms and seeds: about 30 seconds.
_MOST_EXAMPLES = 5_000_000


def page_scores(records: StudyRecords) -> tuple[Scores, Scores]:
    """Return the scores of a study's arms, and of its recipes if all have several runs."""

    def read() -> tuple[Scores, Scores]:
        scores = within_budget(records, study_scores(records))
        return scores, by_recipe(scores)

    return records.once("page scores", read)


def study_families(records: StudyRecords) -> dict[str, Family]:
    """Compare a study's finished arms on each dataset, or its recipes."""
    _, recipes = page_scores(records)
    # Single examples are within the page's limit (`within_budget`).
    return records.once("families", lambda: families_of(recipes.finished))


def planned_families(records: StudyRecords) -> list[tuple[Scores, Family]]:
    """Return the families whose planned comparisons are listed, with the scores of all models."""
    scores, recipes = page_scores(records)

    def listed() -> list[tuple[Scores, Family]]:
        families = study_families(records)
        found = [(recipes, family) for family in families.values()]
        if recipes is scores and scores.replicates:  # only some of its recipes have several runs
            over_runs = over_pretraining(scores)
            for name, family in families_of(over_runs.finished).items():
                known = families[name].planned
                planned = {pair: of for pair, of in family.planned.items() if pair not in known}
                found.append((over_runs, dataclasses.replace(family, order=(), planned=planned)))
        return found

    return records.once("planned families", listed)


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
        score.num_seeds
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
    is_at_end = any(score.is_at_end for score in scores.cells.values())
    return [*sentences, END_NOTE] if is_at_end else sentences


def floors_of(scores: Scores, titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the arms of tasks that are clearly above every floor, and the highest floor."""
    # `ends` are floors from a grid of rates that ends too early, with its rates.
    tasks = []
    for dataset in scores.datasets:
        tests = floor_tests(scores, dataset.name)
        if dataset.is_average or not tests.not_above:
            continue
        cells = {floor: scores.get(floor, dataset.name) for floor in tests.floors}
        tasks.append({
            "title": titles[dataset.name],
            "above": [scores.short_labels[name] for name in tests.above],
            "floor": scores.labels[tests.floors[0]].removeprefix("floor: "),
            "has_marks": any(tests.not_above.values()),
            "score": cells[tests.floors[0]].estimate,
            "ends": {
                scores.labels[floor]: sorted(cell.by_rate)
                for floor, cell in cells.items()
                if cell.is_at_end
            },
        })  # fmt: skip
    return tasks


def floor_note(scores: Scores, dataset: str, *names: str) -> str:
    """Say that a score, or a difference of two, is no evidence: none is clearly above a floor."""
    tests = floor_tests(scores, dataset)
    return tests.note(*names) if len(names) > 1 or {*names} <= tests.not_above.keys() else ""


def spread_rows(
    scores: Scores, families: Mapping[str, Family]
) -> Iterator[tuple[str, Sequence[SpreadSource], Mapping[str, float]]]:
    """Yield each dataset with the sources of its spread, and the gains by a rate per seed."""
    for name, family in families.items():
        if family.with_best:
            yield name, variance_split(scores, name), selection_gains(scores, name)


def claims_hint(results: Sequence[ClaimResult]) -> str:
    """Count the verdicts of claims."""
    counts = {verdict: n for verdict, n in tally(results).items() if n and verdict != "no data"}
    if not counts:
        return "none of the reference study's claims can be checked on this study"
    parts = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
    return f"{count(sum(counts.values()), 'claim')} of the reference study: {parts}"
