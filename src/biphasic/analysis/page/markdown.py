"""Answers of questions, and a registration, as Markdown for where others see them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from biphasic.amounts import count, p_value
from biphasic.analysis.page.evidence import study_answers
from biphasic.analysis.questions.answer import (
    CLEAR,
    Answer,
    AskedOutcome,
    answer_sentence,
    forecast_sentence,
    registration_sentences,
    rule_sentence,
)
from biphasic.analysis.records import StudyRecords
from biphasic.analysis.text import flat, listing
from biphasic.errors import DataError
from biphasic.records import ForecastRecord, QuestionRecord, RegistrationRecord

_HEADS = (
    "Difference", "Task", "Points (95 % interval)", "p, corrected", "p, whole study", "Clear",
    "Detectable",
)  # fmt: skip
_LIVE = re.compile(r"([\\|\[\]])")
_OF_MARGIN = ("Level", "p of level, corrected", "p of level, whole study")
_OF_POWER = ("Power: clear, if as forecast", "Power: level, if zero")
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
    yield f"**{_cell(asked.name)}. {_cell(asked.question)}** {answer_sentence(answer)}"
    yield from (rule_sentence(asked), "")
    has_forecasts = any(one.asked.forecast for one in answer.outcomes)
    heads = (*_HEADS, *_OF_MARGIN) if asked.within else _HEADS
    heads = (*heads, *_OF_FORECASTS) if has_forecasts else heads
    rows = []
    for one in answer.outcomes:
        cells = _measured(one, answer.unit)
        if asked.within:
            p_values = map(_p_cell, (one.p_level, one.p_level_of_study))
            cells = (*cells, asked.within if one.is_level else "no", *p_values)
        if has_forecasts:
            covered = "–" if one.forecast is None else "yes" if one.forecast.is_covered else "no"
            cells = (*cells, _expected(one.asked.forecast), covered)
        rows.append(cells)
    yield from _table(heads, rows)


def _measured(one: AskedOutcome, unit: str) -> tuple[str, ...]:
    if one.test is None:
        return one.label, one.dataset, "–", "–", "–", "no score yet", "–"
    difference = one.test.contrast
    points = f"{difference.mean:+z.2f}"
    if difference.interval:
        low, high = difference.interval
        points += f" ({low:+z.2f} to {high:+z.2f})"
    detectable = one.detectable
    p_values = (one.p_corrected, one.p_of_study)
    runs = "" if one.is_complete else f", {count(len(difference.by_seed), unit)} so far"
    return (
        one.label,
        one.dataset,
        points,
        *map(_p_cell, p_values),
        f"{CLEAR[one.clear]}{runs}",
        "–" if detectable is None else f"{detectable:.1f}",
    )


def _p_cell(p: float | None) -> str:
    return "–" if p is None else p_value(p)


def registration_page(title: str, records: Sequence[RegistrationRecord]) -> str:
    """Return the page of the last registration, with the dates of all of them."""
    return "\n".join(_lines(title, records)) + "\n"


def _lines(title: str, records: Sequence[RegistrationRecord]) -> Iterator[str]:
    last = records[-1]
    yield from (f"# Registration: {_cell(title)}", "")
    for one in records:
        what = "Amended" if one.amends else "Registered"
        changes = f"; changed: {listing([*one.changed])}" if one.changed else ""
        scores = f"scores of its arms then: {one.num_scores}"
        yield f"- {what} {one.registered}, hash `{one.id}`, {scores}{changes}"
    yield ""
    for raw in last.fixed["questions"]:
        yield from _question(QuestionRecord.model_validate(raw), last)
    yield from ("## Arms", "")
    yield from _table(("Arm", "Steps", "State"), (
        (
            f"{name}, {arm['attention']}" if "attention" in arm else name,
            str(arm.get("steps", 0)),
            f"`{arm['state'][:12]}`",
        )
        for name, arm in last.fixed["arms"].items()
    ))  # fmt: skip
    yield from ("## Tasks", "")
    yield from _table(("Task", "Metric", "Train", "Test"), (
        (name, task["metric"], str(task["num_train"]), str(task["num_test"]))
        for name, task in last.fixed["tasks"].items()
    ))  # fmt: skip
    rates = ", ".join(f"{rate:g}" for rate in last.fixed["grid"]["learning_rates"])
    seeds = ", ".join(map(str, last.fixed["seeds"]))
    yield f"Fine-tuning rates: {rates}. Fine-tuning seeds: {seeds}."
    yield from ("", "Code: " + ", ".join(f"{name} `{value}`" for name, value in last.code.items()))


def _question(question: QuestionRecord, record: RegistrationRecord) -> Iterator[str]:
    yield from (f"## {_cell(question.name)}. {_cell(question.question)}", "")
    yield from (rule_sentence(question), "")
    known = {
        (one.comparison, one.task): one
        for one in record.detectable
        if one.question == question.name
    }
    rows = []
    for place, one in enumerate(question.comparisons):
        label = f"{one.first[0]} − {one.second[0]}"
        if one.minus:
            label = f"({label}) − ({one.minus[0][0]} − {one.minus[1][0]})"
        for task in one.tasks:
            found = known.get((place, task))
            cells = (label, task, _expected(one.forecast), f"{found.points:.1f}" if found else "–")
            powers = (found.power_of_forecast, found.power_of_level) if found else (None, None)
            shares = ("–" if power is None else f"{100 * power:.0f} %" for power in powers)
            rows.append((*cells, *shares) if question.within else cells)
    heads = ("Difference", "Task", _OF_FORECASTS[0], "Detectable")
    yield from _table((*heads, *_OF_POWER) if question.within else heads, rows)
    what = "“Detectable” and power assume" if question.within else "“Detectable” assumes"
    note = f"{what} {record.spread_from}." if known else "No spread was assumed."
    yield from (f"Percentage points. {note}", "")


def _table(heads: Sequence[str], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield from (f"| {' | '.join(heads)} |", "|---" * len(heads) + "|")
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"
    yield ""


def _expected(forecast: ForecastRecord | None) -> str:
    if forecast is None:
        return "–"
    low, high = forecast.interval
    return f"{forecast.difference:+g} ({low:+g} to {high:+g})"


def _cell(text: str) -> str:
    # Only what ends a cell or becomes a tag or a link; other marks keep the page easy to read.
    return _LIVE.sub(r"\\\1", flat(text)).replace("<", "&lt;").replace("://", "\\://")
