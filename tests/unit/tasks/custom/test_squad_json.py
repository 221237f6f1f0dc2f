from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from biphasic.errors import DataError
from biphasic.tasks.custom.squad_json import read_squad
from biphasic.tasks.formats.examples import question
from biphasic.tasks.records import Answer, Question

CONTEXT = "Ein 😀 von Anna."
ANSWERED = {"id": "q1", "question": "Who?", "answers": [{"text": "Anna", "answer_start": 10}]}
IMPOSSIBLE = {
    "id": "q2",
    "question": "When?",
    "answers": [],
    "plausible_answers": [{"text": "Ein", "answer_start": 0}],
    "is_impossible": True,
}


def read(tmp_path: Path, *questions: Any) -> list[Question]:
    path = tmp_path / "dev.json"
    article = {"title": "T", "paragraphs": [{"context": CONTEXT, "qas": list(questions)}]}
    path.write_text(json.dumps({"version": "v2.0", "data": [article]}), encoding="utf-8")
    return [question(row) for row in read_squad(path)]


def refused(tmp_path: Path, message: str, *questions: Any) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, *questions)


def test_reads_both_versions(tmp_path):
    first, second = read(tmp_path, ANSWERED, IMPOSSIBLE)
    assert first == Question("q1", "Who?", CONTEXT, (Answer("Anna", 10),))
    assert second == Question("q2", "When?", CONTEXT, ())


@pytest.mark.parametrize(
    ("start", "unit"),
    # "Ein 😀 von " is 10 characters, 11 units of UTF-16 and 13 bytes of UTF-8.
    [(13, "bytes"), (11, "UTF-16 units")],
)
def test_offsets_that_were_counted_in_another_unit(tmp_path, start, unit):
    moved = ANSWERED | {"answers": [{"text": "Anna", "answer_start": start}]}
    place = re.escape("dev.json: data[0].paragraphs[0].qas[1]: ")
    message = f"{place}the answer 'Anna' is not at {start} .*counted in {unit},.*.10."
    refused(tmp_path, message, IMPOSSIBLE, moved)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"answers": []}, 'no answers; .*"is_impossible": true'),
        ({"is_impossible": True}, "is_impossible is true, but there are answers"),
        ({"answers": {"text": []}}, "'answers' must be a list of objects"),
        ({"answers": [{"text": "Anna"}]}, "'answer_start' must be a list of int"),
        (
            {"answers": [{"text": "Anna", "answer_start": 9}]},
            r"the answer .Anna. is not at 9 in the context$",
        ),
        ({"question": None}, "'question' must be a text, not None"),
        ({"id": None}, "'id' must be a text or a whole number, not None"),
    ],
)
def test_questions_that_cannot_be_used(tmp_path, changed, message):
    refused(tmp_path, re.escape("data[0].paragraphs[0].qas[0]: ") + message, ANSWERED | changed)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "no list 'data'"),
        ('{"data": {}}', "no list 'data'"),
        ('{"data": [{"paragraphs": [3]}]}', r"data\[0\]\.paragraphs\[0\]: expected a JSON object"),
        ('{"data": [{"title": "x"}]}', r"data\[0\]: not in SQuAD's format: no list 'paragraphs'"),
        ('{"data": [', "not valid JSON"),
        ("", "not valid JSON"),
    ],
)
def test_other_structures(tmp_path, content, message):
    path = tmp_path / "dev.json"
    path.write_text(content)
    with pytest.raises(DataError, match=re.escape(str(path)) + ".*" + message):
        list(read_squad(path))
