"""From a source to a task in a store: splits that are drawn, identities, overlaps, writers."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import threading
from itertools import chain, combinations
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from biphasic.errors import ConfigError, DataError
from biphasic.files import digest, file_sha256
from biphasic.rows import Row
from biphasic.store import TASK
from biphasic.tasks.folder import (
    TaskDescription,
    TaskFile,
    count_overlaps,
    load_task,
    load_task_file,
    read_description,
    write_task_folder,
)
from biphasic.tasks.inputs import open_input
from biphasic.tasks.kinds.examples import cut_splits
from biphasic.tasks.kinds.questions import Answer, Question
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.kinds.tagging import TaggedSentence
from biphasic.tasks.labels_and_qrels import Labels
from biphasic.tasks.records import SPLITS, ExampleTask, RetrievalTask, TaskContent
from biphasic.tasks.source import find_source, split_source
from custom_tasks import jsonl, refused, task_info, write_beir, write_csv, write_splits, write_yaml

MANUAL = Path(__file__).parents[3] / "docs" / "tasks.md"
ROW = {"id": "a", "text": "é\u2028", "label": 1}
SETTINGS = """
kind: sc
name: news
title: The news
metric: macro_f1
train: all.csv
validation_fraction: 0.25
test_fraction: 0.2
seed: 3
limits: {train: 10}
columns: {text: [headline, body of text], label: mood, id: key}
template: "{text_a} - {text_b}"
labels: [pos, neg]
protocol: {max_steps: 7}
license: CC0
"""


@pytest.fixture
def moods(custom: Path) -> Path:
    write_splits(custom, ".csv", "text,label\na,x\nb,y\n")
    return custom


def write_rows(folder: Path, *, row: dict | None = None, **settings) -> Path:
    """Write a task folder of one row in each split."""
    description = TaskDescription(name=folder.name, kind="sc", **settings)
    splits = {split: (each for each in [row or ROW]) for split in SPLITS}
    write_task_folder(folder, description, TaskContent(splits=splits, labels=["a", "b"]))
    return folder


def retrieval(folder: Path, *splits: str, **described) -> str:
    """Write a folder of retrieval, and return the identity of its task."""
    folder.mkdir()
    write_beir(folder, *splits or SPLITS)
    (folder / "task.json").write_text(json.dumps({"kind": "ir", **described}))
    return load_task(folder).info.sha256


def test_a_task_file_has_all_settings(store, custom):
    rows = [[f"h{n}", f"b{n}", "neg" if n % 2 else "pos", f"k{n}"] for n in range(40)]
    write_csv(custom / "all.csv", ["headline", "body of text", "mood", "key"], rows)
    folder = store.folder_of(write_yaml(custom, SETTINGS))
    task = load_task(folder)
    assert [task.num_examples(split) for split in SPLITS] == [10, 10, 8]
    record = task.splits["train"][0]
    number = record.id.removeprefix("k")
    assert (record.text, record.answer) == (f"h{number} - b{number}", int(number) % 2)
    assert task.labels == ("pos", "neg")
    head = KINDS["sc"].learner.head_fields(task, None, protocol=None)  # as in head.json
    assert head["columns"] == {"text_a": "headline", "text_b": "body of text"}
    described = json.loads((folder / "task.json").read_text())
    assert (described["license"], described["metric"]) == ("CC0", "macro_f1")
    assert described["protocol"] == {"max_steps": 7}
    assert described["origin"]["counts"] == {"train": 10, "validation": 10, "test": 8}
    assert "validation is 0.25 of the training split, chosen with seed 3" in store.said[1]
    assert described["origin"]["chosen"][2] == "train is limited to 10, chosen with seed 3"
    assert described["origin"]["files"]["train"]["name"] == "all.csv"
    assert str(custom) not in json.dumps(described)


def test_the_examples_and_the_table_of_the_manual(custom):
    text = MANUAL.read_text(encoding="utf-8")
    examples = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    kinds = [load_task_file(write_yaml(custom, example)).kind for example in examples]
    assert kinds == ["sc", "ir", "sc"]
    table = text.partition("| Key | Meaning |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    named = {key.strip("`") for row in rows for key in row.split(", ")}
    assert named - {"---"} == set(TaskFile.model_fields)
    [columns] = re.findall(r"^\| `columns` \| (.*?);", table, re.MULTILINE)
    records = [kind.examples.record for kind in KINDS.values() if hasattr(kind.examples, "record")]
    known = {name for record in records for name in (*record.columns(), *record.optional())}
    assert set(re.findall("`(.*?)`", columns)) == known | {"id"}
    file = load_task_file(write_yaml(custom, "kind: sc\nfolder: data\ntest: ../x.csv\n"))
    assert (file.name, file.folder, file.train) == ("task", custom / "data", None)
    assert file.test == custom / "../x.csv"


@pytest.mark.parametrize(
    ("end", "compress"), [(".gz", gzip.compress), (".zst", zstandard.compress)]
)
def test_packed_files_and_a_split_that_is_missing(store, custom, end, compress):
    write_beir(custom, "train", "test")
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        path = custom / name
        path.with_name(f"{path.name}{end}").write_bytes(compress(path.read_bytes()))
        path.unlink()
    assert set(store.task(f"zs:{custom}").qrels) == {"test"}
    task = store.task(write_yaml(custom, "kind: ir\nfolder: .\nvalidation_fraction: 0.34\n"))
    assert [task.num_examples(split) for split in SPLITS] == [2, 1, 3]


def test_answers_by_characters_change_scores_and_the_hash_of_the_task(store, custom):
    answers = {"text": ["서울"], "answer_start": [0]}
    row = {"question": "어디", "context": "서울에서", "answers": answers}
    write_splits(custom, ".jsonl", jsonl(row))
    tasks = [
        store.task(write_yaml(custom, f"kind: qa\nname: t{number}\nfolder: .\n{setting}"))
        for number, setting in enumerate(["", "tokens: characters\n"])
    ]
    words, characters = (KINDS["qa"].learner.score(task, "test", ["서울에"]) for task in tasks)
    assert words.metrics == {"f1": 0.0, "exact_match": 0.0}
    assert characters.metrics["f1"] == pytest.approx(2 * (2 / 3) / (2 / 3 + 1))
    assert len({task.info.sha256 for task in [*tasks, store.task(f"qa:{custom}")]}) == 2


def cut(num_train: int = 100, seed: int = 0, *, limits=None, num_test: int = 0, **shares):
    file = TaskFile(kind="sc", seed=seed, limits=limits or {}, **shares)
    given = {"train": [*range(num_train)], **({"test": [*range(num_test)]} if num_test else {})}
    return cut_splits(given, file, where="t.yaml")


@given(st.integers(20, 200), st.integers(0, 5), st.floats(0.1, 0.4), st.floats(0.1, 0.4))
def test_missing_splits_come_out_of_train_by_the_seed(number, seed, validation, test):
    parts = cut(number, seed, validation_fraction=validation, test_fraction=test)
    assert len(parts["validation"]) == round(validation * number)
    assert len(parts["test"]) == round(test * number)
    assert sorted(chain.from_iterable(parts.values())) == [*range(number)]
    assert all(items == sorted(items) for items in parts.values())
    assert cut(number, seed, test_fraction=test)["test"] == parts["test"]


def test_what_is_cut_is_spread_and_another_seed_cuts_other_rows():
    part = cut(validation_fraction=0.1)["validation"]
    assert part[-1] - part[0] > 50
    assert part != cut(seed=1, validation_fraction=0.1)["validation"]
    for shares, split in (
        ({"validation_fraction": 0.1}, "validation"),
        ({"validation_fraction": 0.5, "test_fraction": 0.49}, "train"),
    ):
        with pytest.raises(DataError, match=rf"t\.yaml: .* no example for {split}"):
            cut(3 if split == "validation" else 2, **shares)


def test_limits_choose_at_random_and_a_larger_one_keeps_the_smaller():
    small = cut(num_test=100, limits={"train": 10})
    large = cut(num_test=100, limits={"train": 20, "test": 500})
    assert small["test"] == large["test"] == [*range(100)]
    assert len(small["train"]) == 10
    assert set(small["train"]) < set(large["train"])
    assert small["train"] == sorted(small["train"]) != [*range(10)]


def test_a_folder_is_written_as_it_is_read_and_names_only_what_was_set(tmp_path):
    folder = write_rows(tmp_path / "mood", template="It is {text}", license="CC0", origin={"a": 1})
    TASK.open(folder).verify()
    task, described = load_task(folder), read_description(folder)
    assert task.splits["test"][0].text == "It is é\u2028"
    assert (task.info.name, task.info.title, task.info.metric) == ("mood", "mood", "accuracy")
    assert (described.license, described.origin) == ("CC0", {"a": 1})
    write_rows(tmp_path / "bare", title="T", metric="macro_f1")
    written = json.loads((tmp_path / "bare" / "task.json").read_text())
    assert written == {"name": "bare", "kind": "sc", "title": "T", "metric": "macro_f1"}


def test_a_folder_that_lacks_a_file_never_looks_finished(tmp_path):
    content = TaskContent(splits={"train": [ROW], "validation": [ROW]}, labels=["a"])
    with pytest.raises(DataError, match=r"test\.jsonl: no such file; .* 'sc'"):
        write_task_folder(tmp_path / "t", TaskDescription(name="t", kind="sc"), content)
    assert list(tmp_path.iterdir()) == []


def test_name_and_kind_come_from_the_folder_unless_it_says(tmp_path):
    folder = write_rows(tmp_path / "bare")
    (folder / "task.json").write_text('{"title": "Bare"}')
    assert read_description(folder, kind="sc").title == "Bare"
    (folder / "task.json").unlink()
    assert read_description(folder, kind="sc").name == "bare"
    with pytest.raises(DataError, match=r"no task\.json; set the kind"):
        load_task(folder)
    (folder / "task.json").write_text('{"kind": "sc", "name": "other"}')
    assert (read_description(folder).name, read_description(folder).title) == ("other", "other")
    with pytest.raises(DataError, match="none: no such task folder"):
        read_description(tmp_path / "none")


def test_identities_follow_from_the_content_that_is_read(tmp_path):
    one, same = write_rows(tmp_path / "one"), write_rows(tmp_path / "same", title="T")
    other = write_rows(tmp_path / "other", row={**ROW, "label": 0})
    templated = write_rows(tmp_path / "templated", template="{text}!")
    hashes = [load_task(folder).info.sha256 for folder in (one, same, other, templated)]
    assert hashes[0] == hashes[1]
    assert len({*hashes}) == 3
    plain = retrieval(tmp_path / "a", "test", kind="zs")
    assert plain == retrieval(tmp_path / "b", "test", "train", kind="zs", title="Other")
    assert plain != retrieval(tmp_path / "c", "validation", "test", kind="zs")
    plain = retrieval(tmp_path / "d")
    assert plain == retrieval(tmp_path / "e", query_template="Query: {text}")
    assert plain != retrieval(tmp_path / "f", query_template="{text}")


def test_identities_of_old_tasks_stay(tmp_path):
    """The definition that fine-tunings already on disk are named by."""
    template = "Sentence 1: {text_a}\nSentence 2: {text_b}"
    retrieval(tmp_path / "ir")
    for folder in (write_rows(tmp_path / "sc"), tmp_path / "ir"):
        task = load_task(folder)
        paths = [path for path in folder.rglob("*") if path.is_file()]
        names = {path.relative_to(folder).as_posix(): file_sha256(path) for path in paths}
        files = {k: v for k, v in names.items() if k not in {"task.json", "manifest.json"}}
        named = {"kind": task.info.kind, "files": files, "template": template}
        assert task.info.sha256 == digest(named)


def ask(question: str, context: str) -> Question:
    return Question("1", question, context, (Answer("x", 0),))


def judged(kind: str = "ir", **qrels: str) -> RetrievalTask:
    queries = {"a": "Query: One", "b": "Query: one", "c": "Query: two"}
    by_split = {split: {query: {"d": 1} for query in names} for split, names in qrels.items()}
    return RetrievalTask(task_info(kind), {"d": "x"}, queries, by_split)


def test_overlaps_are_equal_words_in_any_case_of_all_that_a_model_reads():
    sentences = {
        "train": (TaggedSentence("1", ("In", "Orléans"), (0, 1)),),
        "validation": (TaggedSentence("1", ("In", "Rome"), (0, 1)),),
        "test": (TaggedSentence("1", ("in", "ORLE\u0301ANS"), (0, 0)),),
    }
    assert count_overlaps(ExampleTask(task_info("tc"), sentences)) == {"train/test": 1}
    questions = {
        "train": (ask("who?", "x y"),),
        "validation": (ask("who?", "x z"), ask("when?", "x y")),
        "test": (ask("Who?", "x\ty"), ask("who?", "x y"), ask("who?", "x z")),
    }
    task = ExampleTask(task_info("qa"), questions)
    assert count_overlaps(task) == {"train/test": 2, "validation/test": 1}
    assert count_overlaps(judged("zs", validation="a", test="bc")) == {"validation/test": 1}


def test_a_trainer_s_split_replaces_a_missing_one():
    task = judged(validation="a", test="bc")
    # Its own validation and test do not count, its trainer's are not scored.
    both = count_overlaps(task, judged(train="c", validation="b", test="b"))
    assert both == {"train/test": 1, "validation/test": 1}
    assert count_overlaps(task, judged(train="a")) == {"train/validation": 1, **both}


def test_sizes_and_overlaps_are_said(store, custom):
    test = "text,label\na B,y\nd,x\nf,x\n"
    write_splits(custom, ".csv", {"train": "text,label\nA  b,x\nc,y\n", "test": test})
    write_splits(custom, ".csv", "text,label\ne,x\n", "dev")
    assert store.task(f"sc:{custom}").info.overlaps == {"train/test": 1}
    assert store.said == [
        "task mood: examples: train 2, validation 1, test 3",
        "mood: 1 of 3 test examples also occur in train",
    ]


def test_a_task_is_built_once_and_rebuilt_when_what_is_read_changes(store, moods):
    first = store.folder_of(f"sc:{moods}")
    (store.folder / "tasks" / f".partial-{first.name}-1").mkdir()
    said = list(store.said)
    assert store.folder_of(f"sc:{moods}") == first
    assert store.said == said
    write_splits(moods, ".csv", "text,label\na,x\nc,y\n", "test")
    assert store.folder_of(f"sc:{moods}") != first
    seeded = (write_yaml(moods, f"kind: sc\nfolder: .\nseed: {n}\n") for n in (1, 2))
    assert len({store.folder_of(path) for path in seeded}) == 2
    (moods / "labels.json").write_text('["x", "y"]')
    listed = write_yaml(moods, "kind: sc\nfolder: .\nlabels: [y, x]\n")
    folder = store.folder_of(listed)
    (moods / "labels.json").write_text('["not", "read"]')
    assert store.folder_of(listed) == folder


def test_leftovers_of_interrupted_writers_go(store, moods):
    first = store.folder_of(f"sc:{moods}")
    first.with_name(f".partial-{first.name}-0a1b2c3d").mkdir()
    (first / "manifest.json").unlink()
    assert store.folder_of(f"sc:{moods}") == first
    assert list(first.parent.iterdir()) == [first]


def test_two_writers_at_once(store, moods):
    folders: list[Path] = []
    write = lambda: folders.append(store.folder_of(f"sc:{moods}"))  # noqa: E731
    threads = [threading.Thread(target=write) for _ in range(4)]
    for act in (threading.Thread.start, threading.Thread.join):
        for thread in threads:
            act(thread)
    assert (len(folders), len(set(folders))) == (4, 1)
    # Only one of them made it.
    assert sum("examples: train" in message for message in store.said) == 1


def test_task_folders_keep_their_identity(store, custom):
    folder = write_rows(custom / "own", template="T: {text}")
    assert store.task(folder) == store.task(f"sc:{folder}") == load_task(folder)
    before = store.folder_of(folder)
    (folder / "test.jsonl").write_text(jsonl({**ROW, "label": 0}))
    assert store.folder_of(folder) != before


def test_zero_shot_of_a_task_folder_drops_prompts_and_training(store, custom):
    shutil.rmtree(custom)
    settings = {"query_template": "Q: {text}", "protocol": {"retrieval_corpus": "judged"}}
    retrieval(custom, name="n", **settings)
    assert store.task(custom).queries["q0"] == "Q: t0"
    folder = store.folder_of(f"zs:{custom}")
    task = load_task(folder)
    assert (task.info.name, task.info.kind, task.queries["q0"]) == ("n-zs", "zs", "t0")
    assert not (folder / "qrels" / "train.tsv").exists()
    described = json.loads((folder / "task.json").read_text())
    assert described["protocol"] == {"retrieval_corpus": "judged"}
    (custom / "task.json").write_text(json.dumps({"name": "n"}))
    assert store.task(f"zs:{custom}").info.kind == "zs"


def test_a_task_that_cannot_be_read_never_looks_finished(store, custom):
    refused(store, write_rows(custom / "wrong", row={**ROW, "label": 7}), "unknown label 7")
    assert [*(store.folder / "tasks").glob("[!.]*")] == []


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("sc:data/x", ("sc", "data/x")),
        ("sc:data:1/x", ("sc", "data:1/x")),
        ("zs:nq", ("zs", "nq")),
        ("C:/x", (None, "C:/x")),
        ("data:1/x", (None, "data:1/x")),
        ("sc", (None, "sc")),
        ("x/sc:y", (None, "x/sc:y")),
    ],
)
def test_a_kind_is_before_the_first_colon(source, parts):
    assert split_source(source) == parts


@pytest.mark.parametrize("name", ["sst2", "data:1/mood"])
def test_a_path_may_have_a_published_name_or_colons(store, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir(parents=True)
    write_splits(tmp_path / name, ".csv", "text,label\na,x\nb,y\n")
    task = store.task(f"sc:{name}")
    assert (task.labels, task.info.name) == (("x", "y"), Path(name).name)


def test_revisions_and_copies_that_cannot_be_used(store, custom):
    for source in (f"sc:{custom}", "mteb:STSBenchmark"):
        with pytest.raises(ConfigError, match="only published datasets have revisions"):
            store.folder_of(source, revision="abc")
    (custom / "file").touch()
    for copies in (custom / "file", custom / "nowhere"):
        with pytest.raises(DataError, match=rf"^{copies}: no such folder \(local copies for"):
            store.folder_of("sst2", copies=copies)
    for source in ("mteb:STSBenchmark", "sst2"):
        assert find_source(source).is_remote
        assert not find_source(source, copies=custom).is_remote


NAMES = ("a", "b", "é", "", " a", "a ", "e\u0301", "a\u200b", "1", "0", "-2", "0.5", ".5", "1.")


def number(labels, value):
    try:
        return labels.number(Row(Path("a"), 1, {"label": value}), "label")
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("is_numbered", [True, False])
@pytest.mark.parametrize("is_listed", [True, False])
def test_the_usual_labels_are_found_as_all_others(is_numbered, is_listed):
    for names in combinations(NAMES, 2):
        usual, without = (
            Labels(names, "x", is_numbered=is_numbered, is_listed=is_listed) for _ in range(2)
        )
        vars(without)["_plain"] = {}
        for value in (*NAMES, 0, 1, 7, True, None):
            assert number(usual, value) == number(without, value)


CAFES = ("caf\N{LATIN SMALL LETTER E WITH ACUTE}", "cafe\N{COMBINING ACUTE ACCENT}")
TWINS = [CAFES, ("ab", "a\N{ZERO WIDTH SPACE}b"), ("ab", "a\N{SOFT HYPHEN}b"), ("a b", "a\xa0b")]


@pytest.mark.parametrize("twins", TWINS, ids=ascii)
def test_names_that_look_equal_are_one(store, tmp_path, twins):
    one, other = twins

    def folder(name: str, rows: list[dict], suffix: str = ".jsonl") -> Path:
        (tmp_path / name).mkdir()
        write_splits(tmp_path / name, suffix, jsonl(*rows))
        return tmp_path / name

    texts = [{"text": name, "label": name} for name in (*twins, "tea")]
    task = store.task(f"sc:{folder('texts', texts)}")
    assert task.labels == tuple(sorted({one, "tea"}))
    assert len({example.answer for example in task.splits["test"][:2]}) == 1
    sets = [{"text": "t", "labels": [name, "x"]} for name in twins]
    assert store.task(f"ml:{folder('sets', sets)}").labels == tuple(sorted({one, "x"}))
    tags = [{"tokens": ["a", "b"], "tags": [f"B-{name}", f"I-{name}"]} for name in twins]
    assert store.task(f"tc:{folder('tags', tags)}").labels == ("O", f"B-{one}", f"I-{one}")
    listed = folder("listed", [{"text": "t", "label": 0}, {"text": "u", "label": 1}])
    (listed / "labels.json").write_text(json.dumps(twins))
    with pytest.raises(DataError, match=r"labels\.json.*two different label names"):
        store.task(f"sc:{listed}")
    found = tmp_path / "found"
    (found / "qrels").mkdir(parents=True)
    (found / "corpus.jsonl").write_text(json.dumps({"_id": one, "text": "a"}))
    (found / "queries.jsonl").write_text(json.dumps({"_id": other, "text": "b"}))
    rows = f"query-id\tcorpus-id\tscore\n{one}\t{other}\t1\n"
    (found / "qrels/test.tsv").write_text(rows, encoding="utf-8")
    assert store.task(f"zs:{found}").qrels["test"] == {one: {one: 1}}
    (found / "corpus.jsonl").write_text(jsonl(*({"_id": key, "text": "a"} for key in twins)))
    with pytest.raises(DataError, match=r"corpus\.jsonl:2: the id .* is repeated"):
        store.task(f"zs:{found}")


@pytest.mark.parametrize(
    ("labels", "listed", "notes"),
    [
        (["a", "b"], None, []),
        (["Pos", "pos"], None, ["the labels 'Pos' and 'pos' are two"]),
        (["01", "1"], None, ["the labels '01' and '1' are two"]),
        (["pos", 1, "neg"], None, [r"some labels are numbers \(1\), others are names"]),
        # Such as those of files that count from 1.
        ([1, 2], '["a", "b", "c"]', ["no training example has the labels 'a';"]),
        ([" ", "x"], None, ["1 of 2 train texts are empty", "1 of 2 validation texts are empty"]),
    ],
)
def test_labels_and_texts_that_look_wrong_are_said(store, custom, labels, listed, notes):
    for split in ("train", "dev", "test"):
        texts = ["" if label == " " else f"{split} {label}" for label in labels]
        names = ["y" if label == " " else label for label in labels]
        rows = [{"text": t, "label": n} for t, n in zip(texts, names, strict=True)]
        (custom / f"{split}.jsonl").write_text(jsonl(*rows))
    if listed:
        (custom / "labels.json").write_text(listed)
    store.task(f"sc:{custom}")
    said = [line for line in store.said if line.startswith("warning: mood: ")]
    assert len(said) == (3 if len(notes) == 2 else len(notes))
    assert all(any(re.search(note, line) for line in said) for note in notes)


def test_a_parquet_file_may_have_another_suffix(tmp_path):
    table = pa.table({"text": ["a cat"]})
    for name in ("rows.pq", "ROWS.PARQUET"):
        pq.write_table(table, tmp_path / name)
        found = open_input(str(tmp_path / name), format="parquet")
        assert [row.value["text"] for row in found.rows()] == ["a cat"]
    (tmp_path / "rows.parquet.gz").write_bytes(b"")
    with pytest.raises(DataError, match="a compressed Parquet file cannot be read; unpack it"):
        open_input(str(tmp_path / "rows.parquet.gz"))
