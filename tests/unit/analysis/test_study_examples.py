"""Scores of single examples of a study, as fine-tunings leave them in `scores.parquet`."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_study import ARMS, TASKS, FakeStudy, seal_again
from made_scores import compare_arms

from biphasic.analysis.records import load_records
from biphasic.analysis.report import write_report
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.words import words
from biphasic.errors import DataError

NUM_TEST = 50


@pytest.fixture
def study(tmp_path):
    folder, store = FakeStudy(
        steps=40, arms=ARMS[1:3], tasks=TASKS[:2], learning_rates=(1e-4, 2e-4), seeds=(0, 1, 2)
    ).write(tmp_path)
    draw = np.random.default_rng(0)
    for path in sorted(store.glob("finetunes/*/result.json")):
        write_examples(path, draw)
    return folder, store


def write_examples(path, draw):
    """Write examples, and into the result the score that they give."""
    result = json.loads(path.read_text())
    # Validation comes first and must not be counted.
    splits = ["validation"] * 7 + ["test"] * NUM_TEST
    columns = {"split": splits, "id": [f"x{n}" for n in range(len(splits))]}
    if result["kind"] == "sc":
        right = draw.random(len(splits)) < 0.7
        columns |= {"score": right.astype(float), "correct": right}
        score = float(right[7:].mean())
    else:
        expected, predicted = draw.integers(1, 4, (2, len(splits)))
        right = np.minimum(expected, predicted) - 1
        columns |= {"num_entities": expected, "num_predicted": predicted, "num_right": right}
        score = float(2 * right[7:].sum() / (expected[7:].sum() + predicted[7:].sum()))
    result["test"] = {result["metric"]: score}
    path.write_text(json.dumps(result))
    pq.write_table(pa.table(columns), path.parent / "scores.parquet")
    seal_again(path.parent)


def selected(store, scores, arm="mlm", task="pydocs-sc"):
    """Return the folder of the run that stands for seed 0."""
    by_seed = scores.get(arm, task).by_seed
    for path in sorted(store.glob("finetunes/*/result.json")):
        result = json.loads(path.read_text())
        value = (result["test"] or {}).get(result["metric"], -1)
        if result["task"] == task and abs(100 * value - by_seed[0]) < 1e-9 and result["seed"] == 0:
            return path.parent
    raise AssertionError("no such run")


@pytest.mark.parametrize("task", ["pydocs-sc", "pydocs-tc"])
def test_examples_of_the_selected_runs_give_their_scores(study, task):
    scores = study_scores(load_records(*study))
    found = scores.examples("mlm", task)
    assert len(found.ids) == NUM_TEST
    by_seed = scores.get("mlm", task).by_seed
    assert {seed: 100 * run.value for seed, run in found.by_seed.items()} == pytest.approx(by_seed)
    comparison = compare_arms(scores, "mlm", "clm", task)
    assert comparison.num_examples == NUM_TEST
    assert comparison.num_pairs == 3


def spoil_bytes(folder):
    content = (folder / "scores.parquet").read_bytes()
    (folder / "scores.parquet").write_bytes(content[:-20] + b"x" * 20)


def spoil_sealed(folder):
    spoil_bytes(folder)
    seal_again(folder)


def rewritten(change):
    """Return what changes a table of examples in a folder, and seals the folder again."""

    def spoil(folder):
        path = folder / "scores.parquet"
        pq.write_table(change(pq.read_table(path)), path)
        seal_again(folder)

    return spoil


def all_wrong(table):
    wrong = pa.array([False] * len(table))
    return table.set_column(table.column_names.index("correct"), "correct", wrong)


def other_ids(table):
    return table.set_column(1, "id", pa.array([f"y{n}" for n in range(len(table))]))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "scores.parquet").unlink(), "scores.parquet: missing"),
        (spoil_bytes, "SHA-256 differs"),
        (spoil_sealed, "scores.parquet is damaged"),
        (rewritten(all_wrong), "its examples give 0.000000"),
        (rewritten(other_ids), "other test examples than its first seed"),
        (rewritten(lambda table: table.drop_columns(["correct"])), "no correct"),
    ],
    ids=["missing", "changed", "damaged", "other-scores", "other-ids", "no-column"],
)
def test_examples_that_cannot_be_trusted_are_named_and_not_used(study, spoil, message):
    scores = study_scores(load_records(*study))
    spoil(selected(study[1], scores))
    comparison = compare_arms(study_scores(load_records(*study)), "mlm", "clm", "pydocs-sc")
    assert comparison.num_examples == 0
    assert message in comparison.missing


def test_a_cell_without_a_run_has_no_examples(study):
    scores = study_scores(load_records(*study))
    with pytest.raises(DataError, match="nobody on pydocs-sc: "):
        scores.examples("nobody", "pydocs-sc")


def test_a_model_whose_runs_all_diverged_has_no_score_of_examples(tmp_path):
    diverged = {("mlm", "pydocs-sc", 1e-4, 0)}
    study = FakeStudy(
        steps=40, arms=ARMS[1:3], learning_rates=(1e-4,), seeds=(0,), diverged=diverged
    )
    scores = study_scores(load_records(*study.write(tmp_path)))
    with pytest.raises(DataError, match="mlm on pydocs-sc: no run has a score"):
        scores.examples("mlm", "pydocs-sc")


@pytest.mark.parametrize(
    ("columns", "num"),
    [
        ({"cluster": lambda n: f"c{n // 5}"}, 10),
        ({"paradigm": lambda n: f"p{n // 5}"}, 10),
        # The first five have none, and are independent.
        ({"paradigm": lambda n: f"p{n // 5}" if n >= 5 else ""}, 9 + 5),
        ({"paradigm": lambda _: ""}, NUM_TEST),
        ({"paradigm": lambda _: "p"}, NUM_TEST),
        ({"paradigm": lambda n: f"p{n // 5}", "cluster": lambda n: f"c{n // 25}"}, 2),
    ],
    ids=["cluster", "paradigm", "some-without", "without", "one-paradigm", "both"],
)
def test_the_clusters_of_results_count_as_independent(study, columns, num):
    folder, store = study
    for path in sorted(store.glob("finetunes/*/scores.parquet")):
        table = pq.read_table(path)
        for name, value in columns.items():
            values = pa.array([value(number) for number in range(-7, NUM_TEST)])
            table = table.append_column(name, values)
        pq.write_table(table, path)
        seal_again(path.parent)
    one = compare_arms(study_scores(load_records(folder, store)), "clm", "mlm", "pydocs-sc")
    assert (one.num_examples, one.num_clusters) == (NUM_TEST, num)
    write_report(folder, store)
    with (folder / "report/comparisons.csv").open(encoding="utf-8", newline="") as stream:
        of_task = [row for row in csv.DictReader(stream) if row["dataset"] == "pydocs-sc"]
    assert {(row["num_examples"], row["num_clusters"]) for row in of_task} == {
        (str(NUM_TEST), str(num))
    }
    named = f" in {num} clusters" if num < NUM_TEST else "."
    assert f"{NUM_TEST} test examples{named}" in words().examples(one)
