"""Answers in words and as a table of values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from biphasic.analysis.questions.answer import Answer
from biphasic.analysis.text import count, csv_text, exact
from biphasic.records import QuestionRecord

_COLUMNS = (
    "question", "answer", "comparison", "dataset", "difference", "low", "high", "p_value",
    "p_corrected", "num_comparisons", "clear", "detectable", "forecast", "forecast_low",
    "forecast_high", "covered", "interval_score", "unit", "complete", "missing_examples",
)  # fmt: skip
CLEAR = {1: "above zero", 0: "no", -1: "below zero"}


def answer_sentence(answer: Answer) -> str:
    """State an answer and the counts that decide it."""
    if answer.problem:
        return f"No data: {answer.problem}."
    if answer.num_missing or not answer.outcomes:
        missing = f"{answer.num_missing} of {count(len(answer.outcomes), 'comparison')}"
        return f"No data: {missing} {'has' if answer.num_missing == 1 else 'have'} no scores yet."
    total = count(len(answer.outcomes), "comparison")
    counts = f"{answer.num_for} of {total} clearly above zero, {answer.num_against} clearly below"
    provisional = "" if answer.is_complete else " Some runs are missing, so this is provisional."
    return f"{answer.verdict.capitalize()}: {counts}.{provisional}"


def rule_sentence(question: QuestionRecord) -> str:
    """State the rule that decides, as the study wrote it."""
    support, against = question.supported_if, question.against_if
    most = "" if against.clear_for is None else f" and at most {against.clear_for} clearly above"
    return (
        f"Rule: supported if {support.clear_for} or more are clearly above zero and at most "
        f"{support.clear_against} clearly below; counts against if {against.clear_against} or more "
        f"are clearly below{most}; else undecided."
    )


def forecast_sentence(answers: Iterable[Answer]) -> str:
    """Count the forecasts that came true, with their mean score; empty without an outcome."""
    found = [one.forecast for answer in answers for one in answer.outcomes if one.forecast]
    if not found:
        return ""
    covered = sum(one.is_covered for one in found)
    expected = f"{0.9 * len(found):.1f}".removesuffix(".0")
    verb = "covers" if covered == 1 else "cover"
    score = fmean(one.interval_score for one in found)
    return (
        f"{covered} of {count(len(found), '90 % interval')} {verb} the measured difference; good "
        f"forecasts cover about {expected}. The mean interval score is {score:.1f} points "
        "(Gneiting and Raftery 2007; lower is better)."
    )


def questions_csv(answers: Sequence[Answer]) -> str:
    """Write every comparison of every question, with its forecast."""
    return csv_text(_COLUMNS, (row for answer in answers for row in _rows(answer)))


def _rows(answer: Answer) -> Iterable[tuple[object, ...]]:
    for one in answer.outcomes:
        test, forecast = one.test, one.asked.forecast
        low, high = test.contrast.interval if test else (None, None)
        expected = (None,) * 3 if forecast is None else (forecast.difference, *forecast.interval)
        outcome = one.forecast
        yield (
            answer.question.name,
            answer.verdict,
            one.label,
            one.dataset,
            *map(exact, (test and test.contrast.mean, low, high)),
            *map(exact, (test and test.contrast.p_value, one.p_corrected)),
            test.size if test else "",
            CLEAR[one.clear] if test else "",
            exact(one.detectable),
            *map(exact, expected),
            "" if outcome is None else ("yes" if outcome.is_covered else "no"),
            exact(outcome and outcome.interval_score),
            answer.unit,
            "yes" if one.is_complete else "no",
            test.contrast.missing if test else "",
        )
