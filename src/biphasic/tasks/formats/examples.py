"""Parses rows to the examples of each kind; an unusable row is an error, never repaired."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from biphasic.errors import DataError
from biphasic.tasks.formats.rows import Row
from biphasic.tasks.formats.templates import PAIR_TEMPLATE, fill
from biphasic.tasks.records import (
    Answer,
    Kind,
    LabelledText,
    MultiLabelText,
    Question,
    ScoredText,
    TaggedSentence,
)

Record = LabelledText | MultiLabelText | ScoredText | TaggedSentence | Question


def parser_of(
    kind: Kind, *, labels: Sequence[str], template: str | None
) -> Callable[[Row], Record]:
    """Return the function that parses a row of a kind of task."""
    numbers = {label: number for number, label in enumerate(labels)}
    parsers: dict[str, Callable[[Row], Record]] = {
        "sc": partial(labelled_text, labels=labels, template=template),
        "ml": partial(multi_label_text, labels=labels, template=template),
        "sr": partial(scored_text, template=template),
        "tc": partial(tagged_sentence, numbers=numbers),
        "qa": question,
    }
    return parsers[kind]


def unique_records(
    rows: Iterable[Row], parse: Callable[[Row], Record], *, where: str
) -> tuple[Any, ...]:
    """Parse the rows of one split.

    Raises:
        DataError: There are none, an id is repeated, or a row is unusable.
    """
    records: dict[str, Record] = {}
    for row in rows:
        record = parse(row)
        if record.id in records:
            raise row.error(f"the id '{record.id}' is repeated")
        records[record.id] = record
    if not records:
        raise DataError(f"{where}: the split is empty")
    return tuple(records.values())


def labelled_text(row: Row, *, labels: Sequence[str], template: str | None) -> LabelledText:
    """Parse an example of sequence classification."""
    label = row.value.get("label")
    if type(label) is not int or not 0 <= label < len(labels):
        raise row.error(f"unknown label {label!r}; labels.json has 0 to {len(labels) - 1}")
    return LabelledText(row.id(), _text(row, template), label)


def multi_label_text(row: Row, *, labels: Sequence[str], template: str | None) -> MultiLabelText:
    """Parse an example of multi-label classification."""
    numbers = row.items("labels", int)
    for number in numbers:
        if not 0 <= number < len(labels):
            raise row.error(f"unknown label {number}; labels.json has 0 to {len(labels) - 1}")
        if numbers.count(number) > 1:
            raise row.error(f"the label {number} ('{labels[number]}') is given twice")
    return MultiLabelText(row.id(), _text(row, template), tuple(numbers))


def scored_text(row: Row, *, template: str | None) -> ScoredText:
    """Parse an example of sequence regression."""
    return ScoredText(row.id(), _text(row, template), row.real("value"))


def check_values(values: Iterable[float], *, where: str) -> None:
    """Check that the values of a training split differ.

    Raises:
        DataError: They are all the same.
    """
    if len(different := set(values)) == 1:
        raise DataError(
            f"{where}: all values of the training split are {different.pop():g}; there is nothing "
            "to learn"
        )


def _text(row: Row, template: str | None) -> str:
    if template is not None:
        return fill(template, row)
    return fill(PAIR_TEMPLATE, row) if "text_a" in row.value else row.text("text")


def tagged_sentence(row: Row, *, numbers: Mapping[str, int]) -> TaggedSentence:
    """Parse an example of token classification."""
    words, tags = row.items("tokens", str), row.items("tags", str)
    if len(words) != len(tags):
        raise row.error(f"{len(words)} tokens but {len(tags)} tags")
    if not words:
        raise row.error("the sentence has no tokens")
    for position, word in enumerate(words):
        if not word.strip():
            raise row.error(f"token {position} is empty ({word!r})", token=position)
    check_bio(row, tags)
    for position, tag in enumerate(tags):
        if tag not in numbers:
            known = f"the labels are {', '.join(numbers)}"
            raise row.error(f"unknown label '{tag}' at token {position}; {known}", token=position)
    return TaggedSentence(row.id(), tuple(words), tuple(numbers[tag] for tag in tags))


def check_bio(row: Row, tags: Sequence[str]) -> None:
    """Check that tags are valid BIO2 (IOB2): every entity starts with `B-`.

    Raises:
        DataError: They are not valid.
    """
    previous = "O"
    for position, tag in enumerate(tags):
        if not is_bio(tag):
            raise row.error(
                f"not valid BIO2: {tag!r} at token {position} is neither O, B-TYPE nor I-TYPE",
                token=position,
            )
        if tag.startswith("I-") and previous[2:] != tag[2:]:
            raise row.error(
                f"not valid BIO2: '{tag}' at token {position} follows '{previous}'; an entity "
                f"starts with 'B-{tag[2:]}' (convert files in IOB1)",
                token=position,
            )
        previous = tag


def is_bio(tag: str) -> bool:
    """Return whether a tag is `O`, `B-TYPE` or `I-TYPE`."""
    return tag == "O" or (tag[:2] in {"B-", "I-"} and len(tag) > 2)


def question(row: Row) -> Question:
    """Parse an example of question answering."""
    context = row.text("context")
    answers = row.value.get("answers")
    if not isinstance(answers, dict):
        raise row.error("'answers' must be an object with 'text' and 'answer_start'")
    given = Row(row.path, row.number, answers, row.place)
    texts, starts = given.items("text", str), given.items("answer_start", int)
    if len(texts) != len(starts):
        raise row.error(f"{len(texts)} answer texts but {len(starts)} values of answer_start")
    for text, start in zip(texts, starts, strict=True):
        if not text or start < 0 or context[start : start + len(text)] != text:
            raise row.error(
                f"the answer {text!r} is not at {start} in the context"
                f"{_other_unit(context, text, start)}"
            )
    paired = tuple(Answer(text, start) for text, start in zip(texts, starts, strict=True))
    return Question(row.id(), row.text("question"), context, paired)


def _other_unit(context: str, text: str, start: int) -> str:
    """Return a hint if the answer's start was counted in another unit than characters."""
    if not text or start < 0:
        return ""
    units = {"bytes": ("utf-8", 1), "UTF-16 units": ("utf-16-le", 2)}
    for unit, (encoding, width) in units.items():
        whole, part = context.encode(encoding), text.encode(encoding)
        if whole[start * width :].startswith(part):
            characters = len(whole[: start * width].decode(encoding))
            return (
                f"; it is if counted in {unit}, and answer_start counts characters ({characters})"
            )
    return ""
