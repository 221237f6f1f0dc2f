from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from biphasic.errors import DataError
from biphasic.rows import Row
from biphasic.tasks.labels_and_qrels import Labels, found_labels, found_tags

PATH = Path("train.csv")


def row(label: Any, number: int = 1) -> Row:
    return Row(PATH, number, {"label": label})


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["b", "a", "b"], ("a", "b")),
        (["10", "9", "-1"], ("-1", "9", "10")),
        ([10, 9], ("9", "10")),
        (["10", "9", "x"], ("10", "9", "x")),
        (["very good", "bad"], ("bad", "very good")),
    ],
)
def test_labels_of_a_training_split_are_sorted(values, names):
    assert found_labels([row(value) for value in values], "label", source="train").names == names


@pytest.mark.parametrize(
    ("names", "is_numbered", "values"),
    [
        # Names as they are, and positions as numbers or in text files.
        (("bad", "good"), False, {"good": 1, 1: 1, "1": 1}),
        (("bad", "good"), True, {"good": 1, 1: 1, "1": 1}),
        # Where names are numbers, a number is a name, ...
        (("1", "2", "3"), False, {"1": 0, 1: 0, 3: 2, "3": 2}),
        # ... but labels.json numbers labels, as in a task folder.
        (("1", "2", "3"), True, {0: 0, 1: 1, "1": 0}),
    ],
)
def test_numbers_and_names(names, is_numbered, values):
    labels = Labels(names, "labels.json", is_numbered)
    assert {value: labels.number(row(value), "label") for value in values} == values


def test_numbers_are_no_positions_among_names_that_nobody_listed():
    found = found_labels([row("yes"), row("no")], "label", source="the training split")
    assert found.number(row("yes"), "label") == 1
    for value in (0, "1"):
        with pytest.raises(DataError, match=rf"train.csv:1: the label {value} is a number, but "):
            found.number(row(value), "label")


def test_tags_of_a_training_split_have_both_sides_of_every_type():
    rows = [Row(PATH, 1, {"tags": ["O", "B-PER"]}), Row(PATH, 2, {"tags": ["B-LOC", "I-LOC"]})]
    assert found_tags(rows, source="train").names == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    with pytest.raises(DataError, match="tag 3 at token 1 "):
        found_tags([Row(PATH, 1, {"tags": ["O", 3]})], source="train")
