"""What is left of a run on disk."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from biphasic.files import read_json
from biphasic.records import ResultRecord, parse_record
from biphasic.store import is_complete
from biphasic.tasks.finetune import FinetuneRun, encode_task, finetune_group, write_result
from biphasic.tasks.protocol import FinetuneProtocol

TEXT, FLOAT, INT, BOOL = pa.string(), pa.float64(), pa.int64(), pa.bool_()
COLUMNS = {
    "sc": {"correct": BOOL, "label": TEXT, "predicted": TEXT},
    "ml": {
        "correct": BOOL,
        "label": pa.list_(TEXT),
        "predicted": pa.list_(TEXT),
        "num_labels": INT,
        "num_predicted": INT,
        "num_right": INT,
    },
    "sr": {"value": FLOAT, "predicted": FLOAT},
    "tc": {
        "sentence_token_f1": FLOAT,
        "num_entities": INT,
        "num_predicted": INT,
        "num_right": INT,
        "num_lost_words": INT,
    },
    "qa": {
        "f1": FLOAT,
        "exact_match": FLOAT,
        "is_answerable": BOOL,
        "predicted": TEXT,
        "cluster": TEXT,
    },
    "ir": {"ndcg_at_10": FLOAT, "mrr_at_10": FLOAT, "recall_at_100": FLOAT},
}


@pytest.fixture
def finetune(model, tokenizer, tiny_tasks, tiny_protocol):
    """Fine-tune on a tiny task for two steps; return the record and the scores of the splits."""

    def run(task, learning_rate=1e-3):
        protocol = tiny_protocol.model_copy(update={"max_steps": 2})
        if isinstance(task, str):
            task = tiny_tasks[task]()
        task = encode_task(task, tokenizer, protocol=protocol)
        run = FinetuneRun(task, learning_rate, 0, protocol, ids=("abc",), state="f00")
        [[result]] = finetune_group(model, [run])
        return result

    return run


@pytest.mark.parametrize("kind", COLUMNS)
def test_results_are_written_complete_and_as_the_reports_read_them(finetune, tmp_path, kind):
    made, scores = finetune(kind)
    folder = tmp_path / "finetunes" / "abc"
    write_result(folder, made, scores)
    assert is_complete(folder)
    raw = read_json(folder / "result.json")
    record = parse_record(ResultRecord, raw, where="result.json")
    assert record.sealed is not None
    assert record.model_copy(update={"sealed": None}) == made
    assert (record.id, record.state, record.task, record.steps) == ("abc", "f00", f"tiny-{kind}", 2)
    assert record.validation == scores["validation"].metrics
    assert record.test == scores["test"].metrics
    assert FinetuneProtocol(**record.protocol).max_steps == 2
    assert record.protocol["max_steps"] == 2
    assert raw["trained_on"] is None
    assert len(raw["examples_sha256"]) == 64
    assert set(raw["num_truncated"]) >= {"validation", "test"}
    assert set(raw["by_type"]) == ({"validation", "test"} if kind == "tc" else set())
    for split, by_type in raw["by_type"].items():
        assert by_type == scores[split].by_type
        assert set(by_type) >= {"LOC", "PER"}
        assert set(by_type["LOC"]) == {"precision", "recall", "f1", "support"}

    # Every example has one row with the columns of its kind.
    table = pq.read_table(folder / "scores.parquet")
    common = {"split": TEXT, "id": TEXT, "score": FLOAT}
    assert dict(zip(table.schema.names, table.schema.types, strict=True)) == {
        **common,
        **COLUMNS[kind],
    }
    read = table.to_pydict()
    validation, test = scores["validation"], scores["test"]
    assert read["split"] == ["validation"] * len(validation.ids) + ["test"] * len(test.ids)
    assert read["id"] == [*validation.ids, *test.ids]
    assert read["score"] == [*validation.scores, *test.scores]
    for name in COLUMNS[kind]:
        assert read[name] == [*validation.columns[name], *test.columns[name]]


@pytest.mark.parametrize("kind", ["sc", "tc", "qa"])
def test_results_name_the_clusters_of_rows(finetune, tiny_tasks, tmp_path, kind):
    task = tiny_tasks[kind]()
    clusters = {"test": {example.id: "d1" for example in task.splits["test"]}}
    info = dataclasses.replace(task.info, clusters=clusters)
    write_result(tmp_path / "run", *finetune(dataclasses.replace(task, info=info)))
    table = pq.read_table(tmp_path / "run" / "scores.parquet").to_pydict()
    for split, name, cluster in zip(table["split"], table["id"], table["cluster"], strict=True):
        assert cluster == ("d1" if split == "test" else name)


def test_a_diverged_run_has_no_scores(finetune, tmp_path):
    write_result(tmp_path / "run", *finetune("sc", learning_rate=1e30))
    record = read_json(tmp_path / "run" / "result.json")
    assert record["status"] == "diverged"
    assert (record["validation"], record["test"], record["by_type"]) == (None, None, {})
    table = pq.read_table(tmp_path / "run" / "scores.parquet")
    assert (table.num_rows, table.column_names) == (0, ["split", "id", "score"])


def test_a_split_that_was_not_scored_is_null(finetune, tiny_tasks, tmp_path):
    task = tiny_tasks["ir"]()
    info = dataclasses.replace(task.info, kind="zs")
    made, scores = finetune(
        dataclasses.replace(task, info=info, qrels={"test": task.qrels["test"]})
    )
    write_result(tmp_path / "run", made, scores)
    record = read_json(tmp_path / "run" / "result.json")
    assert (record["validation"], record["test"]) == (None, scores["test"].metrics)
    assert set(pq.read_table(tmp_path / "run" / "scores.parquet")["split"].to_pylist()) == {"test"}
