from __future__ import annotations

from biphasic.tasks.formats.read import count_overlaps
from biphasic.tasks.records import (
    Answer,
    ExampleTask,
    Question,
    RetrievalTask,
    TaggedSentence,
    TaskInfo,
)


def info(kind) -> TaskInfo:
    return TaskInfo(name="t", kind=kind, title="t", metric="m", sha256="0")


def test_words_in_any_case_and_whatever_their_tags():
    splits = {
        "train": (TaggedSentence("1", ("In", "Paris"), (0, 1)),),
        "validation": (TaggedSentence("1", ("In", "Rome"), (0, 1)),),
        "test": (TaggedSentence("1", ("in", "PARIS"), (0, 0)),),
    }
    assert count_overlaps(ExampleTask(info("tc"), splits)) == {"train/test": 1}


def test_question_and_context_together():
    def ask(question: str, context: str) -> Question:
        return Question("1", question, context, (Answer("x", 0),))

    splits = {
        "train": (ask("who?", "x y"),),
        "validation": (ask("who?", "x z"), ask("when?", "x y")),
        "test": (ask("Who?", "x\ty"), ask("who?", "x y"), ask("who?", "x z")),
    }
    assert count_overlaps(ExampleTask(info("qa"), splits)) == {
        "train/test": 2,
        "validation/test": 1,
    }


def test_a_trainer_s_split_replaces_a_missing_one():
    def retrieval(**qrels: str) -> RetrievalTask:
        queries = {"a": "Query: One", "b": "Query: one", "c": "Query: two"}
        judged = {split: {query: {"d": 1} for query in names} for split, names in qrels.items()}
        return RetrievalTask(info("ir"), {"d": "x"}, queries, judged)

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


def test_queries_where_a_split_may_be_missing():
    task = RetrievalTask(
        info("zs"),
        corpus={"d": "x"},
        queries={"a": "One", "b": "one", "c": "two"},
        qrels={"validation": {"a": {"d": 1}}, "test": {"b": {"d": 1}, "c": {"d": 1}}},
    )
    assert count_overlaps(task) == {"validation/test": 1}
