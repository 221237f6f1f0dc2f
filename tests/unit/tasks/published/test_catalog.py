"""The study's datasets, from miniature local copies to tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Features, List, Value, load_dataset

import hub_copies
from biphasic import task as task_files
from biphasic.errors import ConfigError, DataError
from biphasic.tasks import hub_retrieval
from biphasic.tasks.folder import load_task
from biphasic.tasks.hub_retrieval import halve_queries
from biphasic.tasks.hub_tasks import PUBLISHED, HubSource, begin_entities
from biphasic.tasks.source import prepare_task

COUNTS = {
    **dict.fromkeys(("mnli", "qqp", "sst2", "squad", "squad_v2", "record"), (38, 2, 6)),
    **dict.fromkeys(("conll2003", "ontonotes5", "uner_en"), (9, 3, 4)),
    "msmarco": (15, 2, 2),
    "nq": (0, 4, 3),
    "mldr": (0, 2, 3),
    "blimp": (0, 0, 5),
}
PAPER_TEXTS = {
    "mnli": "Premise: premise train {n}\nHypothesis: hypothesis train {n}",
    "qqp": "Question 1: question1 train {n}\nQuestion 2: question2 train {n}",
    "sst2": "sentence train {n}",
}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the library's cache, which it set up when it was imported, out of the home folder."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hub_copies.write_all(tmp_path_factory.mktemp("copies"))


@pytest.fixture(scope="module")
def folders(copies: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tasks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", root / "cache")
        for name in PUBLISHED:
            HubSource.of_published(name, copies=copies).write(root / name)
    return {name: root / name for name in PUBLISHED}


@pytest.fixture(scope="module")
def tasks(folders: dict[str, Path]) -> dict[str, Any]:
    return {name: load_task(folder) for name, folder in folders.items()}


def described(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "task.json").read_text("utf-8"))


def test_there_are_twelve_three_of_each_kind_and_blimp():
    kinds = [task.kind for task in PUBLISHED.values()]
    numbers = {"sc": 3, "tc": 3, "qa": 3, "ir": 3, "mp": 1}
    assert {kind: kinds.count(kind) for kind in kinds} == numbers


@pytest.mark.parametrize("name", COUNTS)
def test_every_dataset_becomes_a_task(tasks, name):
    task = tasks[name]
    counts = tuple(task.num_examples(split) for split in ("train", "validation", "test"))
    assert counts == COUNTS[name]
    assert (task.info.name, task.info.kind) == (name, PUBLISHED[name].kind)
    assert task.info.trained_on == ("msmarco" if name in {"nq", "mldr"} else None)


def test_minimal_pairs_are_all_configurations_in_order(tasks):
    pairs = tasks["blimp"].splits["test"]
    numbers = {"adjunct_island": 2, "passive_1": 3}
    assert [(pair.id, pair.group, pair.good, pair.bad) for pair in pairs] == [
        (f"{name}-{n}", name, f"{name} {n} is right", f"{name} {n} right is")
        for name, size in numbers.items()
        for n in range(size)
    ]


def test_a_dataset_without_the_columns_of_blimp_is_named(copies, tmp_path):
    rows = {("one", "train"): [{"sentence_good": "a", "UID": "one"}]}
    hub_copies.write_dataset(tmp_path / "nyu-mll/blimp", rows, None)
    with pytest.raises(DataError, match=r"nyu-mll/blimp, .*one.*'sentence_bad'"):
        HubSource.of_published("blimp", copies=tmp_path).write(tmp_path / "task")


@pytest.mark.parametrize("name", PAPER_TEXTS)
def test_texts_are_the_templates_word_by_word(tasks, name):
    task = tasks[name]
    for example in task.splits["train"]:
        number = example.id.removeprefix("train-")
        assert example.text == PAPER_TEXTS[name].format(n=number)
        assert example.answer == int(number) % len(task.labels)
    assert task.labels == hub_copies.GLUE_LABELS[name]


def test_the_test_split_of_mnli_is_the_matched_one(tasks):
    task = tasks["mnli"]
    texts = [example.text for example in task.splits["test"]]
    assert texts[0] == "Premise: premise validation_matched 0\nHypothesis: " + (
        "hypothesis validation_matched 0"
    )


@pytest.mark.parametrize(
    ("name", "config", "column"),
    [("sst2", "sst2", "sentence"), ("squad", None, "question"), ("record", None, "question")],
)
def test_halves_are_those_of_the_library(copies, tasks, name, config, column):
    folder = copies / PUBLISHED[name].hub.tables[0].dataset
    rows = load_dataset(str(folder), config, split="train")
    expected = rows.train_test_split(train_size=0.95, seed=42)
    field = "text" if name == "sst2" else "question"
    for split, part in (("train", "train"), ("validation", "test")):
        ours = [getattr(example, field) for example in tasks[name].splits[split]]
        assert ours == expected[part][column][:]


def test_iob1_becomes_bio2_and_is_counted(folders, tasks):
    task = tasks["conll2003"]
    tags = [task.labels[tag] for tag in task.splits["test"][0].tags]
    assert tags == ["B-ORG", "O", "B-MISC", "O", "B-PER", "I-PER", "B-PER"]
    # Three tags of each sentence: EU, German and Peter.
    expected = {"train": 27, "validation": 9, "test": 12}
    assert described(folders["conll2003"])["origin"]["tags_rewritten_as_b"] == expected
    zero = {"train": 0, "validation": 0, "test": 0}
    assert described(folders["ontonotes5"])["origin"]["tags_rewritten_as_b"] == zero


@pytest.mark.parametrize(
    ("published", "written", "count"),
    [
        ("B-A I-A B-A O", "B-A I-A B-A O", 0),
        ("I-A I-A B-A I-A", "B-A I-A B-A I-A", 1),
        ("B-A I-B I-B O I-B", "B-A B-B I-B O B-B", 2),
    ],
)
def test_entities_begin_with_b(published, written, count):
    assert begin_entities(published.split()) == (written.split(), count)


def test_bare_numbers_get_the_published_names(tasks):
    task = tasks["ontonotes5"]
    tags = [task.labels[tag] for tag in task.splits["train"][0].tags]
    assert tags == ["O", "B-PERSON", "I-PERSON", "O", "B-ORG", "I-ORG", "O"]
    assert len(task.labels) == 37


def test_squad_v2_keeps_questions_without_answers(tasks):
    task = tasks["squad_v2"]
    assert sum(not question.answers for question in task.splits["test"]) == 2
    first = task.splits["test"][1]
    assert (first.id, first.answers[0].text, first.answers[0].start) == (
        "56bevalidation1",
        "1901",
        3,
    )


def test_record_has_two_layouts_and_one_meaning(copies, tasks, tmp_path):
    hub_copies.record_of_superglue(tmp_path / "copies")
    HubSource.of_published("record", copies=tmp_path / "copies").write(tmp_path / "record")
    other, task = load_task(tmp_path / "record"), tasks["record"]
    assert other.splits == task.splits
    assert [answer.start for answer in task.splits["test"][0].answers] == [9, 22]


def test_msmarco_trains_on_distinct_pairs(tasks):
    task = tasks["msmarco"]
    pairs = {
        (task.queries[query], task.corpus[document])
        for query, judged in task.qrels["train"].items()
        for document in judged
    }
    assert pairs == {
        (f"Query: question {n // 2}", f"Document: passage {n % 20}")
        for n in range(hub_copies.NUM_PAIRS)
    }


def test_msmarco_searches_judged_documents_alone(folders, tasks):
    task = tasks["msmarco"]
    searched = {key: text for key, text in task.corpus.items() if not key.startswith("positive-")}
    assert searched == {str(n): f"Document: body {n}" for n in range(1, 8)}
    assert described(folders["msmarco"])["protocol"] == {"retrieval_corpus": "judged"}


def test_relevance_is_a_score_of_one_or_more(tasks):
    task = tasks["msmarco"]
    assert task.qrels["test"] == {"2": {"4": 1, "5": 0}, "3": {"6": 1, "7": 1}}
    assert [task.queries[query] for query in task.qrels["test"]] == [
        "Query: asked 2",
        "Query: asked 3",
    ]


def test_documents_of_nq_carry_their_titles(tasks):
    task = tasks["nq"]
    assert task.corpus["xd4"] == "Document: Title 4. body 4"
    judged = {"xd1", *(f"xd{2 * n}" for n in range(hub_copies.NUM_NQ_QUERIES))}
    assert set(task.corpus) == judged


def test_halves_of_nq_are_seeded_disjoint_and_cover_all(copies, folders, tasks, tmp_path):
    task = tasks["nq"]
    validation, test = set(task.qrels["validation"]), set(task.qrels["test"])
    assert not validation & test
    assert validation | test == {f"xq{n}" for n in range(hub_copies.NUM_NQ_QUERIES)}
    HubSource.of_published("nq", copies=copies).write(tmp_path / "again")
    assert load_task(tmp_path / "again") == task
    assert described(folders["nq"])["origin"]["split_seed"] == 42


def test_halves_depend_on_the_seed_and_not_on_the_order():
    judged = {f"q{n}": {"d": 1} for n in range(40)}
    backwards = dict(reversed(judged.items()))
    assert halve_queries(judged, seed=1) == halve_queries(backwards, seed=1)
    assert halve_queries(judged, seed=1) != halve_queries(judged, seed=2)


def test_paper_halves_of_nq_are_drawn_and_recorded(copies, monkeypatch, tmp_path):
    monkeypatch.setattr("secrets.randbits", lambda _: 77)
    HubSource.of_published("nq", copies=copies, paper=True).write(tmp_path / "nq")
    origin = described(tmp_path / "nq")["origin"]
    assert (origin["split_seed"], origin["paper"]) == (77, True)
    task = load_task(tmp_path / "nq")
    judged = {f"xq{n}": {f"xd{2 * n}": 1} for n in range(hub_copies.NUM_NQ_QUERIES)}
    expected = halve_queries(judged, seed=77)
    assert {split: set(by_query) for split, by_query in expected.items()} == {
        split: set(task.qrels[split]) for split in ("validation", "test")
    }


def test_mldr_searches_the_positive_passages_of_both_splits(tasks):
    task = tasks["mldr"]
    assert set(task.corpus) == {f"doc-en-{n}" for n in (5, 6, 10, 11, 12)}
    assert task.qrels["validation"] == {"q-en-dev0": {"doc-en-5": 1}, "q-en-dev1": {"doc-en-6": 1}}
    assert task.queries["q-en-dev0"] == "Query: long question dev 0"
    assert task.corpus["doc-en-5"] == "Document: long text 5"


def test_more_pairs_than_a_study_reads_are_left_out(copies, monkeypatch, tmp_path):
    monkeypatch.setattr(hub_retrieval, "MAX_PAIRS", 6)
    HubSource.of_published("msmarco", copies=copies).write(tmp_path / "few")
    kept = {"kept": 6, "of": hub_copies.NUM_PAIRS, "seed": 42}
    assert described(tmp_path / "few")["origin"]["pairs"] == kept
    rows = (tmp_path / "few/qrels/train.tsv").read_text("utf-8").splitlines()[1:]
    HubSource.of_published("msmarco", copies=copies).write(tmp_path / "again")
    assert rows == (tmp_path / "again/qrels/train.tsv").read_text("utf-8").splitlines()[1:]
    assert len(rows) == 6
    HubSource.of_published("msmarco", copies=copies, paper=True).write(tmp_path / "all")
    kept = {"kept": hub_copies.NUM_PAIRS, "of": hub_copies.NUM_PAIRS}
    assert described(tmp_path / "all")["origin"]["pairs"] == kept


@pytest.mark.parametrize(
    ("name", "document"), [("msmarco", "body 4"), ("nq", "Title 4 body 4"), ("mldr", "long text 5")]
)
def test_zero_shot_variants_have_no_training_split_and_no_prompts(copies, tmp_path, name, document):
    HubSource.of_published(name, copies=copies, kind="zs").write(tmp_path / "task")
    task = load_task(tmp_path / "task")
    assert (task.info.name, task.info.kind, task.info.trained_on) == (f"{name}-zs", "zs", None)
    assert task.num_examples("train") == 0
    assert document in task.corpus.values()
    assert not any(text.startswith("Query: ") for text in task.queries.values())


def test_only_retrieval_can_be_zero_shot(copies, tmp_path):
    with pytest.raises(DataError, match="'sst2' is of kind sc"):
        HubSource.of_published("sst2", copies=copies, kind="zs").write(tmp_path / "task")


def test_a_beir_archive_serves_as_a_copy(tmp_path, tasks):
    copies = tmp_path / "copies"
    hub_copies.nq(copies)
    (copies / "BeIR/nq/qrels").mkdir()
    (copies / "BeIR/nq-qrels/test.tsv").rename(copies / "BeIR/nq/qrels/test.tsv")
    HubSource.of_published("nq", copies=copies).write(tmp_path / "nq")
    assert load_task(tmp_path / "nq").info.sha256 == tasks["nq"].info.sha256


def test_origin_names_every_table_and_that_it_is_local(folders):
    origin = described(folders["nq"])["origin"]
    assert origin["published"] == "nq"
    assert {table["dataset"] for table in origin["tables"]} == {"BeIR/nq", "BeIR/nq-qrels"}
    for table in origin["tables"]:
        assert (table["revision"], table["local"]) == (None, True)


@pytest.mark.parametrize("name", ["sst2", "uner_en", "squad", "msmarco", "blimp"])
def test_the_shown_file_of_a_dataset_is_a_task_of_ones_own(copies, folders, tmp_path, name):
    own = tmp_path / "mine.yaml"
    own.write_text(task_files.show(name), encoding="utf-8")
    folder = prepare_task(str(own), store=tmp_path / "store", copies=copies, say=print)
    files = {path.name for path in folder.rglob("*") if path.suffix in {".jsonl", ".tsv"}}
    assert files
    for path in folder.rglob("*.*"):
        if path.name in files:
            published = folders[name] / path.relative_to(folder)
            assert path.read_bytes() == published.read_bytes()
    origin = described(folder)["origin"]
    assert (origin["source"], origin["settings"]["name"]) == ("hub", "mine")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"hub": {"test": {"dataset": "a/b", "split": "test"}}},
            r"hub\.train: .* kind sc needs it",
        ),
        ({"test": "test.csv"}, "'test' is for tasks of files, not of the hub"),
        ({"limits": {"train": 3}}, "'limits' is for tasks of files"),
        ({"hub": {"test": {"dataset": "b", "split": "test"}}}, r"hub\.test\.dataset"),
    ],
)
def test_a_task_of_the_hub_with_other_settings_is_refused(tmp_path, settings, message):
    table = {"dataset": "a/b", "split": "train"}
    raw = {"kind": "sc", "hub": {"train": table, "test": table}, "labels": ["x", "y"], **settings}
    (tmp_path / "mine.yaml").write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises((ConfigError, DataError), match=message):
        prepare_task(str(tmp_path / "mine.yaml"), store=tmp_path, say=print)


NUMBERS = List(ClassLabel(names=["cats", "dogs"]))
OTHER_KINDS = {
    "ml": ({"text": "on cats", "labels": [0]}, {"text": Value("string"), "labels": NUMBERS}, (1,)),
    "sr": ({"sentence1": "a", "sentence2": "b", "score": 2.5}, None, 2.5),
    "sts": ({"sentence1": "a", "sentence2": "b", "score": 2.5}, None, 2.5),
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_every_kind_reads_tables_of_the_hub(tmp_path, kind):
    row, features, answer = OTHER_KINDS[kind]
    column = "labels" if kind == "ml" else "score"
    other = {"ml": [0, 1], "sr": 1.0, "sts": 1.0}[kind]
    rows = [row, {**row, column: other}] * 20
    splits = {("default", split): rows for split in ("train", "test")}
    hub_copies.write_dataset(tmp_path / "a/b", splits, features and Features(features))
    tables = {"train": {"dataset": "a/b", "split": "train"}} if kind != "sts" else {}
    raw = {"kind": kind, "hub": {**tables, "test": {"dataset": "a/b", "split": "test"}}}
    raw |= {"labels": ["dogs", "cats"]} if kind == "ml" else {}
    (tmp_path / "mine.yaml").write_text(json.dumps(raw), encoding="utf-8")
    task = load_task(
        prepare_task(
            str(tmp_path / "mine.yaml"), store=tmp_path / "store", copies=tmp_path, say=print
        )
    )
    counts = [task.num_examples(split) for split in ("train", "validation", "test")]
    assert counts == ([0, 0, 40] if kind == "sts" else [38, 2, 40])
    [first, *_] = task.splits["test"]
    assert first.id == "test-0"
    # The task file has the labels in another order.
    assert (first.score if kind == "sts" else first.answer) == answer


def test_a_dataset_of_another_name_is_refused():
    with pytest.raises(DataError, match=r"no published dataset 'sst3' \(did you mean 'sst2'"):
        task_files.show("sst3")
