from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from biphasic.errors import DataError
from biphasic.tasks.rows.labels import Labels, found_labels, found_tags
from biphasic.tasks.rows.row import Row

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
    ("value", "message"),
    [
        (None, "must be a name or a whole number, not None"),
        (True, "must be a name or a whole number, not True"),
        (1.0, "must be a name or a whole number, not 1.0"),
        ("3.8", "the label 3.8 is a fraction; to predict numbers, use kind sr"),
        ("", "the label is empty"),
        ("  ", "the label is empty"),
        (" good", "the label ' good' has spaces around it"),
    ],
)
def test_values_that_are_no_labels(value, message):
    with pytest.raises(DataError, match=r"train\.csv:2: .*" + message):
        found_labels([row("a"), row(value, 2)], "label", source="train")


def test_one_label_is_nothing_to_tell_apart():
    with pytest.raises(DataError, match=r"train: .* at least two .* 'a'"):
        found_labels([row("a"), row("a")], "label", source="train")


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


@pytest.mark.parametrize(
    ("names", "is_numbered", "value"),
    [
        (("bad", "good"), True, 2),
        (("bad", "good"), True, -1),
        (("1", "2", "3"), False, 0),
        (("1", "2", "3"), True, 3),
        (("1", "2", "3"), True, "0"),
        (("bad", "good"), False, "goood"),
    ],
)
def test_unknown_labels(names, is_numbered, value):
    with pytest.raises(DataError, match=rf"train\.csv:1: .* '{value}'; L has"):
        Labels(names, "L", is_numbered).number(row(value), "label")


def test_tags_of_a_training_split_have_both_sides_of_every_type():
    rows = [Row(PATH, 1, {"tags": ["O", "B-PER"]}), Row(PATH, 2, {"tags": ["B-LOC", "I-LOC"]})]
    assert found_tags(rows, source="train").names == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    with pytest.raises(DataError, match="tag 3 at token 1 "):
        found_tags([Row(PATH, 1, {"tags": ["O", 3]})], source="train")


def test_tags_may_be_numbers_of_listed_labels():
    labels = Labels(("O", "B-X"), "L")
    assert [labels.tag(row(0), 0, value) for value in (1, "O")] == ["B-X", "O"]
    with pytest.raises(DataError, match="unknown label 2 at token 5"):
        labels.tag(row(0), 5, 2)
