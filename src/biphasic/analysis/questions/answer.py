"""Answers to a study's questions, by the comparisons and rules that it named beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import fmean

from biphasic.analysis.estimate import LEVEL
from biphasic.analysis.records import StudyRecords
from biphasic.analysis.scores.source import asked_of
from biphasic.analysis.scores.table import Planned, Scores
from biphasic.analysis.statistics.compare import plan_results, sum_of
from biphasic.analysis.statistics.contrast import Contrast, corrected
from biphasic.analysis.statistics.doubts import floor_tests
from biphasic.analysis.text import csv_text, listing
from biphasic.analysis.words import words
from biphasic.numerics import Part, is_other_code
from biphasic.records import (
    AskedRecord,
    ForecastRecord,
    QuestionRecord,
    RegistrationRecord,
    ResultRecord,
)
from biphasic.registration import changed_parts, fixed_part
from biphasic.store import RESULT, Store

MISSES = 0.1  # share of outcomes outside a good forecaster's 90 % intervals


@dataclass(frozen=True)
class ForecastOutcome:
    """A forecast and the measured difference, in percentage points."""

    forecast: ForecastRecord
    measured: float

    @property
    def is_covered(self) -> bool:
        """Whether the interval holds the measured difference."""
        low, high = self.forecast.interval
        return low <= self.measured <= high

    @property
    def interval_score(self) -> float:
        """Width of the interval, plus 20 points for each point that it misses; lower is better."""
        # Reference: Gneiting and Raftery 2007, "Strictly proper scoring rules, prediction, and
        # estimation", section 6.2.
        low, high = self.forecast.interval
        missed = max(low - self.measured, self.measured - high, 0.0)
        return high - low + 2 / MISSES * missed


@dataclass(frozen=True)
class AskedOutcome:
    """A comparison of a question on one dataset; incomplete if runs are missing or diverged."""

    asked: AskedRecord
    dataset: str
    label: str  # the arms, as `a − b` or `(a − b) − (c − d)`
    test: Contrast | None  # corrected for its question; None if a score is missing
    is_complete: bool
    is_at_end: bool = False  # whether a score is at an end of the rates tried, so it is provisional
    # Why it is no evidence of what pretraining adds: none of its arms is clearly above every floor.
    floor_note: str = ""
    # That the difference is within the question's margin, corrected likewise; None without either.
    level: Contrast | None = None
    # Corrected for all questions of the study, and for all questions with a margin.
    p_of_study: float | None = None
    p_level_of_study: float | None = None

    @property
    def p_corrected(self) -> float | None:
        """Corrected for its question; None without a test."""
        return self.test and self.test.p_adjusted

    @property
    def detectable(self) -> float | None:
        """The smallest difference that is clear with 80 % power, corrected."""
        return self.test and self.test.detectable

    @property
    def p_level(self) -> float | None:
        """That it is within the margin, corrected for its question; None without a test."""
        return self.level and self.level.p_adjusted

    @property
    def is_level(self) -> bool:
        """Whether it is within the question's margin."""
        return self.p_level is not None and self.p_level <= LEVEL

    @property
    def clear(self) -> int:
        """1 if it is clearly above zero, -1 if clearly below, else 0."""
        return {"higher": 1, "lower": -1}.get(self.test.verdict, 0) if self.test else 0

    @property
    def forecast(self) -> ForecastOutcome | None:
        """The forecast with its outcome; None without either."""
        if self.asked.forecast is None or self.test is None:
            return None
        return ForecastOutcome(self.asked.forecast, self.test.mean)


@dataclass(frozen=True)
class Answer:
    """A question and what its comparisons say."""

    question: QuestionRecord
    outcomes: tuple[AskedOutcome, ...]
    unit: str  # what the tests are over, as in `Scores`
    problem: str = ""  # why its arms cannot be compared

    @property
    def num_for(self) -> int:
        """Number of comparisons that are clearly above zero."""
        return sum(one.clear > 0 for one in self.outcomes)

    @property
    def num_against(self) -> int:
        """Number of comparisons that are clearly below zero."""
        return sum(one.clear < 0 for one in self.outcomes)

    @property
    def num_level(self) -> int:
        """Number of comparisons that are within the margin."""
        return sum(one.is_level for one in self.outcomes)

    @property
    def num_missing(self) -> int:
        """Number of comparisons without scores."""
        return sum(one.test is None for one in self.outcomes)

    @property
    def is_complete(self) -> bool:
        """Return whether no run is missing."""
        return all(one.is_complete for one in self.outcomes)

    @property
    def verdict(self) -> str:
        """The answer by the study's rule; "no data" until all comparisons have scores."""
        if self.num_missing or not self.outcomes:
            return "no data"
        support, against = self.question.supported_if, self.question.against_if
        most_for = against.clear_for
        is_supported = (
            self.num_for >= support.clear_for and self.num_against <= support.clear_against
        )
        counts_against = self.num_against >= against.clear_against and (
            most_for is None or self.num_for <= most_for
        )
        is_level = self.question.margin is not None and self.num_level == len(self.outcomes)
        if is_supported == counts_against:
            return "level" if is_level else "undecided"
        return ("supported" if is_supported else "counts against") + " and level" * is_level


def answer(question: QuestionRecord, sources: Sequence[Scores]) -> Answer:
    """Answer a question by the first of some scores that have all its arms."""
    # Arms with several pretraining runs are in scores of recipes, others in those of single models.
    planned = [*asked_of(question)]
    scores = next((one for one in sources if all(sum_of(one, p) for p in planned)), None)
    tests = {} if scores is None else plan_results(scores, only=question.name)
    outcomes = []
    for one, record in zip(planned, question.comparisons, strict=True):
        terms = () if scores is None else sum_of(scores, one) or ()
        for dataset in one.datasets:
            cells = [] if scores is None else [scores.get(model, dataset) for model, _ in terms]
            is_complete = bool(cells) and all(c.estimate and c.is_complete for c in cells)
            is_at_end = any(cell.is_at_end for cell in cells)
            test = tests.get((question.name, dataset, terms))
            note = ""
            if scores is not None and test is not None:
                arms = [name for name, _ in terms]
                note = floor_tests(scores, dataset).note(*arms)
            label = _label(one, scores)
            outcomes.append(
                AskedOutcome(record, dataset, label, test, is_complete, is_at_end, floor_note=note)
            )
    problem = ""
    if scores is None:
        problem = "some of its arms have several pretraining runs and others have one"
    elif any(one.is_complete and one.test is None for one in outcomes):
        problem = "some of its arms have no seed in common"
    levels = corrected([_within(one, question) for one in outcomes])
    outcomes = [replace(one, level=level) for one, level in zip(outcomes, levels, strict=True)]
    return Answer(question, tuple(outcomes), (scores or sources[0]).unit, problem)


def with_study_correction(answers: Sequence[Answer]) -> tuple[Answer, ...]:
    """Return answers with p values that are corrected for the comparisons of all of them."""
    every = [(one, answer.question) for answer in answers for one in answer.outcomes]
    tests = iter(corrected([one.test for one, _ in every]))
    with_margin = [pair for pair in every if pair[1].margin is not None]
    levels = iter(corrected([_within(*pair) for pair in with_margin]))

    def outcome(one: AskedOutcome, margin: float | None) -> AskedOutcome:
        test, level = next(tests), None if margin is None else next(levels)
        return replace(
            one,
            p_of_study=test and test.p_adjusted,
            p_level_of_study=level and level.p_adjusted,
        )

    return tuple(
        replace(of, outcomes=tuple(outcome(one, of.question.margin) for one in of.outcomes))
        for of in answers
    )


def _within(one: AskedOutcome, question: QuestionRecord) -> Contrast | None:
    """Test whether a difference is within the question's margin; None without either."""
    if one.test is None or question.margin is None:
        return None
    return one.test.within(question.margin)


def _label(planned: Planned, scores: Scores | None) -> str:
    """Write a comparison as a difference of arms' names."""
    labels = scores.labels if scores else {}

    def difference(sides: Sequence[Sequence[str]]) -> str:
        first, second = (
            next((labels[name] for name in side if name in labels), side[0]) for side in sides
        )
        return f"{first} − {second}"

    of_first = difference((planned.first, planned.second))
    return of_first if planned.minus is None else f"({of_first}) − ({difference(planned.minus)})"


_COLUMNS = (
    "question", "answer", "comparison", "dataset", "difference", "low", "high", "p_value",
    "p_corrected", "p_of_study", "num_comparisons", "clear", "detectable", "forecast",
    "forecast_low", "forecast_high", "covered", "interval_score", "unit", "complete",
    "missing_examples",
)  # fmt: skip
_OF_MARGIN = ("margin", "p_level", "p_level_of_study", "level")
CLEAR = {1: "above zero", 0: "no", -1: "below zero"}


def forecast_sentence(answers: Iterable[Answer]) -> str:
    """Count the forecasts that came true, with their mean score; empty without an outcome."""
    outcomes = [one for answer in answers for one in answer.outcomes]
    found = [one.forecast for one in outcomes if one.forecast]
    if not found:
        return ""
    is_open = not all(one.is_complete for one in outcomes if one.asked.forecast)
    covered = sum(one.is_covered for one in found)
    score = fmean(one.interval_score for one in found)
    return words().forecasts(len(found), covered, score, is_open)


def questions_csv(answers: Sequence[Answer]) -> str:
    """Write every comparison of every question, with its forecast."""
    has_margin = any(answer.question.margin is not None for answer in answers)
    columns = (*_COLUMNS, *_OF_MARGIN) if has_margin else _COLUMNS
    return csv_text(columns, (row[: len(columns)] for answer in answers for row in _rows(answer)))


def _rows(answer: Answer) -> Iterable[tuple[object, ...]]:
    margin = answer.question.margin
    for one in answer.outcomes:
        test, forecast = one.test, one.asked.forecast
        low, high = (test and test.interval) or (None, None)
        expected = (None,) * 3 if forecast is None else (forecast.difference, *forecast.interval)
        outcome = one.forecast
        yield (
            answer.question.name,
            answer.verdict,
            one.label,
            one.dataset,
            test and test.mean,
            low,
            high,
            test and test.p_value,
            one.p_corrected,
            one.p_of_study,
            test.family_size if test else "",
            CLEAR[one.clear] if test else "",
            one.detectable,
            *expected,
            "" if outcome is None else ("yes" if outcome.is_covered else "no"),
            outcome and outcome.interval_score,
            answer.unit,
            "yes" if one.is_complete else "no",
            test.missing if test else "",
            margin,
            one.p_level,
            one.p_level_of_study,
            "" if one.test is None or margin is None else ("yes" if one.is_level else "no"),
        )


def registration_sentences(records: StudyRecords) -> list[str]:
    """Describe the registration, its amendments, and whether they preceded the first score."""
    known = records.registrations
    if known is None:
        return [
            "The registration is damaged, so it proves nothing; 'biphasic study verify' says where."
        ]
    if not known:
        return ["These questions were not registered before the results."]
    sentences = [words().registered(one) for one in known]
    if _is_other_code(records, known[-1]):
        sentences.append("Scores were made by other code than was registered.")
    if changed := changed_parts(known[-1].fixed, fixed_part(records.study)):
        sentences.append(
            f"The study was changed after that ({listing([*changed])}), and not registered again."
        )
        return sentences
    return [*sentences, _order(records, known)]


def _order(records: StudyRecords, known: Sequence[RegistrationRecord]) -> str:
    """State whether the last registration preceded the first score, by the dates of results."""
    results = records.results_of(records.runs)
    written, last = sorted(_written(records, results)), known[-1]
    what = "Amended" if last.amends else "Registered"
    registered = datetime.fromisoformat(last.registered).timestamp()
    # An amendment does not undo that scores were seen.
    were_seen = any(one.num_scores for one in known) or any(date < registered for date in written)
    first = datetime.fromtimestamp(written[0], UTC) if written else None
    date = first and first.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
    are_sealed = all(result.sealed for result in results)  # not by older versions
    return words().order(what, were_seen, date, are_sealed)


def _is_other_code(records: StudyRecords, last: RegistrationRecord) -> bool:
    """Return whether a result, or a state that has one, may differ from what was registered."""
    scored = {run.arm for run in records.runs if run in records.results}
    states = [arm.state for arm in records.arms if arm.name in scored and arm.state is not None]
    made_by: dict[Part, set[tuple[str, ...]]] = {
        "pretraining": {state.code for state in states},
        "finetuning": {(one.code,) if one.code else () for one in records.results_of(records.runs)},
    }
    return any(
        is_other_code(part, codes, than=last.code[part])
        for part, of_part in made_by.items()
        for codes in of_part
    )


def _written(records: StudyRecords, results: Sequence[ResultRecord]) -> Iterator[float]:
    """Yield the dates of results: those sealed in them, or those of their files."""
    for result in results:
        if result.sealed:
            yield datetime.fromisoformat(result.sealed).timestamp()
        elif records.store is not None:
            yield (Store(records.store).folder(RESULT, result.id) / "result.json").stat().st_mtime
