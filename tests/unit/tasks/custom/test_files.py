from __future__ import annotations

import gzip

import pytest

from custom_tasks import refused, write_beir, write_splits, write_yaml


def test_files_are_read_by_their_usual_names(store, custom):
    write_splits(custom, ".csv", "text,label\na,x\nb,y\n")
    (custom / "valid.tsv").write_text("text\tlabel\n")
    refused(store, f"sc:{custom}", "dev.csv or valid.tsv.; set one in a task file")
    (custom / "valid.tsv").unlink()
    (custom / "test.csv").rename(custom / "tests.csv")
    refused(store, f"sc:{custom}", "mood: no test split .*or take it from the training split")
    packed = gzip.compress((custom / "tests.csv").read_bytes())
    (custom / "test.csv.gz").write_bytes(packed)
    assert store.task(f"sc:{custom}").num_examples("test") == 2


def test_a_missing_corpus_or_training_split(store, custom):
    write_beir(custom, "dev", "test")
    refused(store, f"ir:{custom}", r"no train split \(qrels/train.tsv\).*or use kind zs")
    (custom / "corpus.jsonl").unlink()
    refused(store, f"zs:{custom}", r"no corpus \(corpus.jsonl\)")


def test_limits_of_a_split_that_is_not_there(store, custom):
    write_beir(custom, "test")
    text = "kind: zs\nfolder: .\nlimits: {validation: 5}"
    refused(store, write_yaml(custom, text), "'limits.validation': the task has no validation")
    assert store.said == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: sc\ntrain: none.csv", r"no validation split \(validation, valid, val, dev with"),
        ("kind: sc\nfolder: .\ntest: none.csv", r"none\.csv: no such file; .*task\.yaml names it"),
        ("kind: sc\nfolder: .\ntest: task.yaml", r"task\.yaml: a file of kind sc ends in \.jsonl"),
        ("kind: sc\nfolder: none", "none: no such folder"),
        ("kind: sc\nfolder: .\ntest_fraction: 0.2", "test_fraction is set, but .*test"),
        (
            "kind: sc\nfolder: .\ncolumns: {label: mood}",
            "no column 'mood'; there are 'text', 'label'",
        ),
        (
            "kind: sc\nfolder: .\nlabels: [x, y, x]",
            "the task file: expected at least two different",
        ),
    ],
)
def test_task_files_that_do_not_fit_the_files(store, custom, text, message):
    write_splits(custom, ".csv", "text,label\na,x\nb,y\n")
    refused(store, write_yaml(custom, text), message)
