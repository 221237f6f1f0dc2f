from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from biphasic.errors import DataError
from biphasic.files import digest, file_sha256
from biphasic.tasks.folder import count_overlaps, load_task, read_description
from biphasic.tasks.kinds.questions import Answer, Question
from biphasic.tasks.kinds.tagging import TaggedSentence
from biphasic.tasks.records import SPLITS, ExampleTask, RetrievalTask
from custom_tasks import at, task_info
from tiny_use import write_jsonl

TEXT = {"id": "a", "text": "good", "label": 1}
SENTENCE = {"tokens": ["In", "Paris"], "tags": ["O", "B-LOC"]}
QUESTION = {
    "id": "q",
    "question": "Who?",
    "context": "It was Anna.",
    "answers": {"text": ["Anna"], "answer_start": [7]},
}
RECORDS = {
    "sc": (TEXT, ["bad", "good"]),
    "tc": (SENTENCE, ["O", "B-LOC", "I-LOC", "I-PER"]),
    "qa": (QUESTION, None),
}
CORPUS = [{"_id": "d1", "title": "T", "text": "one"}, {"_id": "d2", "text": "two"}]
QUERIES = [{"_id": "q1", "text": "which"}]
JUDGED = ("q1", "d1", 1)


def write_task(
    folder: Path, kind: str, splits: dict[str, list[Any]], *, labels: Any = None, **described: Any
) -> Path:
    """Write a task folder of the kinds whose splits are JSON lines."""
    folder.mkdir()
    for split, records in splits.items():
        write_jsonl(folder / f"{split}.jsonl", records)
    if labels is not None:
        (folder / "labels.json").write_text(json.dumps(labels), encoding="utf-8")
    described = {"name": folder.name, "kind": kind, **described}
    (folder / "task.json").write_text(json.dumps(described), encoding="utf-8")
    return folder


def examples(folder: Path, kind: str, **changed: list) -> Path:
    """Write a task folder with the same record in each split."""
    record, labels = RECORDS[kind]
    return write_task(folder, kind, {key: [record] for key in SPLITS} | changed, labels=labels)


def retrieval(
    folder: Path, *splits: str, qrels: dict[str, list] | None = None, **described: Any
) -> Path:
    """Write a task folder in the layout of BEIR, with some splits; by default all of them."""
    (folder / "qrels").mkdir(parents=True)
    write_jsonl(folder / "corpus.jsonl", CORPUS)
    write_jsonl(folder / "queries.jsonl", QUERIES)
    for split, rows in ({key: [JUDGED] for key in splits or SPLITS} | (qrels or {})).items():
        lines = ["query-id\tcorpus-id\tscore", *(f"{q}\t{d}\t{score}" for q, d, score in rows)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    described = {"kind": "ir", **described}
    (folder / "task.json").write_text(json.dumps(described), encoding="utf-8")
    return folder


def refused(folder: Path, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_task(folder)


def test_equal_training_values_are_refused(tmp_path):
    row, other = {"text": "x", "value": 2.5}, {"text": "y", "value": 3}
    splits = {"train": [row, other], "validation": [row], "test": [row]}
    load_task(write_task(tmp_path / "some", "sr", splits))
    flat = write_task(tmp_path / "flat", "sr", splits | {"train": [row, row]})
    refused(flat, re.escape(f"{flat / 'train.jsonl'}: all values of the training split are 2.5;"))


def test_reads_pairs_by_the_tasks_template(tmp_path):
    pair = {"text_a": "x {text_b}", "text_b": "y", "label": 0}
    splits = {split: [pair, pair] for split in SPLITS}
    plain = load_task(write_task(tmp_path / "plain", "sc", splits, labels=["n", "y"]))
    template = "Premise: {text_a}\nHypothesis: {text_b}"
    folder = write_task(tmp_path / "own", "sc", splits, labels=["n", "y"], template=template)
    # A field's own braces are text, not another field.
    assert plain.splits["train"][0].text == "Sentence 1: x {text_b}\nSentence 2: y"
    custom = load_task(folder)
    assert custom.splits["train"][0].text == "Premise: x {text_b}\nHypothesis: y"
    assert [record.id for record in custom.splits["train"]] == ["1", "2"]
    assert custom.info.sha256 != plain.info.sha256


def test_labels_may_be_numbered(tmp_path):
    folder = examples(tmp_path / "numbered", "sc")
    (folder / "labels.json").write_text('{"1": "good", "0": "bad"}')
    assert load_task(folder).labels == ("bad", "good")


def test_kind_comes_from_the_caller_where_the_folder_does_not_say(tmp_path):
    folder = examples(tmp_path / "bare", "sc")
    (folder / "task.json").write_text('{"title": "Bare"}')
    refused(folder, "task.json: no 'kind'; set the kind")
    assert read_description(folder, kind="sc").title == "Bare"
    (folder / "task.json").unlink()
    refused(folder, "no task.json; set the kind")
    assert read_description(folder, kind="sc").name == "bare"


def test_identity_follows_content_not_names(tmp_path):
    first, second = examples(tmp_path / "a", "sc"), examples(tmp_path / "b", "sc")
    assert load_task(first).info.sha256 == load_task(second).info.sha256
    write_jsonl(second / "test.jsonl", [TEXT | {"label": 0}])
    assert load_task(first).info.sha256 != load_task(second).info.sha256


@pytest.mark.parametrize("label", [2, -1, "good", True, None])
def test_unknown_label(tmp_path, label):
    folder = examples(tmp_path / "t", "sc", test=[TEXT, TEXT | {"id": "b", "label": label}])
    refused(folder, at(folder, "test.jsonl", 2) + "unknown label")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"id": "b", "label": 1}, "no field 'text'"),
        ({"id": "b", "text": 5, "label": 1}, "'text' must be a text"),
        ({"id": ["b"], "text": "x", "label": 1}, "'id' must be a text or a whole number"),
        ({"id": "a", "text": "x", "label": 1}, "the id 'a' is repeated"),
    ],
)
def test_records_that_cannot_be_used(tmp_path, record, message):
    folder = examples(tmp_path / "t", "sc", validation=[TEXT, record])
    refused(folder, at(folder, "validation.jsonl", 2) + message)


def test_empty_split(tmp_path):
    folder = examples(tmp_path / "t", "sc", test=[])
    refused(folder, re.escape(f"{folder / 'test.jsonl'}: the split is empty"))


def test_missing_file_and_misspelt_settings(tmp_path):
    folder = examples(tmp_path / "t", "sc")
    (folder / "validation.jsonl").unlink()
    refused(folder, "validation.jsonl: no such file; a task of kind 'sc' needs it")
    (folder / "task.json").write_text('{"kind": "sc", "metrics": "accuracy"}')
    refused(folder, "unknown key 'metrics'.*did you mean 'metric'")
    (folder / "task.json").write_text('{"kind": "sc", "metric": "acuracy"}')
    refused(folder, "no metric 'acuracy' for kind 'sc'.*did you mean 'accuracy'")
    with pytest.raises(DataError, match="of kind 'sc', not 'tc'"):
        read_description(examples(tmp_path / "u", "sc"), kind="tc")


def test_reads_tagging(tmp_path):
    task = load_task(examples(tmp_path / "t", "tc"))
    assert task.splits["test"][0].words == ("In", "Paris")
    assert task.splits["test"][0].tags == (0, 1)


@pytest.mark.parametrize(
    ("tokens", "tags", "message"),
    [
        (["a"], ["B-ORG"], "unknown label 'B-ORG' at token 0; the labels are O, B-LOC"),
        (["a"], ["S-LOC"], "'S-LOC' at token 0 is neither O, B-TYPE nor I-TYPE"),
        (["a", " "], ["O", "O"], "token 1 is empty (' ')"),
        (["a"], ["I-LOC"], "not valid BIO2: 'I-LOC' at token 0 follows 'O'"),
        (["a", "b"], ["B-LOC", "I-PER"], "not valid BIO2: 'I-PER' at token 1 follows 'B-LOC'"),
        (["a", "b", "c"], ["B-LOC", "O", "I-LOC"], "'I-LOC' at token 2 follows 'O'"),
        (["a", "b"], ["O"], "2 tokens but 1 tags"),
        ([], [], "no tokens"),
        (["a", 1], ["O", "O"], "'tokens' must be a list of texts"),
    ],
)
def test_bad_tags(tmp_path, tokens, tags, message):
    folder = examples(tmp_path / "t", "tc", train=[SENTENCE, {"tokens": tokens, "tags": tags}])
    refused(folder, at(folder, "train.jsonl", 2) + ".*" + re.escape(message))


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"text": ["Anna"], "answer_start": [6]}, "the answer 'Anna' is not at 6"),
        ({"text": ["Anna"], "answer_start": [-5]}, "the answer 'Anna' is not at -5"),
        ({"text": [""], "answer_start": [0]}, "the answer '' is not at 0"),
        ({"text": ["Anna"], "answer_start": []}, "1 answer texts but 0 values"),
        (
            {"text": ["Anna"], "answer_start": ["7"]},
            "'answer_start' must be a list of whole numbers",
        ),
        (["Anna"], "'answers' must be an object"),
    ],
)
def test_bad_answers(tmp_path, answers, message):
    bad = QUESTION | {"id": "r", "answers": answers}
    folder = examples(tmp_path / "t", "qa", validation=[QUESTION, bad])
    refused(folder, at(folder, "validation.jsonl", 2) + message)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("q9", "d1", 1), "unknown query 'q9'"),
        (("q1", "d9", 1), "unknown document 'd9'"),
        (("q1", "d2", -1), "a score of 0 or more as a whole number, not '-1'"),
        (("q1", "d2", 0.5), "a score of 0 or more as a whole number, not '0.5'"),
        (("q1", "d2", "x"), "a score of 0 or more as a whole number, not 'x'"),
        (("q1", "d1", 2), "query 'q1' and document 'd1' have the score 1 already"),
        (("q1 d1", 1, 1), "unknown query 'q1 d1'"),
    ],
)
def test_bad_judgements(tmp_path, row, message):
    folder = retrieval(tmp_path / "t", qrels={"test": [JUDGED, row]})
    refused(folder, at(folder, "qrels/test.tsv", 3) + ".*" + message)


def test_judgements_without_header_or_relevant_document(tmp_path):
    folder = retrieval(tmp_path / "t", qrels={"validation": [("q1", "d1", 0)]})
    refused(folder, "validation.tsv: the split is empty")
    (folder / "qrels" / "validation.tsv").write_text("q1\td1\t1\n")
    refused(folder, at(folder, "qrels/validation.tsv", 1) + "the header must be")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("q1\td1", "2 fields, but the header names 3"),
        ("q1\td2\t1\t0", "4 fields"),
        ("", "an empty line"),
        ("q1 0 d1 1", "1 fields"),
    ],
)
def test_judgements_of_another_width(tmp_path, row, message):
    folder = retrieval(tmp_path / "t")
    with (folder / "qrels" / "test.tsv").open("a") as stream:
        stream.write(f"{row}\n")
    refused(folder, at(folder, "qrels/test.tsv", 3) + message)


def test_a_judgement_may_be_repeated_and_lines_may_end_as_on_windows(tmp_path):
    folder = retrieval(tmp_path / "t")
    path = folder / "qrels" / "test.tsv"
    path.write_bytes(b"\xef\xbb\xbfquery-id\tcorpus-id\tscore\r\nq1\td1\t1\r\nq1\td1\t1\r\n")
    assert load_task(folder).qrels["test"] == {"q1": {"d1": 1}}


def test_reads_regression(tmp_path):
    rows = [{"id": "a", "text": "x", "value": 2}, {"text_a": "x", "text_b": "y", "value": -0.5}]
    task = load_task(write_task(tmp_path / "t", "sr", dict.fromkeys(SPLITS, rows)))
    assert task.info.metric == "spearman"
    assert [record.answer for record in task.splits["test"]] == [2.0, -0.5]
    assert task.splits["test"][1].text == "Sentence 1: x\nSentence 2: y"


def test_a_template_may_name_any_field(tmp_path):
    row = {"headline": "H", "body": "B", "label": 0}
    splits = {split: [row] for split in SPLITS}
    folder = write_task(
        tmp_path / "t", "sc", splits, labels=["n", "y"], template="{headline}: {body}"
    )
    assert load_task(folder).splits["train"][0].text == "H: B"
    write_jsonl(folder / "test.jsonl", [row, {"headline": "H", "label": 1}])
    refused(folder, at(folder, "test.jsonl", 2) + "no field 'body'")


def test_templates_of_retrieval(tmp_path):
    folder = retrieval(
        tmp_path / "t",
        query_template="query: {text}",
        document_template="passage: {title} | {text}",
    )
    task = load_task(folder)
    assert task.queries == {"q1": "query: which"}
    # Without a title nothing of what joins it to the text is left.
    assert task.corpus == {"d1": "passage: T | one", "d2": "passage: two"}


def test_zero_shot_retrieval_has_no_prompts_and_no_training(tmp_path):
    task = load_task(retrieval(tmp_path / "t", "test", kind="zs"))
    assert task.corpus == {"d1": "T one", "d2": "two"}
    assert task.queries == {"q1": "which"}
    assert set(task.qrels) == {"test"}
    assert (task.num_examples("train"), task.info.metric) == (0, "ndcg_at_10")
    both = load_task(retrieval(tmp_path / "u", "validation", "test", kind="zs"))
    assert set(both.qrels) == {"validation", "test"}
    assert both.info.sha256 != task.info.sha256


def test_what_is_not_read_does_not_change_the_identity(tmp_path):
    plain = load_task(retrieval(tmp_path / "t", "test", kind="zs"))
    unread = load_task(retrieval(tmp_path / "u", "train", "test", kind="zs", title="Other"))
    assert set(unread.qrels) == {"test"}
    assert unread.info.sha256 == plain.info.sha256


def test_retrieval_that_is_trained_on_another_task(tmp_path):
    refused(retrieval(tmp_path / "t", "validation", "test"), "train.tsv: no such file")
    task = load_task(retrieval(tmp_path / "u", "validation", "test", trained_on="msmarco"))
    assert task.info.trained_on == "msmarco"
    assert set(task.qrels) == {"validation", "test"}


def test_identities_of_old_tasks_stay(tmp_path):
    """The definition that fine-tunings already on disk are named by."""
    template = "Sentence 1: {text_a}\nSentence 2: {text_b}"
    for folder in (examples(tmp_path / "sc", "sc"), retrieval(tmp_path / "ir")):
        task = load_task(folder)
        paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "task.json"]
        files = {path.relative_to(folder).as_posix(): file_sha256(path) for path in paths}
        named = {"kind": task.info.kind, "files": files, "template": template}
        assert task.info.sha256 == digest(named)


def test_usual_templates_change_no_identity_and_others_do(tmp_path):
    plain = load_task(retrieval(tmp_path / "a"))
    usual = load_task(retrieval(tmp_path / "b", query_template="Query: {text}"))
    custom = load_task(retrieval(tmp_path / "c", query_template="{text}"))
    assert plain.info.sha256 == usual.info.sha256 != custom.info.sha256


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (
            {"kind": "qa", "template": "{text}"},
            "'template' is for tasks of kind sc or ml or sr, not qa",
        ),
        ({"kind": "sc", "query_template": "{text}"}, "'query_template' is for .* ir or zs, not sc"),
        ({"kind": "zs", "trained_on": "x"}, "'trained_on' is for tasks of kind ir, not zs"),
        ({"kind": "sc", "template": "text"}, "names no field"),
        ({"kind": "sc", "template": "{text} {label}"}, "must not name {label}"),
        ({"kind": "ir", "query_template": "{title}"}, "must name {text}, and nothing but {text}"),
        ({"kind": "ir", "document_template": "{text} {title}"}, "{title} before {text}"),
        ({"kind": "sc", "protocol": {"max_step": 3}}, "protocol: .*did you mean 'max_steps'"),
        ({"kind": "sx"}, "kind: unknown value 'sx'"),
    ],
)
def test_descriptions_that_contradict_themselves(tmp_path, described, message):
    folder = examples(tmp_path / "t", "sc")
    (folder / "task.json").write_text(json.dumps(described))
    refused(folder, message)


def test_overlaps_of_words_in_any_case_and_whatever_their_tags():
    splits = {
        "train": (TaggedSentence("1", ("In", "Orléans"), (0, 1)),),
        "validation": (TaggedSentence("1", ("In", "Rome"), (0, 1)),),
        "test": (TaggedSentence("1", ("in", "ORLE\u0301ANS"), (0, 0)),),
    }
    assert count_overlaps(ExampleTask(task_info("tc"), splits)) == {"train/test": 1}


def test_overlaps_of_question_and_context_together():
    def ask(question: str, context: str) -> Question:
        return Question("1", question, context, (Answer("x", 0),))

    splits = {
        "train": (ask("who?", "x y"),),
        "validation": (ask("who?", "x z"), ask("when?", "x y")),
        "test": (ask("Who?", "x\ty"), ask("who?", "x y"), ask("who?", "x z")),
    }
    assert count_overlaps(ExampleTask(task_info("qa"), splits)) == {
        "train/test": 2,
        "validation/test": 1,
    }


def test_a_trainer_s_split_replaces_a_missing_one():
    def retrieval(**qrels: str) -> RetrievalTask:
        queries = {"a": "Query: One", "b": "Query: one", "c": "Query: two"}
        judged = {split: {query: {"d": 1} for query in names} for split, names in qrels.items()}
        return RetrievalTask(task_info("ir"), {"d": "x"}, queries, judged)

    task = retrieval(validation="a", test="bc")
    # Its own validation and test do not count, its trainer's are not scored.
    trainer = retrieval(train="c", validation="b", test="b")
    assert count_overlaps(task) == {"validation/test": 1}
    assert count_overlaps(task, trainer) == {"train/test": 1, "validation/test": 1}
    assert count_overlaps(task, retrieval(train="a")) == {
        "train/validation": 1,
        "train/test": 1,
        "validation/test": 1,
    }


def test_overlaps_of_queries_where_a_split_may_be_missing():
    task = RetrievalTask(
        task_info("zs"),
        corpus={"d": "x"},
        queries={"a": "One", "b": "one", "c": "two"},
        qrels={"validation": {"a": {"d": 1}}, "test": {"b": {"d": 1}, "c": {"d": 1}}},
    )
    assert count_overlaps(task) == {"validation/test": 1}
