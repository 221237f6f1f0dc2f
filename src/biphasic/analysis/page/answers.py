"""Answers to a study's questions as Markdown, to commit beside its records."""

from __future__ import annotations

from collections.abc import Iterator

from biphasic.amounts import count
from biphasic.analysis.page.evidence import study_answers
from biphasic.analysis.questions.answer import Answer, AskedOutcome
from biphasic.analysis.questions.markdown import cell, expected
from biphasic.analysis.questions.text import (
    CLEAR,
    answer_sentence,
    forecast_sentence,
    registration_sentences,
    rule_sentence,
)
from biphasic.analysis.records import StudyRecords
from biphasic.errors import DataError

_HEADS = ("Difference", "Task", "Points (95 % interval)", "p, corrected", "Clear", "Detectable")
_OF_FORECASTS = ("Forecast (90 % interval)", "Covered")


def answers_page(records: StudyRecords) -> str:
    """Return the answers with their comparisons, and the forecasts with their outcomes."""
    answers = study_answers(records)
    if not answers:
        raise DataError(f"study '{records.study.name}' has no questions")
    known = (*registration_sentences(records), forecast_sentence(answers))
    lines = [" ".join(filter(None, known)), ""]
    for answer in answers:
        lines += _section(answer)
    return "\n".join(lines)


def _section(answer: Answer) -> Iterator[str]:
    asked = answer.question
    yield f"**{cell(asked.name)}. {cell(asked.question)}** {answer_sentence(answer)}"
    yield from (rule_sentence(asked), "")
    has_forecasts = any(one.asked.forecast for one in answer.outcomes)
    heads = (*_HEADS, *_OF_FORECASTS) if has_forecasts else _HEADS
    yield from (f"| {' | '.join(heads)} |", "|---" * len(heads) + "|")
    for one in answer.outcomes:
        cells = _measured(one, answer.unit)
        if has_forecasts:
            covered = "–" if one.forecast is None else "yes" if one.forecast.is_covered else "no"
            cells = (*cells, expected(one.asked.forecast), covered)
        yield f"| {' | '.join(map(cell, cells))} |"
    yield ""


def _measured(one: AskedOutcome, unit: str) -> tuple[str, ...]:
    if one.test is None:
        return one.label, one.dataset, "–", "–", "no score yet", "–"
    difference, (low, high) = one.test.contrast, one.test.contrast.interval
    p, detectable = one.p_corrected, one.detectable
    runs = "" if one.is_complete else f", {count(len(difference.by_seed), unit)} so far"
    return (
        one.label,
        one.dataset,
        f"{difference.mean:+.2f} ({low:+.2f} to {high:+.2f})",
        "–" if p is None else f"{p:.3f}" if p >= 0.001 else "< 0.001",
        f"{CLEAR[one.clear]}{runs}",
        "–" if detectable is None else f"{detectable:.1f}",
    )
