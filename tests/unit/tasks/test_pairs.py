"""Pairs: reading, drawing, decontamination, repeats, resuming."""

from __future__ import annotations

import errno
import json
import os
import shutil
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import biphasic
from biphasic.data.pairs import BuiltPairs, Pair, Pairs
from biphasic.data.text.source import SourceDocument
from biphasic.errors import CheckpointError, ConfigError, DataError
from biphasic.evaluation.evaluate import chosen_tasks
from biphasic.tasks import pairs as build
from biphasic.tasks.enrich import mine, teach
from biphasic.tasks.pairs import document_pairs, table_pairs

ROWS = [
    {"query": "what is a cat", "positive": "a small animal", "negatives": ["a tool", "a fish"]},
    {"query": "what is a dog", "positive": "another animal", "negatives": []},
]
LONG = " ".join(f"word{number}" for number in range(40))


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Pairs]:
    def made(out: str = "pairs", **settings: Any) -> Pairs:
        return biphasic.pairs.build(out=tmp_path / out, root=tmp_path, quiet=True, **settings).pairs

    return made


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A retrieval task with one query to train on and one to judge."""
    folder = tmp_path / "task"
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": "d1", "title": "Cats", "text": LONG}, {"_id": "d2", "text": "dogs bark"}]
    write_rows(folder / "corpus.jsonl", documents)
    queries = [{"_id": "q1", "text": "who purrs"}, {"_id": "q2", "text": "who barks"}]
    write_rows(folder / "queries.jsonl", queries)
    for split, line in (("train", "q1\td1\t1"), ("test", "q2\td2\t1")):
        text = f"query-id\tcorpus-id\tscore\n{line}\n"
        (folder / "qrels" / f"{split}.tsv").write_text(text)
    (folder / "qrels" / "validation.tsv").write_text(text)
    return folder


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_tables_of_all_formats_give_the_same_pairs(tmp_path, suffix):
    path, rows = tmp_path / f"pairs.{suffix}", [{**row, "negatives": None} for row in ROWS]
    if suffix == "jsonl":
        write_rows(path, rows)
    elif suffix == "csv":
        path.write_text(
            "anchor,positive\n" + "".join(f"{r['query']},{r['positive']}\n" for r in rows)
        )
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    assert [*table_pairs(str(path))] == [
        Pair(row["query"], row["positive"], source=path.name) for row in rows
    ]


@pytest.mark.parametrize("first", [0, 1])
def test_numbered_negatives_are_refused_and_not_left_out(tmp_path, monkeypatch, first):
    row = {"query": "a", "positive": "b", f"negative_{first}": "c", f"negative_{first + 1}": "d"}
    file = tmp_path / "files" / "pairs.jsonl"
    file.parent.mkdir()
    write_rows(file, [row])
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for source in (str(file), f"hf:{file.parent}"):
        with pytest.raises(DataError, match=f":1: column 'negative_{first}'.*'negatives'"):
            [*table_pairs(source)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": "a", "positive": " "}, ":1: 'positive' is empty"),
        ({"query": "", "positive": "b"}, ":1: 'query' is empty"),
        ({"query": "a", "positive": "b", "negative": ""}, ":1: 'negative' is empty"),
        ({"query": "a", "positive": "a"}, "'query' and 'positive' are the same text"),
        ({"query": "a", "positive": "b", "negatives": "c"}, "'negatives' must be a list of texts"),
        ({"query": "a", "positive": "b", "negatives": ["b"]}, "a negative is the same text"),
        ({"query": "a", "positive": "b", "negatives": ["a"]}, "a negative is the same text"),
        ({"query": "a", "anchor": "c", "positive": "b"}, "both 'query' and 'anchor'"),
        (
            {"query": "a", "positive": "b", "negatives": ["c"], "negative": "d"},
            "both 'negatives' and 'negative'",
        ),
        ({"query": "a", "positive": "b", "scores": [1, 2]}, "2 scores for a positive and 0"),
        ({"query": "a", "positive": "b", "scores": ["x"]}, "'scores' must be a finite number"),
        ({"query": "a", "positive": "b", "scores": 1}, ":1: 'scores' must be a list"),
        ({"positive": "b"}, "no field 'query'; there are 'positive'"),
    ],
)
def test_a_bad_pair_is_refused_with_its_line(tmp_path, row, message):
    path = write_rows(tmp_path / "pairs.jsonl", [row])
    with pytest.raises(DataError, match=message):
        [*table_pairs(path)]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("nothing.csv", "nothing.csv: no such file"),
        (".", "a folder, not a table of pairs; name its files"),
        ("pairs.xls", "pairs.xls: unknown suffix"),
        ("pairs.txt", "pairs.txt: no table of pairs"),
        ("pipe.csv", "pipe.csv: can be read only once"),
    ],
)
def test_what_is_no_table_is_refused_before_any_source_is_read(tmp_path, make, table, message):
    good = write_rows(tmp_path / "rows.jsonl", ROWS)
    os.mkfifo(tmp_path / "pipe.csv")
    for name in ("pairs.xls", "pairs.txt"):
        (tmp_path / name).write_text("a text\n")
    with pytest.raises(DataError, match=message):
        make(tables=(good, str(tmp_path / table)))
    assert not [*tmp_path.glob(".building*")]


def test_a_column_of_hub_pairs_is_refused(make):
    with pytest.raises(ConfigError, match=r"pairs have columns of their own; omit '\?column='"):
        make(tables=("hf:a/b?column=text",))
    with pytest.raises(ConfigError, match=r"pairs build: 'hf:a/b\?spl=x': unknown key 'spl'"):
        make(tables=("hf:a/b?spl=x",))


def test_a_built_folder_gives_back_its_pairs_in_order(tmp_path, make):
    table = write_rows(tmp_path / "rows.jsonl", [*ROWS, ROWS[0]])
    pairs = make(tables=(table,))
    read = [pairs.pair(number) for number in range(len(pairs))]
    assert read == [
        Pair(r["query"], r["positive"], tuple(r["negatives"]), source="rows.jsonl") for r in ROWS
    ]
    assert pairs.details["counts"]["rows.jsonl"] == {
        "read": 3, "judged": 0, "by_task": {}, "repeated": 1, "kept": 2
    }  # fmt: skip
    lines = [*BuiltPairs(pairs.folder, pairs).lines()]
    assert "rows.jsonl: read 3, in evaluation tasks 0, repeated 1, kept 2" in lines


def test_the_hash_is_of_the_content_not_of_its_place(tmp_path, make):
    table = write_rows(tmp_path / "rows.jsonl", ROWS)
    one = make("one", tables=(table,))
    assert make("two", tables=(table,)).content_hash == one.content_hash
    other = write_rows(tmp_path / "other.jsonl", ROWS[::-1])
    assert make("three", tables=(other,)).content_hash != one.content_hash


def test_changed_bytes_are_refused(tmp_path, make):
    folder = make(tables=(write_rows(tmp_path / "rows.jsonl", ROWS),)).folder
    content = bytearray((folder / "texts.arrow").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "texts.arrow").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"texts\.arrow"):
        Pairs(folder)


def test_a_full_disk_leaves_no_pairs_and_the_next_build_gives_them(tmp_path, make, monkeypatch):
    table = write_rows(tmp_path / "rows.jsonl", ROWS)
    whole = make("whole", tables=(table,))

    def full(path: str, _: Any) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pa.ipc, "new_file", full)
        with pytest.raises(OSError, match="No space left"):
            make(tables=(table,))
    with pytest.raises(DataError, match="no finished pairs here"):
        Pairs(tmp_path / "pairs")
    assert make(tables=(table,)).content_hash == whole.content_hash


def test_texts_of_a_task_that_judges_are_left_out_and_counted(tmp_path, make, task):
    near = " ".join(LONG.split()[5:])
    rows = [
        {"query": "Who barks?", "positive": "a dog"},  # its query, in other letters
        {"query": "what is this", "positive": f"{near} and more"},  # nearly its document
        {"query": "a longer text", "positive": f"{LONG} {' '.join(LONG.split()[::-1])} {LONG}x"},
        {"query": "fine", "positive": "nothing to see"},
        {"query": "also", "positive": "fine", "negatives": ["dogs  bark"]},
        {"query": "said of 2014", "positive": "and more"},
    ]
    table = write_rows(tmp_path / "rows.jsonl", rows)
    years = []
    for year in ("2014", "2015"):  # two files with one name
        (tmp_path / year).mkdir()
        said = [{"text_a": f"said of {year}", "text_b": str(n), "score": n} for n in range(3)]
        years.append(f"sts:{write_rows(tmp_path / year / 'test.jsonl', said)}")
    assert [each.name for each in chosen_tasks(years)] == ["2014-test", "2015-test"]
    assert chosen_tasks(years[:1])[0].name == "test"
    with pytest.raises(ConfigError, match=r"the task 'test' \(.*\) is given more than once"):
        chosen_tasks([years[0], *years])
    with pytest.raises(ConfigError, match=r"the task 'test' \(.*\) is given more than once"):
        make(tables=(table,), against=(years[0], *years))
    assert not (tmp_path / "store").exists()  # no task was read
    pairs = make(tables=(table,), against=(f"zs:{task}", *years))
    assert [pairs.pair(number).query for number in range(len(pairs))] == ["fine"]
    counts = pairs.details["counts"]["rows.jsonl"]
    assert counts["judged"] == 5
    found = {"task-zs: exact": 2, "task-zs: near": 2, "2014-test: exact": 1}
    assert counts["by_task"] == found


FRENCH = (
    "L'été, les élèves réformés répétaient déjà leurs tragédies préférées à l'école du théâtre."
)
ENGLISH = "The quick brown fox jumps over the lazy dog while seventeen other animals watch it"
GERMAN = "Die große Straße heißt nach dem Fluß, an dem sie außen vorbei zum Schloß führt"
KOREAN = "안녕하세요 저는 한국에서 온 학생입니다 그리고 매일 아침 일찍 학교에 갑니다"
CHINESE = "北京是中华人民共和国的首都和直辖市，是中国的政治、文化、科技、教育、军事和国际交往中心"
THAI = "กรุงเทพมหานครเป็นเมืองหลวงและเมืองที่มีประชากรมากที่สุดของประเทศไทย"


@pytest.mark.parametrize(
    ("judged", "other"),
    [
        (FRENCH, unicodedata.normalize("NFD", FRENCH)),
        (KOREAN, unicodedata.normalize("NFD", KOREAN)),
        (ENGLISH, ENGLISH.replace("brown", "bro\u00adwn").replace("seventeen", "seven\u200bteen")),
        (ENGLISH, "".join(chr(ord(c) + 0xFEE0) if c != " " else c for c in ENGLISH)),
        (GERMAN, GERMAN.replace("ß", "ss").upper()),
        (CHINESE, CHINESE.replace("首都", "首府")),
        (THAI, f"{THAI[:30]}{THAI[31:]}"),
    ],
    ids=[
        "NFD",
        "jamo",
        "invisible signs",
        "full width",
        "sharp s",
        "a Chinese sign",
        "a Thai sign",
    ],
)
def test_a_judged_text_in_another_form_is_left_out(tmp_path, make, judged, other):
    texts = [{"text_a": judged, "text_b": f"other {n}", "score": n} for n in range(3)]
    task = write_rows(tmp_path / "test.jsonl", texts)
    rows = [{"query": "a", "positive": other}, {"query": "b", "positive": judged[::-1]}]
    pairs = make(tables=(write_rows(tmp_path / "rows.jsonl", rows),), against=(f"sts:{task}",))
    assert [pair.query for pair in pairs] == ["b"]


def test_texts_of_symbols_alone_are_found_and_no_other_is_taken_for_one(tmp_path, make):
    texts = ("?", "!?", "dogs bark")
    judged = [{"text_a": "∑ ∫ ≠", "text_b": text, "score": n} for n, text in enumerate(texts)]
    task = write_rows(tmp_path / "test.jsonl", judged)
    rows = [
        {"query": "∑∫ ≠", "positive": "its symbols"},
        {"query": "?", "positive": "one of them"},
        {"query": "∑ ∫", "positive": "others"},
    ]
    pairs = make(tables=(write_rows(tmp_path / "rows.jsonl", rows),), against=(f"sts:{task}",))
    assert [pair.positive for pair in pairs] == ["others"]


@pytest.mark.parametrize("template", [None, "First: {text_a}. Second: {text_b}."])
def test_short_texts_that_a_template_joins_are_left_out_too(tmp_path, make, template):
    folder = tmp_path / "questions"
    folder.mkdir()
    for split in ("train", "validation", "test"):
        both = {"text_a": f"How to learn Python, {split}?", "text_b": f"Who teaches it, {split}?"}
        write_rows(
            folder / f"{split}.jsonl", [{**both, "id": label, "label": label} for label in (0, 1)]
        )
    described = {"kind": "sc", **({"template": template} if template else {})}
    (folder / "task.json").write_text(json.dumps(described))
    (folder / "labels.json").write_text('["yes", "no"]')
    rows = [
        {"query": "how to learn python, test", "positive": "read a book"},
        {"query": "a question", "positive": "Who teaches it, validation?"},
        {"query": "how to learn Python, train", "positive": "with others"},
    ]
    pairs = make(tables=(write_rows(tmp_path / "rows.jsonl", rows),), against=(str(folder),))
    assert [pair.positive for pair in pairs] == ["with others"]
    assert pairs.details["counts"]["rows.jsonl"]["by_task"] == {"questions: exact": 2}


def test_a_training_split_keeps_its_own_documents_but_no_judged_query(make, task):
    pairs = make(tasks=(f"ir:{task}",), against=(f"zs:{task}",))
    assert pairs.pair(0) == Pair("who purrs", f"Cats {LONG}", source="task")
    assert len(pairs) == 1
    other = shutil.copytree(task, task.with_name("other"))
    with (other / "corpus.jsonl").open("a") as documents:
        documents.write(json.dumps({"_id": "d3", "title": "", "text": "birds sing"}) + "\n")
    with pytest.raises(DataError, match="no pairs"):  # the document is of another task, too
        make("none", tasks=(f"ir:{task}",), against=(f"zs:{task}", f"zs:{other}"))


def test_a_training_split_gives_no_empty_or_equal_texts(make, task):
    documents = [{"_id": "d3", "title": "", "text": " "}, {"_id": "d4", "text": "who purrs "}]
    for name, rows in (("corpus", documents), ("queries", [{"_id": "q3", "text": ""}])):
        path = task / f"{name}.jsonl"
        path.write_text(path.read_text() + "".join(json.dumps(row) + "\n" for row in rows))
    judged = ["q1\td1\t1", "q1\td3\t1", "q1\td4\t1", "q3\td2\t1", "q2\td2\t0"]
    path = task / "qrels/train.tsv"
    path.write_text("\n".join([path.read_text().splitlines()[0], *judged]) + "\n")
    assert [pair.positive for pair in make(tasks=(f"ir:{task}",))] == [f"Cats {LONG}"]


def test_a_refused_build_leaves_nothing(tmp_path, make, task):
    before = set(tmp_path.rglob("*"))
    other = shutil.copytree(task, task.with_name("other"))
    with (other / "corpus.jsonl").open("a") as documents:
        documents.write(json.dumps({"_id": "d3", "title": "", "text": "birds sing"}) + "\n")
    with pytest.raises(DataError, match="no pairs"):
        make("none", tasks=(f"ir:{task}",), against=(f"zs:{other}",))
    assert not [path for path in {*tmp_path.rglob("*")} - before if "building" in path.name]


def test_an_interrupted_build_resumes_with_the_next_source(tmp_path, make, monkeypatch):
    tables = tuple(
        write_rows(tmp_path / f"{number}.jsonl", [row]) for number, row in enumerate(ROWS)
    )
    whole, read = make("whole", tables=tables), []

    def failing(table: str, **how: Any):
        read.append(table)
        if table == tables[1] and len(read) == 2:
            raise OSError(28, "No space left on device")
        return table_pairs(table, **how)

    monkeypatch.setattr(build, "table_pairs", failing)
    with pytest.raises(OSError, match="No space"):
        make("cut", tables=tables)
    assert make("cut", tables=tables).content_hash == whole.content_hash
    assert read == [tables[0], tables[1], tables[1]]
    assert make("cut", tables=tables).content_hash == whole.content_hash  # it is complete
    with pytest.raises(ConfigError, match="other pairs, made from other sources"):
        make("cut", tables=tables[:1])


class Stub:
    """An embedding model whose first embedding is killed or finds a full disk."""

    width = 2

    def __init__(self, fault: BaseException) -> None:
        self.faults, self.calls = [fault], 0

    def embed(self, texts: Sequence[str]) -> tuple[np.ndarray, int]:
        self.calls += 1
        if self.faults:
            raise self.faults.pop()
        return np.array([[len(text), 1.0] for text in texts], dtype=np.float32), 0


@pytest.mark.parametrize(
    "fault", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
@pytest.mark.parametrize(
    "enrich", [teach, partial(mine, number=1, margin=1.0, depth=2)], ids=["teach", "mine"]
)
def test_an_interrupted_enrichment_leaves_no_pairs_and_is_repeated(
    tmp_path, make, monkeypatch, enrich, fault
):
    stub, out = Stub(fault), tmp_path / "out"
    module = "biphasic.tasks.enrich"
    monkeypatch.setattr(f"{module}._embedder", lambda *_: (stub, "stub"))
    monkeypatch.setattr(f"{module}._by_role", lambda *_: ((stub, stub), {"miner": "stub"}))
    pairs = make(tables=(write_rows(tmp_path / "rows.jsonl", ROWS),))
    killed = tmp_path / ".partial-out-0123abcd"  # what a process leaves that cannot clean up
    killed.mkdir()
    with pytest.raises(type(fault)):
        enrich(pairs, "model", out)
    assert not killed.exists()
    with pytest.raises(DataError, match="no finished pairs here"):
        Pairs(out)
    made, calls = enrich(pairs, "model", out), stub.calls
    assert enrich(pairs, "model", out).content_hash == made.content_hash
    assert stub.calls == calls  # nothing is embedded again
    other = make("other", tables=(write_rows(tmp_path / "other.jsonl", ROWS[:1]),))
    with pytest.raises(ConfigError, match="holds other pairs"):
        enrich(other, "model", out)


@pytest.mark.parametrize("name", ["file", "folder"])
def test_what_holds_something_else_is_refused_before_any_work(tmp_path, make, name):
    """Neither the table nor the model is there: work would fail."""
    pairs = make(tables=(write_rows(tmp_path / "rows.jsonl", ROWS),))
    out = tmp_path / name
    if name == "folder":
        out.mkdir()
    (out / "notes.txt" if name == "folder" else out).write_text("mine")
    for work in (
        lambda: make(name, tables=("none.jsonl",)),
        lambda: teach(pairs, "none", out),
        lambda: mine(pairs, "none", out, number=1, margin=1.0, depth=2),
    ):
        with pytest.raises(ConfigError, match=r"is a file|contains notes\.txt"):
            work()


def document(text: str) -> SourceDocument:
    return SourceDocument("1", text)


def test_weak_pairs_are_headings_and_paragraphs_and_neighbours():
    paragraphs = [f"{word} {LONG}." for word in ("first", "second")]
    text = "\n\n".join(["# The heading", *paragraphs, "Too short.", paragraphs[0]])
    pairs = document_pairs([document(text)], seed=0, per_document=9, most=None)
    assert pairs == [
        Pair("The heading", paragraphs[0], source="heading and paragraph"),
        Pair(paragraphs[0], paragraphs[1], source="paragraph and next"),
    ]


def test_a_repeated_paragraph_is_no_pair():
    first, second = (f"{word} {LONG}." for word in ("first", "second"))
    text = "\n\n".join([first, first, second])
    pairs = document_pairs([document(text)], seed=0, per_document=9, most=None)
    assert pairs == [Pair(first, second, source="paragraph and next")]


def test_the_draw_of_weak_pairs_follows_from_the_seed():
    texts = [
        document("\n\n".join(f"{place} {number} {LONG}." for number in range(8)))
        for place in range(6)
    ]

    def drawn(seed: int, most: int | None = None) -> list[Pair]:
        return document_pairs(texts, seed=seed, per_document=2, most=most)

    assert len(drawn(0)) == 12
    assert drawn(0) == drawn(0) != drawn(1)
    some = drawn(0, most=5)
    assert len(some) == 5
    assert [pair for pair in drawn(0) if pair in some] == some
