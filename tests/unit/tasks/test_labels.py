from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from biphasic.errors import DataError
from biphasic.rows import Row
from biphasic.tasks.rows import Labels, found_labels, found_tags

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


CAFES = ("caf\N{LATIN SMALL LETTER E WITH ACUTE}", "cafe\N{COMBINING ACUTE ACCENT}")
TWINS = [CAFES, ("ab", "a\N{ZERO WIDTH SPACE}b"), ("ab", "a\N{SOFT HYPHEN}b"), ("a b", "a\xa0b")]


def written(folder, content):
    for split in ("train", "validation", "test"):
        lines = (json.dumps(row) for row in content(split))
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize("twins", TWINS, ids=ascii)
def test_labels_that_look_equal_are_one(store, custom, twins):
    def content(split):
        return [{"text": f"{split} {name}", "label": name} for name in (*twins, "tea")]

    task = store.task(f"sc:{written(custom, content)}")
    assert task.labels == tuple(sorted({twins[0], "tea"}))
    assert len({example.answer for example in task.splits["test"][:2]}) == 1
    several = custom.parent / "several"
    several.mkdir()
    rows = [{"text": "t", "labels": [name, "x"]} for name in twins]
    task = store.task(f"ml:{written(several, lambda _: rows)}")
    assert task.labels == tuple(sorted({twins[0], "x"}))


@pytest.mark.parametrize("twins", TWINS, ids=ascii)
def test_types_of_entities_that_look_equal_are_one(store, custom, twins):
    def content(split):
        return [{"tokens": ["a", "b"], "tags": [f"B-{name}", f"I-{name}"]} for name in twins]

    task = store.task(f"tc:{written(custom, content)}")
    assert task.labels == ("O", f"B-{twins[0]}", f"I-{twins[0]}")


@pytest.mark.parametrize("twins", TWINS, ids=ascii)
def test_two_definitions_that_look_equal_are_refused(store, custom, twins):
    written(custom, lambda split: [{"text": f"{split}{n}", "label": n} for n in (0, 1)])
    (custom / "labels.json").write_text(json.dumps(twins))
    with pytest.raises(DataError, match=r"labels\.json.*two different label names"):
        store.task(f"sc:{custom}")


@pytest.mark.parametrize("twins", TWINS, ids=ascii)
def test_ids_of_retrieval_that_look_equal_are_one(store, custom, twins):
    one, other = twins
    (custom / "corpus.jsonl").write_text(json.dumps({"_id": one, "text": "a"}))
    (custom / "queries.jsonl").write_text(json.dumps({"_id": other, "text": "b"}))
    (custom / "qrels").mkdir()
    judged = f"query-id\tcorpus-id\tscore\n{one}\t{other}\t1\n"
    (custom / "qrels/test.tsv").write_text(judged, encoding="utf-8")
    assert store.task(f"zs:{custom}").qrels["test"] == {one: {one: 1}}
    texts = (json.dumps({"_id": key, "text": "a"}) for key in twins)
    (custom / "corpus.jsonl").write_text("\n".join(texts))
    with pytest.raises(DataError, match=r"corpus\.jsonl:2: the id .* is repeated"):
        store.task(f"zs:{custom}")


@pytest.mark.parametrize(
    ("labels", "note"),
    [
        (["Pos", "pos"], "the labels 'Pos' and 'pos' are two"),
        (["01", "1"], "the labels '01' and '1' are two"),
        (["pos", 1, "neg"], r"some labels are numbers \(1\), others are names"),
    ],
)
def test_labels_that_are_nearly_equal_or_mixed_are_said(store, custom, labels, note):
    store.task(
        f"sc:{written(custom, lambda split: [{'text': f'{split}{n}', 'label': n} for n in labels])}"
    )
    assert any(re.search(f"warning: mood: {note}", line) for line in store.said)


def test_labels_without_a_training_example_and_empty_texts_are_said(store, custom):
    """Such as those of files that count from 1."""
    written(custom, lambda split: [{"text": f"{split}" * (n > 1), "label": n} for n in (1, 2)])
    (custom / "labels.json").write_text('["a", "b", "c"]')
    store.task(f"sc:{custom}")
    assert any(re.search("no training example has the labels 'a';", line) for line in store.said)
    assert "warning: mood: 1 of 2 train texts are empty" in store.said
    store.said.clear()
    written(custom, lambda split: [{"text": f"{split}{n}", "label": n} for n in (0, 1, 2)])
    store.task(f"sc:{custom}")
    assert not any("warning" in line for line in store.said)
