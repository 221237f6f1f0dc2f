from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from biphasic.errors import DataError
from biphasic.tasks.formats import load_task
from biphasic.tasks.records import SPLITS, Answer

SHARED = Path(__file__).parents[4] / "shared" / "data" / "tasks"
TEXT = {"id": "a", "text": "good", "label": 1}
SENTENCE = {"tokens": ["In", "Paris"], "tags": ["O", "B-LOC"]}
QUESTION = {
    "id": "q",
    "question": "Who?",
    "context": "It was Anna.",
    "answers": {"text": ["Anna"], "answer_start": [7]},
}
CORPUS = [{"_id": "d1", "title": "T", "text": "one"}, {"_id": "d2", "text": "two"}]
QUERIES = [{"_id": "q1", "text": "which"}]


def write_jsonl(path: Path, records: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_task(
    folder: Path, kind: str, splits: dict[str, list[Any]], *, labels: Any = None, **described: Any
) -> Path:
    """Write a task folder of the kinds whose splits are JSON lines."""
    for split, records in splits.items():
        write_jsonl(folder / f"{split}.jsonl", records)
    if labels is not None:
        (folder / "labels.json").write_text(json.dumps(labels), encoding="utf-8")
    (folder / "task.json").write_text(
        json.dumps({"name": folder.name, "kind": kind, **described}), encoding="utf-8"
    )
    return folder


def write_retrieval(
    folder: Path,
    *,
    corpus: list[Any],
    queries: list[Any],
    qrels: dict[str, list[tuple[str, str, int]]],
) -> Path:
    """Write a task folder in the layout of BEIR, with a task.json."""
    write_jsonl(folder / "corpus.jsonl", corpus)
    write_jsonl(folder / "queries.jsonl", queries)
    (folder / "qrels").mkdir()
    for split, rows in qrels.items():
        lines = ["query-id\tcorpus-id\tscore", *(f"{q}\t{d}\t{score}" for q, d, score in rows)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "task.json").write_text(json.dumps({"kind": "ir"}), encoding="utf-8")
    return folder


def classification(folder: Path, **changed: list) -> Path:
    splits = {split: [TEXT] for split in SPLITS} | changed
    return write_task(folder, "sc", splits, labels=["bad", "good"])


def tagging(folder: Path, **changed: list) -> Path:
    splits = {split: [SENTENCE] for split in SPLITS} | changed
    return write_task(folder, "tc", splits, labels=["O", "B-LOC", "I-LOC", "I-PER"])


def questions(folder: Path, **changed: list) -> Path:
    return write_task(folder, "qa", {split: [QUESTION] for split in SPLITS} | changed)


def retrieval(folder: Path, **changed: list) -> Path:
    qrels = {split: [("q1", "d1", 1)] for split in SPLITS} | changed
    return write_retrieval(folder, corpus=CORPUS, queries=QUERIES, qrels=qrels)


def refused(folder: Path, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_task(folder)


def at(folder: Path, file: str, line: int) -> str:
    return re.escape(f"{folder / file}:{line}: ")


def test_reads_classification(tmp_path):
    task = load_task(classification(tmp_path / "mood"))
    assert (task.info.name, task.info.kind, task.info.metric) == ("mood", "sc", "accuracy")
    assert task.labels == ("bad", "good")
    assert task.splits["test"][0].text == "good"


def test_reads_pairs_by_the_tasks_template(tmp_path):
    pair = {"text_a": "x {text_b}", "text_b": "y", "label": 0}
    splits = {split: [pair, pair] for split in SPLITS}
    plain = load_task(write_task(tmp_path / "plain", "sc", splits, labels=["n", "y"]))
    template = "Premise: {text_a}\nHypothesis: {text_b}"
    folder = write_task(tmp_path / "own", "sc", splits, labels=["n", "y"], template=template)
    # A field's own braces are text, not another field.
    assert plain.splits["train"][0].text == "Sentence 1: x {text_b}\nSentence 2: y"
    own = load_task(folder)
    assert own.splits["train"][0].text == "Premise: x {text_b}\nHypothesis: y"
    assert [record.id for record in own.splits["train"]] == ["1", "2"]
    assert own.info.sha256 != plain.info.sha256


def test_labels_may_be_numbered(tmp_path):
    folder = classification(tmp_path / "numbered")
    (folder / "labels.json").write_text('{"1": "good", "0": "bad"}')
    assert load_task(folder).labels == ("bad", "good")


def test_kind_comes_from_the_caller_where_the_folder_does_not_say(tmp_path):
    folder = classification(tmp_path / "bare")
    (folder / "task.json").unlink()
    refused(folder, "no task.json; say of which kind")
    assert load_task(folder, kind="sc", name="other").info.name == "other"


def test_identity_follows_content_not_names(tmp_path):
    first, second = classification(tmp_path / "a"), classification(tmp_path / "b")
    assert load_task(first).info.sha256 == load_task(second).info.sha256
    write_jsonl(second / "test.jsonl", [TEXT | {"label": 0}])
    assert load_task(first).info.sha256 != load_task(second).info.sha256


@pytest.mark.parametrize("label", [2, -1, "good", True, None])
def test_unknown_label(tmp_path, label):
    folder = classification(tmp_path / "t", test=[TEXT, TEXT | {"id": "b", "label": label}])
    refused(folder, at(folder, "test.jsonl", 2) + "unknown label")


def test_damaged_line(tmp_path):
    folder = classification(tmp_path / "t")
    with (folder / "train.jsonl").open("a") as stream:
        stream.write('{"id": "b", "te\n')
    refused(folder, at(folder, "train.jsonl", 2) + "not valid JSON")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"id": "b", "label": 1}, "no field 'text'"),
        ({"id": "b", "text": 5, "label": 1}, "'text' must be a text"),
        ({"id": ["b"], "text": "x", "label": 1}, "'id' must be a text or a whole number"),
        ({"id": "a", "text": "x", "label": 1}, "the id 'a' occurs a second time"),
    ],
)
def test_records_that_cannot_be_used(tmp_path, record, message):
    folder = classification(tmp_path / "t", validation=[TEXT, record])
    refused(folder, at(folder, "validation.jsonl", 2) + message)


def test_empty_split(tmp_path):
    folder = classification(tmp_path / "t", test=[])
    refused(folder, re.escape(f"{folder / 'test.jsonl'}: the split is empty"))


def test_missing_file_and_misspelt_settings(tmp_path):
    folder = classification(tmp_path / "t")
    (folder / "validation.jsonl").unlink()
    refused(folder, "validation.jsonl: no such file; a task of kind 'sc' needs it")
    (folder / "task.json").write_text('{"kind": "sc", "metrics": "accuracy"}')
    refused(folder, "unknown key 'metrics'.*did you mean 'metric'")
    (folder / "task.json").write_text('{"kind": "sc", "metric": "acuracy"}')
    refused(folder, "no metric 'acuracy' for kind 'sc'.*did you mean 'accuracy'")
    with pytest.raises(DataError, match="of kind 'sc', not 'tc'"):
        load_task(classification(tmp_path / "u"), kind="tc")


def test_reads_tagging(tmp_path):
    task = load_task(tagging(tmp_path / "t"))
    assert task.splits["test"][0].words == ("In", "Paris")
    assert task.splits["test"][0].tags == (0, 1)


@pytest.mark.parametrize(
    ("tokens", "tags", "message"),
    [
        (["a"], ["B-ORG"], "unknown label 'B-ORG' at token 0"),
        (["a"], ["I-LOC"], "not valid BIO2: 'I-LOC' at token 0 follows 'O'"),
        (["a", "b"], ["B-LOC", "I-PER"], "not valid BIO2: 'I-PER' at token 1 follows 'B-LOC'"),
        (["a", "b", "c"], ["B-LOC", "O", "I-LOC"], "'I-LOC' at token 2 follows 'O'"),
        (["a", "b"], ["O"], "2 tokens but 1 tags"),
        ([], [], "no tokens"),
        (["a", 1], ["O", "O"], "'tokens' must be a list of str"),
    ],
)
def test_bad_tags(tmp_path, tokens, tags, message):
    folder = tagging(tmp_path / "t", train=[SENTENCE, {"tokens": tokens, "tags": tags}])
    refused(folder, at(folder, "train.jsonl", 2) + ".*" + re.escape(message))


def test_reads_questions(tmp_path):
    unanswerable = QUESTION | {"id": "r", "answers": {"text": [], "answer_start": []}}
    task = load_task(questions(tmp_path / "t", test=[QUESTION, unanswerable]))
    assert task.splits["test"][0].answers == (Answer("Anna", 7),)
    assert task.splits["test"][1].answers == ()


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"text": ["Anna"], "answer_start": [6]}, "the answer 'Anna' does not stand at 6"),
        ({"text": ["Anna"], "answer_start": [-5]}, "the answer 'Anna' does not stand at -5"),
        ({"text": [""], "answer_start": [0]}, "the answer '' does not stand at 0"),
        ({"text": ["Anna"], "answer_start": []}, "1 answer texts but 0 values"),
        ({"text": ["Anna"], "answer_start": ["7"]}, "'answer_start' must be a list of int"),
        (["Anna"], "'answers' must be an object"),
    ],
)
def test_bad_answers(tmp_path, answers, message):
    bad = QUESTION | {"id": "r", "answers": answers}
    folder = questions(tmp_path / "t", validation=[QUESTION, bad])
    refused(folder, at(folder, "validation.jsonl", 2) + message)


def test_reads_retrieval(tmp_path):
    task = load_task(retrieval(tmp_path / "t"))
    assert task.corpus == {"d1": "T. one", "d2": "two"}
    assert task.qrels["test"] == {"q1": {"d1": 1}}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("q9", "d1", 1), "unknown query 'q9'"),
        (("q1", "d9", 1), "unknown document 'd9'"),
        (("q1", "d2", -1), "a score of 0 or more"),
    ],
)
def test_bad_judgements(tmp_path, row, message):
    folder = retrieval(tmp_path / "t", test=[("q1", "d1", 1), row])
    refused(folder, at(folder, "qrels/test.tsv", 3) + ".*" + message)


def test_judgements_without_header_or_relevant_document(tmp_path):
    folder = retrieval(tmp_path / "t", validation=[("q1", "d1", 0)])
    refused(folder, "validation.tsv: the split is empty")
    (folder / "qrels" / "validation.tsv").write_text("q1\td1\t1\n")
    refused(folder, at(folder, "qrels/validation.tsv", 1) + "the header must be")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared task data are not here")
@pytest.mark.parametrize(
    ("kind", "name", "sizes"),
    [
        ("sc", "sick", (4421, 494, 4927)),
        ("sc", "trec", (4832, 537, 500)),
        ("tc", "wnut17", (3394, 1009, 1287)),
        ("tc", "uner_en", (12161, 1914, 2077)),
        ("qa", "squad", (12043, 1736, 2651)),
        ("ir", "cranfield", (135, 45, 45)),
        ("ir", "scifact", (686, 121, 300)),
    ],
)
def test_reads_real_sets(kind, name, sizes):
    task = load_task(SHARED / kind / name, kind=kind)
    assert tuple(task.num_examples(split) for split in SPLITS) == sizes
