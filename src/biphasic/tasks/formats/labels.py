"""Names of labels: from `labels.json`, from a task file, or from the training split."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from biphasic.config import nearest
from biphasic.errors import DataError
from biphasic.files import read_json
from biphasic.tasks.formats.examples import is_bio
from biphasic.tasks.formats.rows import Row

_WHOLE = re.compile(r"[+-]?[0-9]+")
LABEL_SEPARATOR = "|"
"""Between the labels of a text where they stand in one field."""
_FRACTION = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+)")


def read_labels(path: Path) -> tuple[str, ...]:
    """Read `labels.json`: a list of names, or an object from numbers to names.

    Raises:
        DataError: It is missing or anything else.
    """
    labels = read_json(path)
    if isinstance(labels, dict):
        if sorted(labels) != sorted(str(number) for number in range(len(labels))):
            raise DataError(f"{path}: label numbers must run from 0 to {len(labels) - 1}")
        labels = [labels[str(number)] for number in range(len(labels))]
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise DataError(f"{path}: expected a list of label names")
    check_labels(labels, where=str(path))
    return tuple(labels)


def check_labels(labels: Sequence[str], *, where: str) -> None:
    """Check that there is something to tell apart.

    Raises:
        DataError: There are fewer than two labels, or one is named twice.
    """
    if len(set(labels)) != len(labels) or len(labels) < 2:
        found = ", ".join(map(repr, labels)) or "none"
        raise DataError(f"{where}: expected at least two different label names, found {found}")


def check_tag_set(labels: Sequence[str], *, where: str) -> None:
    """Check that labels are tags of token classification.

    Raises:
        DataError: One is not in BIO2, or `O` is missing.
    """
    for label in labels:
        if not is_bio(label):
            raise DataError(f"{where}: '{label}' is not a BIO2 tag")
    if "O" not in labels:
        raise DataError(f"{where}: the tag 'O' is missing")


@dataclass(frozen=True)
class Labels:
    """The labels of a task, and how its files may write them.

    Attributes:
        names: By number.
        source: Where they come from, for messages.
        is_numbered: JSON's whole numbers are positions among the names, whatever these are.
            Otherwise, and in text files always, numbers are positions only where no name is a
            number itself.
    """

    names: tuple[str, ...]
    source: str
    is_numbered: bool = False

    def number(self, row: Row, key: str) -> int:
        """Return the number of a row's label.

        Raises:
            DataError: It is none of the labels.
        """
        value = label_of(row, key)
        is_position = _WHOLE.fullmatch(value) and not any(map(_WHOLE.fullmatch, self.names))
        if is_position or (self.is_numbered and type(row.value[key]) is int):
            if 0 <= int(value) < len(self.names):
                return int(value)
        elif value in self.names:
            return self.names.index(value)
        raise row.error(f"unknown label '{value}'; {self._told(value)}")

    def tag(self, row: Row, position: int, value: Any) -> Any:
        """Return a tag by its name where the file gives it as a number.

        Raises:
            DataError: There is no tag of this number.
        """
        if type(value) is not int:
            return value
        if not 0 <= value < len(self.names):
            raise row.error(f"unknown label {value} at token {position}; {self._told(str(value))}")
        return self.names[value]

    def _told(self, value: str) -> str:
        return f"{self.source} has {len(self.names)} labels{nearest(value, self.names)}"


def found_labels(rows: Iterable[Row], key: str, *, source: str) -> Labels:
    """Return the labels that occur in a training split, sorted: numbers by size.

    Raises:
        DataError: There are fewer than two, or one is no label.
    """
    names = {label_of(row, key) for row in rows}
    are_numbers = all(map(_WHOLE.fullmatch, names))
    ordered = sorted(names, key=lambda name: (int(name) if are_numbers else 0, name))
    check_labels(ordered, where=source)
    return Labels(tuple(ordered), source)


def single_labels(row: Row, key: str) -> list[Row]:
    """Return a row for each of the labels that a row has: a list, or one text with `|` between.

    Raises:
        DataError: It has neither.
    """
    given = row.value.get(key)
    if isinstance(given, str):
        given = given.split(LABEL_SEPARATOR) if given.strip() else []
    if not isinstance(given, list):
        raise row.error(f"'{key}' must be a list of labels, not {given!r}")
    return [replace(row, value={key: label}) for label in given]


def found_tags(rows: Iterable[Row], *, source: str) -> Labels:
    """Return `O`, and `B-` and `I-` of every type that occurs in a training split, sorted.

    Raises:
        DataError: A tag is given as a number, or there is no entity at all.
    """
    types = set()
    for row in rows:
        tags = row.value["tags"]
        for position, tag in enumerate(tags if isinstance(tags, list) else ()):
            if type(tag) is int:
                raise row.error(f"tag {tag} at token {position} is a number; list the labels")
            types.add(str(tag)[2:])
    names = ("O", *(f"{side}-{name}" for name in sorted(types - {""}) for side in "BI"))
    check_labels(names, where=source)
    return Labels(names, source)


def label_of(row: Row, key: str) -> str:
    """Return a row's label as a text.

    Raises:
        DataError: It is not a name or a whole number.
    """
    value = row.value.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise row.error(f"the label must be a name or a whole number, not {value!r}")
    label = str(value)
    if not label.strip():
        raise row.error("the label is empty")
    if label != label.strip():
        raise row.error(f"the label {label!r} has spaces around it")
    if _FRACTION.fullmatch(label):
        raise row.error(f"the label {label} is a fraction; to predict numbers, use kind sr")
    return label
