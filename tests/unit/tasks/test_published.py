"""The study's datasets: from miniature local copies to tasks, and what they cannot be."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pytest
from datasets import ClassLabel, Features, List, Value, load_dataset

import hub_copies
from biphasic import task as task_files
from biphasic.errors import ConfigError, DataError
from biphasic.tasks import hub_retrieval
from biphasic.tasks.folder import load_task
from biphasic.tasks.hub_retrieval import halve_queries
from biphasic.tasks.hub_tasks import PUBLISHED, HubSource, begin_entities
from biphasic.tasks.records import SPLITS, RetrievalTask
from biphasic.tasks.source import find_source, prepare_task
from hub_copies import write_dataset, write_jsonl_gz, write_qrels

# Of each: counts, settings, the first test row, and the hash of everything. BIPHASIC_RECORD=1
# writes it again.
RECORDED = Path(__file__).with_name("published.json")
TEXT, QRELS = Value("string"), "BeIR/nq-qrels/test.tsv"
ANSWERS = {"text": List(TEXT), "answer_start": List(Value("int32"))}


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
        return {name: written(name, root / name, copies=copies) for name in PUBLISHED}


@pytest.fixture(scope="module")
def tasks(folders: dict[str, Path]) -> dict[str, Any]:
    return {name: load_task(folder) for name, folder in folders.items()}


def written(name: str, folder: Path, **settings: Any) -> Path:
    HubSource.of_published(name, **settings).write(folder)
    return folder


def described(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "task.json").read_text("utf-8"))


def summary(folder: Path) -> dict[str, Any]:
    task, about = load_task(folder), described(folder)
    origin = {key: value for key, value in about["origin"].items() if key != "tables"}
    of = {
        "kind": task.info.kind,
        "counts": [task.num_examples(split) for split in SPLITS],
        "trained_on": task.info.trained_on,
        "protocol": about.get("protocol", {}),
        "origin": origin,
        "tables": [table["dataset"] for table in about["origin"]["tables"]],
        "sha256": task.info.sha256,
    }
    if isinstance(task, RetrievalTask):
        query, judged = next(iter(task.qrels["test"].items()))
        texts = {document: task.corpus[document] for document in judged}
        return {**of, "first": {"query": task.queries[query], "judged": judged, "texts": texts}}
    row = json.loads((folder / "test.jsonl").read_text("utf-8").splitlines()[0])
    text = getattr(task.splits["test"][0], "text", None)
    return {**of, "labels": [*task.labels[:5]], "first": row, "text": text}


def test_every_dataset_becomes_the_task_that_it_was(folders):
    kinds = [task.kind for task in PUBLISHED.values()]
    numbers = {"sc": 3, "tc": 3, "qa": 3, "ir": 3, "mp": 1}
    assert {kind: kinds.count(kind) for kind in kinds} == numbers
    found = {name: summary(folder) for name, folder in folders.items()}
    if os.environ.get("BIPHASIC_RECORD"):
        RECORDED.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    assert found == json.loads(RECORDED.read_text("utf-8"))
    tables = [table for each in folders.values() for table in described(each)["origin"]["tables"]]
    assert {(table["revision"], table["local"]) for table in tables} == {(None, True)}


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


def test_record_has_two_layouts_and_one_meaning(tasks, tmp_path):
    hub_copies.record_of_superglue(tmp_path / "copies")
    other = load_task(written("record", tmp_path / "record", copies=tmp_path / "copies"))
    assert other.splits == tasks["record"].splits
    assert [answer.start for answer in other.splits["test"][0].answers] == [9, 22]


def test_msmarco_trains_on_distinct_pairs_and_searches_judged_documents(tasks):
    task = tasks["msmarco"]
    pairs = {
        (task.queries[query], task.corpus[document])
        for query, judged in task.qrels["train"].items()
        for document in judged
    }
    numbers = range(hub_copies.NUM_PAIRS)
    assert pairs == {(f"Query: question {n // 2}", f"Document: passage {n % 20}") for n in numbers}
    searched = {key for key in task.corpus if not key.startswith("positive-")}
    assert searched == {str(n) for n in range(1, 8)}
    assert task.qrels["test"] == {"2": {"4": 1, "5": 0}, "3": {"6": 1, "7": 1}}


def test_halves_of_nq_are_seeded_disjoint_and_cover_all(copies, folders, tasks, tmp_path):
    task = tasks["nq"]
    validation, test = set(task.qrels["validation"]), set(task.qrels["test"])
    assert not validation & test
    assert validation | test == {f"xq{n}" for n in range(hub_copies.NUM_NQ_QUERIES)}
    assert load_task(written("nq", tmp_path / "again", copies=copies)) == task
    judged = {f"q{n}": {"d": 1} for n in range(40)}
    backwards = dict(reversed(judged.items()))
    assert halve_queries(judged, seed=1) == halve_queries(backwards, seed=1)
    assert halve_queries(judged, seed=1) != halve_queries(judged, seed=2)


def test_paper_halves_of_nq_are_drawn_and_recorded(copies, monkeypatch, tmp_path):
    monkeypatch.setattr("secrets.randbits", lambda _: 77)
    folder = written("nq", tmp_path / "nq", copies=copies, paper=True)
    origin, task = described(folder)["origin"], load_task(folder)
    assert (origin["split_seed"], origin["paper"]) == (77, True)
    judged = {f"xq{n}": {f"xd{2 * n}": 1} for n in range(hub_copies.NUM_NQ_QUERIES)}
    for split, by_query in halve_queries(judged, seed=77).items():
        assert set(task.qrels[split]) == set(by_query)


def test_more_pairs_than_a_study_reads_are_left_out(copies, monkeypatch, tmp_path):
    monkeypatch.setattr(hub_retrieval, "MAX_PAIRS", 6)
    few, again = (written("msmarco", tmp_path / name, copies=copies) for name in ("few", "again"))
    total = hub_copies.NUM_PAIRS
    assert described(few)["origin"]["pairs"] == {"kept": 6, "of": total, "seed": 42}
    rows = [(each / "qrels/train.tsv").read_text("utf-8").splitlines()[1:] for each in (few, again)]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 6
    every = written("msmarco", tmp_path / "all", copies=copies, paper=True)
    assert described(every)["origin"]["pairs"] == {"kept": total, "of": total}


@pytest.mark.parametrize(
    ("name", "document"), [("msmarco", "body 4"), ("nq", "Title 4 body 4"), ("mldr", "long text 5")]
)
def test_zero_shot_variants_have_no_training_split_and_no_prompts(copies, tmp_path, name, document):
    task = load_task(written(name, tmp_path / "task", copies=copies, kind="zs"))
    assert (task.info.name, task.info.kind, task.info.trained_on) == (f"{name}-zs", "zs", None)
    assert task.num_examples("train") == 0
    assert document in task.corpus.values()
    assert not any(key.startswith("positive-") for key in task.corpus)
    assert not any(text.startswith("Query: ") for text in task.queries.values())


def test_a_beir_archive_serves_as_a_copy(tmp_path, tasks):
    hub_copies.nq(tmp_path / "copies")
    (tmp_path / "copies/BeIR/nq/qrels").mkdir()
    (tmp_path / "copies" / QRELS).rename(tmp_path / "copies/BeIR/nq/qrels/test.tsv")
    folder = written("nq", tmp_path / "nq", copies=tmp_path / "copies")
    assert load_task(folder).info.sha256 == tasks["nq"].info.sha256


@pytest.mark.parametrize("name", ["sst2", "uner_en", "squad", "msmarco", "blimp"])
def test_the_shown_file_of_a_dataset_is_a_task_of_ones_own(copies, folders, tmp_path, name):
    (tmp_path / "mine.yaml").write_text(task_files.show(name), encoding="utf-8")
    source = str(tmp_path / "mine.yaml")
    folder = prepare_task(find_source(source, copies=copies), store=tmp_path / "store", say=print)
    paths = [path for path in folder.rglob("*") if path.suffix in {".jsonl", ".tsv"}]
    assert paths
    for path in paths:
        assert path.read_bytes() == (folders[name] / path.relative_to(folder)).read_bytes()
    origin = described(folder)["origin"]
    assert (origin["source"], origin["settings"]["name"]) == ("hub", "mine")


OTHER_KINDS = {
    "ml": ([{"text": "on cats", "labels": [0]}, {"text": "on cats", "labels": [0, 1]}], (1,)),
    "sr": ([{"sentence1": "a", "sentence2": "b", "score": score} for score in (2.5, 1.0)], 2.5),
}


@pytest.mark.parametrize("kind", ["ml", "sr", "sts"])
def test_every_kind_reads_tables_of_the_hub(tmp_path, kind):
    rows, answer = OTHER_KINDS["ml" if kind == "ml" else "sr"]
    numbers = {"text": TEXT, "labels": List(ClassLabel(names=["cats", "dogs"]))}
    splits = {("default", split): rows * 20 for split in ("train", "test")}
    write_dataset(tmp_path / "a/b", splits, Features(numbers) if kind == "ml" else None)
    needed = ("test",) if kind == "sts" else ("train", "test")
    raw: dict[str, Any] = {"hub": {name: {"dataset": "a/b", "split": name} for name in needed}}
    raw |= {"kind": kind, **({"labels": ["dogs", "cats"]} if kind == "ml" else {})}
    (tmp_path / "mine.yaml").write_text(json.dumps(raw), encoding="utf-8")
    source, store = str(tmp_path / "mine.yaml"), tmp_path / "store"
    task = load_task(prepare_task(find_source(source, copies=tmp_path), store=store, say=print))
    counts = [task.num_examples(split) for split in SPLITS]
    assert counts == ([0, 0, 40] if kind == "sts" else [38, 2, 40])
    [first, *_] = task.splits["test"]
    assert first.id == "test-0"
    # The task file has the labels in another order.
    assert (first.score if kind == "sts" else first.answer) == answer


def own_task(folder: Path, kind: str, hub: dict[str, Any], **settings: Any) -> Any:
    """Return the task of a task file whose tables are local copies in the same folder."""
    raw = {"kind": kind, "hub": hub, **settings}
    (folder / "mine.yaml").write_text(json.dumps(raw), encoding="utf-8")
    found = find_source(str(folder / "mine.yaml"), copies=folder)
    return load_task(prepare_task(found, store=folder / "store", say=print))


def tables_of(splits: Sequence[str], dataset: str = "a/b") -> dict[str, Any]:
    return {name: {"dataset": dataset, "split": name} for name in splits}


@pytest.mark.parametrize("kind", ["ir", "zs"])
def test_a_task_of_ones_own_searches_every_document_and_keeps_its_grades(tmp_path, kind):
    hub_copies.msmarco(tmp_path)
    of = PUBLISHED["msmarco"].hub.model_dump(exclude_none=True, exclude_defaults=True)
    hub = of if kind == "ir" else {name: of[name] for name in of if name != "pairs"}
    task = own_task(tmp_path, kind, hub)
    searched = {key for key in task.corpus if not key.startswith("positive-")}
    assert searched == {str(number) for number in range(50)}
    assert task.qrels["test"] == {"2": {"4": 3, "5": 0}, "3": {"6": 2, "7": 1}}
    judged = own_task(tmp_path, kind, hub, protocol={"retrieval_corpus": "judged"})
    searched = {key for key in judged.corpus if not key.startswith("positive-")}
    assert searched == {str(number) for number in range(1, 8)}
    assert judged.qrels["test"] == {"2": {"4": 1, "5": 0}, "3": {"6": 1, "7": 1}}


def of_beir(folder: Path, documents: list[dict[str, Any]], qrels: list[dict[str, Any]]) -> dict:
    """Write files of BEIR and a table of judgements, and return a task file's `hub`."""
    write_jsonl_gz(folder / "a/texts/corpus.jsonl.gz", documents)
    write_jsonl_gz(folder / "a/texts/queries.jsonl.gz", [{"_id": "q", "text": "t"}])
    write_dataset(folder / "a/qrels", {("default", "test"): qrels}, None)
    texts = tables_of(("corpus", "queries"), "a/texts")
    validation = {"dataset": "a/qrels", "split": "test"}
    return {**texts, "validation": validation, **tables_of(("test",), "a/qrels")}


def test_a_whole_corpus_has_each_document_once(tmp_path):
    first = {"_id": "d1", "title": "T", "text": "one", "metadata": {}}
    other = {"_id": "d2", "title": None, "text": "two", "metadata": {"url": "u"}}
    # Grades of published tables are often floats.
    qrels = [{"query-id": "q", "corpus-id": "d1", "score": 2.0}]
    hub = of_beir(tmp_path, [first, {**first, "metadata": {"url": "v"}}, other], qrels)
    task = own_task(tmp_path, "zs", hub)
    assert task.corpus == {"d1": "T one", "d2": "two"}
    assert task.qrels["test"] == {"q": {"d1": 2}}


@pytest.mark.parametrize(
    ("changes", "scores", "message"),
    [
        ([{"_id": "d2", "text": "another"}], [1], "the id 'd2' is repeated, with another text"),
        ([], [0.5], "row 0: expected a score of 0 or more as a whole number, not 0.5"),
        ([], [1, -1], "row 1: expected a score of 0 or more as a whole number, not -1"),
        ([], ["high"], "row 0: expected a score of 0 or more as a whole number, not 'high'"),
        ([], [1, 2], "'q' and the document 'd1' are judged twice, with the scores 1 and 2"),
    ],
)
def test_a_whole_corpus_or_grades_that_are_refused(tmp_path, changes, scores, message):
    documents = [{"_id": f"d{number}", "title": "", "text": "t"} for number in range(4)]
    documents += [{**documents[2], **change} for change in changes]
    qrels = [{"query-id": "q", "corpus-id": "d1", "score": score} for score in scores]
    with pytest.raises(DataError) as raised:
        own_task(tmp_path, "zs", of_beir(tmp_path, documents, qrels))
    assert message in str(raised.value)
    assert not [*tmp_path.glob("store/tasks/*")]


@pytest.mark.parametrize("number", [Value("int64"), ClassLabel(names=[*"54321"])])
def test_numbers_are_names_where_names_are_numbers(tmp_path, number):
    """As in files: 3 is the label 3, wherever it is in the list; a table's own names go first."""
    names = [1, 2, 3, 4, 5]
    columns = Features({"text": TEXT, "label": number})
    rows = [{"text": f"{n}", "label": n} for n in (names if number == Value("int64") else range(5))]
    splits = {("default", split): rows * 20 for split in ("train", "test")}
    write_dataset(tmp_path / "a/b", splits, columns)
    task = own_task(tmp_path, "sc", tables_of(("train", "test")), labels=names)
    assert task.labels == ("1", "2", "3", "4", "5")
    found = [task.labels[example.answer] for example in task.splits["test"][:5]]
    assert found == ([*"12345"] if number == Value("int64") else [*"54321"])


def test_numbers_of_label_sets_are_names_where_names_are_numbers(tmp_path):
    rows = [{"text": "a", "labels": [2, 1]}, {"text": "b", "labels": [3]}]
    splits = {("default", split): rows * 20 for split in ("train", "test")}
    write_dataset(tmp_path / "a/b", splits, None)
    task = own_task(tmp_path, "ml", tables_of(("train", "test")), labels=[1, 2, 3])
    assert [example.answer for example in task.splits["test"][:2]] == [(1, 0), (2,)]


@pytest.mark.parametrize("columns", [{"id": "key", "cluster": "author"}, {}])
def test_ids_and_clusters_are_read_as_from_files(tmp_path, columns):
    names = [columns.get(name, name) for name in ("id", "cluster")]
    rows = [
        {"text": f"t{n}", "label": n % 2, names[0]: f"k{n}", names[1]: f"c{n // 2}"}
        for n in range(40)
    ]
    splits = {("default", split): rows for split in ("train", "test")}
    write_dataset(tmp_path / "a/b", splits, None)
    settings = {"labels": ["no", "yes"], "columns": columns}
    task = own_task(tmp_path, "sc", tables_of(("train", "test")), **settings)
    assert task.ids("test") == tuple(f"k{n}" for n in range(40))
    assert task.info.clusters["test"] == {f"k{n}": f"c{n // 2}" for n in range(40)}
    settings["columns"] = {"cluster": "writer"}
    with pytest.raises(DataError, match="no column 'writer'"):
        own_task(tmp_path, "sc", tables_of(("train", "test")), **settings)


def test_csv_has_ids_and_clusters_as_text(tmp_path):
    """The library reads numbers there, and would drop their zeros."""
    (tmp_path / "a/b").mkdir(parents=True)
    content = "text,label,key,cluster\nx,no,007,01\ny,yes,008,01\n"
    for split in ("train", "validation", "test"):
        (tmp_path / f"a/b/{split}.csv").write_text(content)
    settings = {"labels": ["no", "yes"], "columns": {"id": "key"}}
    hub = tables_of(("train", "validation", "test"))
    task = own_task(tmp_path, "sc", hub, **settings)
    assert task.info.clusters["test"] == {"007": "01", "008": "01"}


def test_minimal_pairs_have_columns_of_other_names(tmp_path):
    rows = [{"good": f"It is {n}.", "bad": f"It are {n}.", "phenomenon": "be", "source": f"s{n}"}
            for n in range(2)]  # fmt: skip
    splits = {(config, "train"): rows for config in ("b", "a")}
    write_dataset(tmp_path / "a/b", splits, None)
    columns = {"sentence_good": "good", "sentence_bad": "bad", "cluster": "source"}
    hub = {"test": {"dataset": "a/b", "split": "train"}}
    task = own_task(tmp_path, "mp", hub, columns={**columns, "UID": "phenomenon"})
    assert task.ids("test") == ("a-0", "a-1", "b-0", "b-1")
    assert [(pair.good, pair.group) for pair in task.splits["test"][:2]] == [
        ("It is 0.", "be"), ("It is 1.", "be"),
    ]  # fmt: skip
    assert [*task.info.clusters["test"].values()] == ["s0", "s1"] * 2
    # The paradigm may be missing, as in files.
    task = own_task(tmp_path, "mp", hub, columns=columns)
    assert {pair.group for pair in task.splits["test"]} == {""}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hub": {"test": {"dataset": "a/b", "split": "t"}}}, r"hub\.train: .* kind sc needs it"),
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
        prepare_task(find_source(str(tmp_path / "mine.yaml")), store=tmp_path, say=print)


def tagged(copies: Path, tags: Any, row: dict[str, Any]) -> None:
    columns = {"tokens": List(TEXT), **({"tags": List(tags)} if tags else {})}
    columns |= {} if tags else {"entities": List(TEXT)}
    replaced(copies / "hgissbkh/ontonotes5", columns, row, ("train", "validation", "test"))


def replaced(folder: Path, columns: dict, row: dict, splits: Sequence[str], number: int = 3):
    rows = {("default", split): [row] * number for split in splits}
    write_dataset(folder, rows, Features(columns))


def unlabelled(copies: Path) -> None:
    hub_copies.glue(copies)
    parquet = (copies / f"nyu-mll/glue/sst2/{x}-00000-of-00001.parquet" for x in ("test", "train"))
    shutil.copy(*parquet)


def asked(answers: Any, columns: Any, number: int = 3):
    """Replace the questions of ReCoRD."""
    row = {"question": "q", "context": "c", "answers": answers}
    types = {"question": TEXT, "context": TEXT, "answers": columns}
    splits = ("train", "validation")
    return lambda copies: replaced(copies / "hgissbkh/record", types, row, splits, number)


def judged(*rows: tuple[str, str, int]):
    def change(copies: Path) -> None:
        hub_copies.nq(copies)
        write_qrels(copies / QRELS, rows)

    return change


def published_twice(copies: Path) -> None:
    judged(*((f"xq{n}", f"xd{n}", 1) for n in (1, 2, 3, 4)))(copies)
    path = copies / "BeIR/nq/corpus.jsonl.gz"
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    row = next(row for row in rows if row["_id"] == "xd2")
    write_jsonl_gz(path, [row, {**row, "text": "another"}, *rows])


def without_title(copies: Path) -> None:
    hub_copies.nq(copies)
    (copies / "BeIR/nq/corpus.jsonl.gz").unlink()
    (copies / "BeIR/nq/corpus.jsonl").write_text('{"_id": "xd0", "text": "no title"}\n')


def other_header(copies: Path) -> None:
    hub_copies.nq(copies)
    (copies / QRELS).write_text("qid\tcorpus-id\tscore\nxq1\txd1\t1\n")


def passages(*positive: dict[str, str]):
    def change(copies: Path) -> None:
        row = {"query_id": "1", "query": "q", "positive_passages": [*positive]}
        for split in ("dev", "test"):
            write_jsonl_gz(copies / f"hgissbkh/mldr-en/{split}.jsonl.gz", [row])

    return change


def with_code(copies: Path) -> None:
    (copies / "hgissbkh/ontonotes5").mkdir(parents=True)
    (copies / "hgissbkh/ontonotes5/ontonotes5.py").write_text("import datasets\n")


def of_blimp(copies: Path) -> None:
    rows = {("one", "train"): [{"sentence_good": "a", "UID": "one"}]}
    write_dataset(copies / "nyu-mll/blimp", rows, None)


def of_tags(tokens: list[str], tags: list[int]):
    return lambda copies: tagged(copies, Value("int32"), {"tokens": tokens, "tags": tags})


def with_names(copies: Path) -> None:
    tagged(copies, ClassLabel(names=["O", "B-X"]), {"tokens": ["a"], "tags": [0]})


NQ = "BeIR/nq ({0}, {0}): 1 rows with judgements are missing, such as "
REFUSED = [
    ("sst-2", None, "no published dataset 'sst-2' (did you mean 'sst2'?)"),
    ("ontonotes5", lambda copies: tagged(copies, None, {"tokens": [], "entities": []}),
     "hf:hgissbkh/ontonotes5, split train: no column 'tags' (known: entities, tokens)"),
    ("ontonotes5", with_names, "its labels are O, B-X, not O, B-CARDINAL"),
    ("ontonotes5", of_tags(["a"], [37]),
     "(train): row 0: unknown label 37 at token 0; the task file has 37 labels"),
    ("ontonotes5", of_tags(["a"], [-1]), "(train): row 0: unknown label -1 at token 0"),
    ("ontonotes5", of_tags(["a", "b"], [0]), "(train): row 0: 2 tokens but 1 tags"),
    ("ontonotes5", with_code, "needs custom code"),
    ("sst2", unlabelled, "unknown label '-1'; the task file has 2 labels (known: negative, pos"),
    ("record", asked(["c"], List(TEXT)),
     "answers need 'text' and 'answer_start' or 'start', found ['c']"),
    ("record", asked({"text": ["c"], "answer_start": [0]}, ANSWERS, 1),
     "1 rows cannot be split into train and validation"),
    ("nq", judged(("xq0", "xd99", 1)), f"{NQ.format('corpus')}'xd99'"),
    ("nq", judged(("xq99", "xd1", 1)), f"{NQ.format('queries')}'xq99'"),
    ("nq", judged(("xq1", "xd1", 0)), "BeIR/nq-qrels (test): the query 'xq1' has no relevant docu"),
    *(("nq", judged(("xq0", "xd1", 1), ("xq0", "xd2", n), ("xq0", "xd2", 1 - n)),
       "row 2: the query 'xq0' and the document 'xd2' are judged twice") for n in (0, 1)),
    ("nq", published_twice,
     "BeIR/nq (corpus, corpus): the id 'xd2' is repeated, with another text"),
    ("nq", without_title, "corpus.jsonl:1: no field 'title'"),
    ("nq", other_header, "no column 'query-id'"),
    ("mldr", passages({"id": "a"}), "a positive passage has no 'docid'"),
    ("mldr", passages(), "the query '1' has no relevant document"),
    ("blimp", of_blimp, "no column 'sentence_bad'"),
]  # fmt: skip
WITH_SETTINGS = [
    ("sst2", {"kind": "zs"}, "'sst2' is of kind sc"),
    ("nq", {"revision": "v1"}, "could mean any of BeIR/nq, BeIR/nq-qrels; write owner/name=revi"),
    ("sst2", {"revision": "nyu-mll/glu=v1"},
     "does not read 'nyu-mll/glu' (did you mean 'nyu-mll/glue'?)"),
    ("nq", {"revision": "BeIR/nq="}, "'BeIR/nq=': write owner/name=revision"),
    ("nq", {"revision": "BeIR/nq=a,b"}, "'b': write owner/name=revision"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [*REFUSED, *WITH_SETTINGS],
    ids=lambda part: None if callable(part) else str(part)[:60],
)
def test_what_a_dataset_cannot_be_is_said_in_one_line(tmp_path, name, change, message):
    if callable(change):
        change(tmp_path)
    with pytest.raises(DataError) as raised:
        written(
            name, tmp_path / "task", copies=tmp_path, **(change if type(change) is dict else {})
        )
    assert "\n" not in str(raised.value)
    assert message in str(raised.value)
    assert not (tmp_path / "task").exists()


def test_a_dataset_of_another_name_is_refused():
    with pytest.raises(DataError, match=r"no published dataset 'sst3' \(did you mean 'sst2'"):
        task_files.show("sst3")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """A hub that has the copies below `hub`, and another commit each time that it is asked."""
    asked, loaded = [], set()

    class MovingHub:
        def dataset_info(self, dataset, *, revision, **_):
            asked.append((dataset, revision))
            return huggingface_hub.DatasetInfo(id=dataset, sha=f"{len(asked):040x}", private=False)

    def fetching(load):
        def fetched(path, *, revision, **options):
            loaded.add(revision)
            return load(str(tmp_path / "hub" / path), **options)

        return fetched

    monkeypatch.setattr(huggingface_hub, "HfApi", MovingHub)
    for name in ("load_dataset", "load_dataset_builder"):
        monkeypatch.setattr(datasets, name, fetching(getattr(datasets, name)))
    return asked


def test_the_hub_is_asked_once_for_each_dataset(tmp_path, hub):
    """Its three tables are of one commit, also if the branch moves while they are read."""
    hub_copies.mldr(tmp_path / "hub")
    folder = prepare_task(find_source("mldr", revision="v2"), store=tmp_path / "store", say=print)
    assert hub == [("hgissbkh/mldr-en", "v2")]
    tables = described(folder)["origin"]["tables"]
    assert [table["split"] for table in tables] == ["dev", "test", "corpus"]
    assert [table["revision"] for table in tables] == [f"{1:040x}"] * 3


def test_each_repository_has_its_revision(hub):
    source = HubSource.of_published("nq", revision="BeIR/nq-qrels=abc, BeIR/nq=def")
    commits = {table["dataset"]: table["revision"] for table in source.tables["tables"]}
    assert dict(hub) == {"BeIR/nq": "def", "BeIR/nq-qrels": "abc"}
    assert len(set(commits.values())) == 2


def test_the_cache_key_follows_what_is_read(tmp_path):
    hub_copies.nq(tmp_path)
    hub_copies.glue(tmp_path)

    def key(name: str, **settings: Any) -> dict[str, Any]:
        return HubSource.of_published(name, copies=tmp_path, **settings).determinants

    first = key("nq")
    assert first == key("nq")
    assert first not in (key("nq", paper=True), key("nq", kind="zs"))
    assert key("sst2") == key("sst2", paper=True)  # its tables are read in one way
    write_qrels(tmp_path / QRELS, [("xq0", "xd2", 1)])
    assert first != key("nq")
    assert str(tmp_path) not in json.dumps(first)


def test_a_change_in_the_reading_of_own_tasks_makes_only_these_again(tmp_path):
    hub_copies.glue(tmp_path)
    (tmp_path / "mine.yaml").write_text(task_files.show("sst2"), encoding="utf-8")
    own = find_source(str(tmp_path / "mine.yaml"), copies=tmp_path).determine()
    published = HubSource.of_published("sst2", copies=tmp_path).determinants
    assert own["origin"] == {**own["origin"], "version": 2}
    assert published["origin"]["version"] == 1
