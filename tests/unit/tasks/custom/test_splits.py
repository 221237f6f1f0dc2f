from __future__ import annotations

import pytest

from biphasic.errors import DataError
from biphasic.tasks.custom.data import cut_splits
from biphasic.tasks.custom.task_file import TaskFile

ITEMS = list(range(100))


def cut(seed=0, *, fractions=None, limits=None, **splits):
    shares = {f"{split}_fraction": share for split, share in (fractions or {}).items()}
    file = TaskFile(kind="sc", seed=seed, limits=limits or {}, **shares)
    return cut_splits(splits, file, where="t.yaml")


def test_missing_splits_come_out_of_train_and_keep_the_order():
    parts = cut(train=ITEMS, fractions={"validation": 0.1, "test": 0.25})
    assert {split: len(items) for split, items in parts.items()} == {
        "validation": 10,
        "test": 25,
        "train": 65,
    }
    assert sorted(parts["train"] + parts["validation"] + parts["test"]) == ITEMS
    assert all(items == sorted(items) for items in parts.values())
    # Not simply the first or the last ones.
    assert parts["validation"][-1] - parts["validation"][0] > 50


def test_the_choice_follows_the_seed():
    fractions = {"validation": 0.2}
    first = cut(train=ITEMS, fractions=fractions)
    assert first == cut(train=ITEMS, fractions=fractions)
    assert first != cut(1, train=ITEMS, fractions=fractions)


def test_the_test_split_does_not_depend_on_the_validation_split():
    alone = cut(train=ITEMS, fractions={"test": 0.2})
    assert cut(train=ITEMS, fractions={"test": 0.2, "validation": 0.3})["test"] == alone["test"]


def test_limits_choose_at_random_and_a_larger_one_keeps_the_smaller():
    small = cut(train=ITEMS, test=ITEMS, limits={"train": 10})
    large = cut(train=ITEMS, test=ITEMS, limits={"train": 20, "test": 500})
    assert len(small["train"]) == 10
    assert small["test"] == large["test"] == ITEMS
    assert set(small["train"]) < set(large["train"])
    assert small["train"] == sorted(small["train"]) != ITEMS[:10]


def test_a_split_that_would_be_empty():
    with pytest.raises(DataError, match=r"t\.yaml: the fractions leave no example for validation"):
        cut(train=[1, 2, 3], fractions={"validation": 0.1})
    with pytest.raises(DataError, match="no example for train"):
        cut(train=[1, 2], fractions={"validation": 0.5, "test": 0.49})
