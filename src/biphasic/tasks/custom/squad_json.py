"""Reads SQuAD's JSON, versions 1.1 and 2.0 (arXiv:1606.05250, arXiv:1806.03822)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from biphasic.errors import DataError
from biphasic.tasks.formats.rows import Row, parse_json, read_lines


def read_squad(path: Path) -> Iterator[Row]:
    """Yield the questions of a file; plausible answers of unanswerable questions are ignored.

    Raises:
        DataError: The file has another structure, or a question contradicts itself.
    """
    top = parse_json("".join(line for _, line in read_lines(path)), where=str(path))
    number = 0
    for article, at_article in _items(path, top, "data", place=""):
        for paragraph, at_paragraph in _items(path, article, "paragraphs", place=at_article):
            context = paragraph.get("context")
            for question, place in _items(path, paragraph, "qas", place=at_paragraph):
                number += 1
                yield _row(Row(path, number, question, place), context)


def _items(path: Path, parent: Any, key: str, *, place: str) -> Iterator[tuple[dict, str]]:
    """Yield the objects of a list, and their positions."""
    items = parent.get(key) if isinstance(parent, dict) else None
    where = f"{path}: {place}" if place else str(path)
    if not isinstance(items, list):
        raise DataError(f"{where}: not in SQuAD's format: no list '{key}'")
    for index, item in enumerate(items):
        at = f"{place}.{key}[{index}]" if place else f"{key}[{index}]"
        if not isinstance(item, dict):
            raise DataError(f"{path}: {at}: expected a JSON object")
        yield item, at


def _row(given: Row, context: Any) -> Row:
    answers = given.value.get("answers", [])
    if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
        raise given.error("'answers' must be a list of objects")
    is_impossible = given.value.get("is_impossible")
    if is_impossible and answers:
        raise given.error("is_impossible is true, but there are answers")
    if not is_impossible and not answers:
        raise given.error('no answers; a question without any needs "is_impossible": true')
    value = {
        "question": given.value.get("question"),
        "context": context,
        "answers": joined_answers(answers),
    }
    if "id" in given.value:
        value["id"] = given.value["id"]
    return Row(given.path, given.number, value, given.place)


def joined_answers(answers: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Convert a list of `{"text", "answer_start"}` to one object with two lists."""
    return {
        "text": [answer.get("text") for answer in answers],
        "answer_start": [answer.get("answer_start") for answer in answers],
    }
