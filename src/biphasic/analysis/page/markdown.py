"""Answers of questions, and a registration, as Markdown for where others see them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import jinja2

from biphasic.amounts import p_value
from biphasic.analysis.page.content import study_answers
from biphasic.analysis.questions.answer import CLEAR, forecast_sentence, registration_sentences
from biphasic.analysis.records import StudyRecords
from biphasic.analysis.text import flat
from biphasic.analysis.words import environment, words
from biphasic.errors import DataError
from biphasic.records import QuestionRecord, RegistrationRecord

_LIVE = re.compile(r"([\\|\[\]])")


def answers_page(records: StudyRecords) -> str:
    """Return the answers with their comparisons, and the forecasts with their outcomes."""
    answers = study_answers(records)
    if not answers:
        raise DataError(f"study '{records.study.name}' has no questions")
    known = " ".join(filter(None, (*registration_sentences(records), forecast_sentence(answers))))
    return _filled("answers.md.j2", answers=answers, known=known, clear=CLEAR)


def registration_page(title: str, records: Sequence[RegistrationRecord]) -> str:
    """Return the page of the last registration, with the dates of all of them."""
    last = records[-1]
    questions = [QuestionRecord.model_validate(raw) for raw in last.fixed["questions"]]
    return _filled(
        "registration.md.j2", title=title, records=records, last=last, questions=questions
    )


def _filled(template: str, **context: Any) -> str:
    return _environment().get_template(template).render(**context).rstrip("\n") + "\n"


@cache
def _environment() -> jinja2.Environment:
    made = environment()
    made.filters.update(
        cell=_cell, rule=words().rule, sentence=words().answer,
        p=lambda p: "–" if p is None else _cell(p_value(p)),
    )  # fmt: skip
    return made


def _cell(text: str) -> str:
    # Only what ends a cell or becomes a tag or a link; other marks keep the page easy to read.
    return _LIVE.sub(r"\\\1", flat(text)).replace("<", "&lt;").replace("://", "\\://")
