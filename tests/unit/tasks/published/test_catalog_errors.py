"""What the study's datasets cannot be, in one line each; revisions and cache keys."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pytest
from datasets import Features, List, Value

import hub_copies
from biphasic.data.text.hub_tables import HubSplit, HubTable
from biphasic.errors import DataError
from biphasic.tasks.hub_tasks import HubSource
from biphasic.tasks.source import prepare_task

TEXT = Value("string")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def refused(name: str, tmp_path: Path, **settings: Any) -> str:
    """Return the message, and check that it is one line and leaves nothing behind."""
    with pytest.raises(DataError) as raised:
        HubSource.of_published(name, copies=tmp_path, **settings).write(tmp_path / "task")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "task").exists()
    return str(raised.value)


def replace_dataset(
    folder: Path, columns: dict[str, Any], row: dict[str, Any], splits: tuple[str, ...]
) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    rows = {("default", split): [row] * 3 for split in splits}
    hub_copies.write_dataset(folder, rows, Features(columns))


def tagged(tmp_path: Path, columns: dict[str, Any], row: dict[str, Any]) -> None:
    folder = tmp_path / "hgissbkh/ontonotes5"
    replace_dataset(folder, columns, row, ("train", "validation", "test"))


def test_an_unknown_name_is_reported_with_the_nearest(tmp_path):
    assert refused("sst-2", tmp_path) == "no published dataset 'sst-2' (did you mean 'sst2'?)"


def test_a_missing_column_is_reported_with_the_existing_ones(tmp_path):
    tagged(tmp_path, {"tokens": List(TEXT), "entities": List(TEXT)}, {"tokens": [], "entities": []})
    assert refused("ontonotes5", tmp_path) == (
        "hf:hgissbkh/ontonotes5, split train: no column 'tags' (known: entities, tokens)"
    )


def test_other_label_names_are_refused(tmp_path):
    from datasets import ClassLabel

    names = ClassLabel(names=["O", "B-X"])
    tagged(tmp_path, {"tokens": List(TEXT), "tags": List(names)}, {"tokens": ["a"], "tags": [0]})
    assert "its labels are O, B-X, not O, B-CARDINAL" in refused("ontonotes5", tmp_path)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"tokens": ["a"], "tags": [37]},
            "(train): row 0: unknown label 37 at token 0; the task file has 37 labels",
        ),
        ({"tokens": ["a"], "tags": [-1]}, "(train): row 0: unknown label -1 at token 0"),
        ({"tokens": ["a", "b"], "tags": [0]}, "(train): row 0: 2 tokens but 1 tags"),
    ],
)
def test_unusable_rows_are_reported_by_number(tmp_path, row, expected):
    tagged(tmp_path, {"tokens": List(TEXT), "tags": List(Value("int32"))}, row)
    assert expected in refused("ontonotes5", tmp_path)


def test_an_unlabelled_row_is_refused(tmp_path):
    hub_copies.glue(tmp_path)
    folder = tmp_path / "nyu-mll/glue"
    shutil.copy(
        folder / "sst2/test-00000-of-00001.parquet", folder / "sst2/train-00000-of-00001.parquet"
    )
    assert "(sst2, train): row " in (message := refused("sst2", tmp_path))
    assert "unknown label '-1'; the task file has 2 labels (known: negative, pos" in message


def test_answers_without_positions_are_refused(tmp_path):
    row = {"question": "q", "context": "c", "answers": ["c"]}
    columns = {"question": TEXT, "context": TEXT, "answers": List(TEXT)}
    replace_dataset(tmp_path / "hgissbkh/record", columns, row, ("train", "validation"))
    message = refused("record", tmp_path)
    assert "answers need 'text' and 'answer_start' or 'start', found ['c']" in message


def test_one_row_cannot_be_split(tmp_path):
    answers = {"text": List(TEXT), "answer_start": List(Value("int32"))}
    columns = {"question": TEXT, "context": TEXT, "answers": answers}
    row = {"question": "q", "context": "c", "answers": {"text": ["c"], "answer_start": [0]}}
    rows = {("default", "train"): [row], ("default", "validation"): [row]}
    hub_copies.write_dataset(tmp_path / "hgissbkh/record", rows, Features(columns))
    assert "1 rows cannot be split into train and validation" in refused("record", tmp_path)


@pytest.mark.parametrize(
    ("judged", "expected"),
    [
        (
            ("xq0", "xd99", 1),
            "BeIR/nq (corpus, corpus): 1 rows with judgements are missing, such as 'xd99'",
        ),
        (
            ("xq99", "xd1", 1),
            "BeIR/nq (queries, queries): 1 rows with judgements are missing, such as 'xq99'",
        ),
        (("xq1", "xd1", 0), "BeIR/nq-qrels (test): the query 'xq1' has no relevant document"),
    ],
)
def test_judgements_must_fit_the_texts(tmp_path, judged, expected):
    hub_copies.nq(tmp_path)
    hub_copies.write_qrels(tmp_path / "BeIR/nq-qrels/test.tsv", [judged])
    assert expected in refused("nq", tmp_path)


@pytest.mark.parametrize("scores", [(1, 0), (0, 1)])
def test_a_pair_that_is_judged_twice_is_refused_in_any_order(tmp_path, scores):
    hub_copies.nq(tmp_path)
    path = tmp_path / "BeIR/nq-qrels/test.tsv"
    hub_copies.write_qrels(path, [("xq0", "xd1", 1), *(("xq0", "xd2", each) for each in scores)])
    assert "row 2: the query 'xq0' and the document 'xd2' are judged twice" in refused(
        "nq", tmp_path
    )


def test_a_document_that_is_published_twice_is_refused(tmp_path):
    hub_copies.nq(tmp_path)
    path = tmp_path / "BeIR/nq/corpus.jsonl.gz"
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    path.unlink()
    judged = next(row for row in rows if row["_id"] == "xd2")
    hub_copies.write_qrels(
        tmp_path / "BeIR/nq-qrels/test.tsv", [(f"xq{n}", f"xd{n}", 1) for n in (1, 2, 3, 4)]
    )
    hub_copies.write_jsonl_gz(path, [judged, {**judged, "text": "another"}, *rows])
    message = refused("nq", tmp_path)
    assert "BeIR/nq (corpus, corpus): the id 'xd2' is repeated, with another text" in message


def test_documents_and_judgements_of_other_columns(tmp_path):
    hub_copies.nq(tmp_path)
    (tmp_path / "BeIR/nq/corpus.jsonl.gz").unlink()
    (tmp_path / "BeIR/nq/corpus.jsonl").write_text('{"_id": "xd0", "text": "no title"}\n')
    assert "corpus.jsonl:1: no field 'title'" in refused("nq", tmp_path)
    (tmp_path / "BeIR/nq-qrels/test.tsv").write_text("qid\tcorpus-id\tscore\nxq1\txd1\t1\n")
    assert "no column 'query-id'" in refused("nq", tmp_path)


def test_mldr_needs_ids_of_passages(tmp_path):
    folder = tmp_path / "hgissbkh/mldr-en"
    row = {"query_id": "1", "query": "q", "positive_passages": [{"id": "a"}]}
    for split in ("dev", "test"):
        hub_copies.write_jsonl_gz(folder / f"{split}.jsonl.gz", [row])
    assert "a positive passage has no 'docid'" in refused("mldr", tmp_path)


def test_a_dataset_that_needs_code_is_reported(tmp_path):
    folder = tmp_path / "hgissbkh/ontonotes5"
    folder.mkdir(parents=True)
    (folder / "ontonotes5.py").write_text("import datasets\n")
    assert "needs custom code" in refused("ontonotes5", tmp_path)


@pytest.mark.parametrize(
    ("name", "revision", "expected"),
    [
        ("nq", "v1", "could mean any of BeIR/nq, BeIR/nq-qrels; write owner/name=revision"),
        ("sst2", "nyu-mll/glu=v1", "does not read 'nyu-mll/glu' (did you mean 'nyu-mll/glue'?)"),
        ("nq", "BeIR/nq=", "'BeIR/nq=': write owner/name=revision"),
        ("nq", "BeIR/nq=a,b", "'b': write owner/name=revision"),
    ],
)
def test_revisions_that_cannot_be_read(tmp_path, name, revision, expected):
    assert expected in refused(name, tmp_path, revision=revision)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub that resolves every revision, and holds the copies below `hub`."""
    real = HubSplit.open
    root = tmp_path / "hub"

    def open_hub(split: HubSplit, copies: Path | None, texts: Sequence[str]) -> HubTable:
        split_here = replace(split, dataset=str(root / split.dataset), revision=None)
        opened = real(split_here, texts=texts)
        origin = {key: value for key, value in opened.origin.items() if key != "local"}
        named = {"dataset": split.dataset, "revision": split.revision}
        return HubTable(opened.rows, {**origin, **named})

    def fingerprint(split: HubSplit, copies: Path | None) -> dict[str, Any]:
        return {"dataset": split.dataset, "revision": f"commit of {split.revision or 'main'}"}

    monkeypatch.setattr(HubSplit, "open", open_hub)
    monkeypatch.setattr(HubSplit, "fingerprint", fingerprint)
    return root


def test_resolved_revisions_are_recorded(tmp_path, hub):
    hub_copies.mldr(hub)
    HubSource.of_published("mldr", revision="v2").write(tmp_path / "task")
    tables = json.loads((tmp_path / "task/task.json").read_text("utf-8"))["origin"]["tables"]
    assert [(table["split"], table["revision"]) for table in tables] == [
        ("dev", "commit of v2"),
        ("test", "commit of v2"),
        ("corpus", "commit of v2"),
    ]


def test_the_hub_is_asked_once_for_each_dataset(tmp_path, monkeypatch):
    """Its three tables are of one commit, also if the branch moves while they are read."""
    hub_copies.mldr(tmp_path / "hub")
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
    task = prepare_task("mldr", store=tmp_path / "store", revision="v2", say=print)
    assert asked == [("hgissbkh/mldr-en", "v2")]
    assert loaded == {f"{1:040x}"}
    tables = json.loads((task / "task.json").read_text("utf-8"))["origin"]["tables"]
    assert [table["revision"] for table in tables] == [f"{1:040x}"] * 3


def test_each_repository_has_its_revision(hub):
    source = HubSource.of_published("nq", revision="BeIR/nq-qrels=abc, BeIR/nq=def")
    revisions = {table["dataset"]: table["revision"] for table in source.tables["tables"]}
    assert revisions == {"BeIR/nq": "commit of def", "BeIR/nq-qrels": "commit of abc"}


def test_the_cache_key_follows_what_is_read(tmp_path):
    hub_copies.nq(tmp_path)
    hub_copies.glue(tmp_path)

    def key(name: str, **settings: Any) -> dict[str, Any]:
        return HubSource.of_published(name, copies=tmp_path, **settings).determinants

    first = key("nq")
    assert first == key("nq")
    assert first not in (key("nq", paper=True), key("nq", kind="zs"))
    assert key("sst2") == key("sst2", paper=True)  # its tables are read in one way
    hub_copies.write_qrels(tmp_path / "BeIR/nq-qrels/test.tsv", [("xq0", "xd2", 1)])
    assert first != key("nq")
    assert str(tmp_path) not in json.dumps(first)
