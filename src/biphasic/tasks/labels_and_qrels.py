"""Rows of task files: label names, and retrieval files in the layout of BEIR.

Label names are from `labels.json`, a task file, or the training split. Reference for BEIR: Thakur
et al. 2021, arXiv:2104.08663.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from biphasic.config import nearest
from biphasic.errors import DataError
from biphasic.files import read_json
from biphasic.rows import Row, plain_name, rows

_HEADER = ("query-id", "corpus-id", "score")
_MOST_DIGITS = 9
Qrels = dict[str, dict[str, int]]


def read_texts(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield id, title and text of each document or query."""
    seen: set[str] = set()
    for row in rows(path):
        if "_id" not in row.value:
            raise row.lacks("_id")
        key = plain_name(row.id("_id"))
        if key in seen:
            raise row.error(f"the id '{key}' is repeated")
        seen.add(key)
        yield key, row.text("title", ""), row.text("text")
    if not seen:
        raise DataError(f"{path}: the file is empty")


def read_qrels(path: Path, *, queries: Container[str], corpus: Container[str]) -> Qrels:
    """Read the judgements of one split: scores by document, for each judged query."""
    qrels: Qrels = {}
    row = None
    for row in rows(path, "tsv"):
        if (*row.value,) != _HEADER:
            break
        query, document = (plain_name(row.value[name]) for name in _HEADER[:2])
        score = row.value["score"]
        # `int` also takes digits of other scripts, underscores and spaces.
        if not (score.isascii() and score.isdecimal() and len(score) <= _MOST_DIGITS):
            raise row.error(f"expected a score of 0 or more as a whole number, not {score!r}")
        if query not in queries:
            raise row.error(f"unknown query '{query}'; it is not in the queries")
        if document not in corpus:
            raise row.error(f"unknown document '{document}'; not in the corpus")
        earlier = qrels.setdefault(query, {}).setdefault(document, int(score))
        if earlier != int(score):
            raise row.error(
                f"query '{query}' and document '{document}' have the score {earlier} already"
            )
    if row is None or (*row.value,) != _HEADER:
        names = ", ".join(_HEADER)
        raise DataError(f"{path}:1: the header must be {names}, tab-separated, above judgements")
    if not any(score for judged in qrels.values() for score in judged.values()):
        raise DataError(f"{path}: the split is empty (no relevant document)")
    return qrels


def write_qrels(path: Path, judgements: Iterable[tuple[str, str, int]]) -> None:
    """Write the judgements of one split: query, document and score."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write("\t".join(_HEADER) + "\n")
        for query, document, score in judgements:
            stream.write(f"{query}\t{document}\t{score}\n")


WHOLE = re.compile(r"[+-]?[0-9]+")
_LABEL_SEPARATOR = "|"  # separator of several labels in one field
_FRACTION = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+)")


def read_labels(path: Path) -> tuple[str, ...]:
    """Read `labels.json`: a list of names, or an object that maps numbers to names."""
    labels = read_json(path)
    if isinstance(labels, dict):
        if sorted(labels) != sorted(str(number) for number in range(len(labels))):
            raise DataError(f"{path}: label numbers must run from 0 to {len(labels) - 1}")
        labels = [labels[str(number)] for number in range(len(labels))]
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise DataError(f"{path}: expected a list of label names")
    labels = tuple(map(plain_name, labels))
    check_labels(labels, where=str(path))
    return labels


def check_labels(labels: Sequence[str], *, where: str) -> None:
    """Check that there are at least two different labels, as `plain_name` returns them."""
    if len(set(labels)) != len(labels) or len(labels) < 2:
        names = ", ".join(map(repr, labels)) or "none"
        raise DataError(f"{where}: expected at least two different label names, found {names}")


@dataclass(frozen=True)
class Labels:
    """The labels of a task, and how its files encode them."""

    names: tuple[str, ...]
    source: str  # where they are defined, for error messages
    is_numbered: bool = False
    is_listed: bool = True  # in an order that somebody wrote; else numbers mean no positions

    def number(self, row: Row, key: str) -> int:
        """Return the number of a row's label."""
        given = row.value.get(key)
        if type(given) is str and (place := self._plain.get(given)) is not None:
            return place
        value = _label_of(row, key)
        is_whole = bool(WHOLE.fullmatch(value))
        # If names are numbers themselves, such as ratings from 1 to 5, a number is a name and no
        # position.
        is_position = is_whole and not any(map(WHOLE.fullmatch, self.names))
        if is_position and not self.is_listed:
            raise row.error(
                f"the label {value} is a number, but {self.source} has names; list the labels in "
                "order (labels.json, or labels in a task file)"
            )
        if is_position or (self.is_numbered and type(row.value[key]) is int):
            if 0 <= int(value) < len(self.names):
                return int(value)
        elif value in self.names:
            return self.names.index(value)
        raise row.error(f"unknown label '{value}'; {self._hint(value)}")

    @cached_property
    def _plain(self) -> dict[str, int]:
        """The numbers of names that every check below passes as they are: of nearly all rows."""
        return {
            name: place
            for place, name in enumerate(self.names)
            if name and name == plain_name(name) and not _FRACTION.fullmatch(name)
        }

    def tag(self, row: Row, position: int, value: Any) -> Any:
        """Return a tag by name; convert it if the file gives it as a number."""
        if type(value) is not int:
            return plain_name(value) if isinstance(value, str) else value
        if not 0 <= value < len(self.names):
            raise row.error(f"unknown label {value} at token {position}; {self._hint(str(value))}")
        return self.names[value]

    def _hint(self, value: str) -> str:
        return f"{self.source} has {len(self.names)} labels{nearest(value, self.names)}"


def found_labels(rows: Iterable[Row], key: str, *, source: str) -> Labels:
    """Return the labels of a training split, sorted; numbers by value."""
    rows = list(rows)
    names = {_label_of(row, key) for row in rows}
    are_numbers = all(map(WHOLE.fullmatch, names))
    # By value: as texts, 10 would come before 2.
    ordered = sorted(names, key=lambda name: (int(name) if are_numbers else 0, name))
    check_labels(ordered, where=f"{rows[0].path}: {source}" if rows else source)
    return Labels(tuple(ordered), source, is_listed=False)


def single_labels(row: Row, key: str) -> list[Row]:
    """Return one row per label of a row: its labels are a list, or one text joined with `|`."""
    labels = row.value.get(key)
    if isinstance(labels, str):
        labels = labels.split(_LABEL_SEPARATOR) if labels.strip() else []
    if not isinstance(labels, list):
        raise row.error(f"'{key}' must be a list of labels, not {labels!r}")
    return [row.with_value({key: label}) for label in labels]


def found_tags(rows: Sequence[Row], *, source: str) -> Labels:
    """Return `O`, and `B-` and `I-` of every type in a training split, sorted."""
    types = set()
    for row in rows:
        tags = row.value["tags"]
        for position, tag in enumerate(tags if isinstance(tags, list) else ()):
            if type(tag) is int:
                raise row.error(f"tag {tag} at token {position} is a number; list the labels")
        types.update(plain_name(tag)[2:] for tag in row.items("tags", str))
    names = ("O", *(f"{side}-{name}" for name in sorted(types - {""}) for side in "BI"))
    check_labels(names, where=f"{rows[0].path}: {source}")
    return Labels(names, source)


def _label_of(row: Row, key: str) -> str:
    """Return a row's label as a text."""
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
    if not (name := plain_name(label)):
        raise row.error(f"the label {label!r} has only signs that nobody sees")
    return name
