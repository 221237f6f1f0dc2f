from __future__ import annotations

import gzip

import pytest

from own_tasks import (
    refused,
    write_beir,
    write_splits,
    write_yaml,
)


def test_files_found_by_their_usual_names(store, own):
    write_splits(own, ".csv", "text,label\na,x\nb,y\n")
    (own / "valid.tsv").write_text("text\tlabel\n")
    refused(store, f"sc:{own}", "dev.csv or valid.tsv.; set one in a task file")
    (own / "valid.tsv").unlink()
    (own / "test.csv").rename(own / "tests.csv")
    refused(store, f"sc:{own}", "mood: no test split .*or take it from the training split")
    packed = gzip.compress((own / "tests.csv").read_bytes())
    (own / "test.csv.gz").write_bytes(packed)
    assert store.task(f"sc:{own}").num_examples("test") == 2


def test_a_missing_corpus_or_training_split(store, own):
    write_beir(own, "dev", "test")
    refused(store, f"ir:{own}", r"no train split \(qrels/train.tsv\).*or use kind zs")
    (own / "corpus.jsonl").unlink()
    refused(store, f"zs:{own}", r"no corpus \(corpus.jsonl\)")


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
def test_task_files_that_do_not_fit_the_files(store, own, text, message):
    write_splits(own, ".csv", "text,label\na,x\nb,y\n")
    refused(store, write_yaml(own, text), message)
