"""Sources of text: how they are written, read and fingerprinted."""

import json
import os
import platform
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from biphasic.config import parse_config
from biphasic.data.building.config import CorpusConfig
from biphasic.data.text.source import SourceContext, SourceDocument
from biphasic.data.text.sources import HubSplit, SourceConfig, read_documents, source_origin
from biphasic.errors import ConfigError, DataError
from biphasic.pydocs import documents as documentation
from biphasic.pydocs.documents import Document


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def copies(tmp_path) -> Path:
    folder = tmp_path / "copies"
    (folder / "acme/tiny/data").mkdir(parents=True)
    table = pa.table({"text": ["a", "b", None], "id": [7, 8, 9], "body": ["x", "y", "z"]})
    pq.write_table(table, folder / "acme/tiny/data/train-00000-of-00001.parquet")
    table = pa.table({"text": ["t"], "license": ["MIT"]})
    (folder / "acme/more").mkdir()
    pq.write_table(table, folder / "acme/more/test-00000-of-00001.parquet")
    return folder


def source(raw) -> SourceConfig:
    return parse_config(SourceConfig, raw if isinstance(raw, dict) else {"source": raw}, where="f")


def test_a_plain_string_is_a_source():
    assert CorpusConfig(sources=("a/b.txt",)).sources == (SourceConfig(source="a/b.txt"),)


def test_the_three_sorts():
    builtin, hub, path = source("builtin:pydocs"), source("hf:a/b"), source("~/b.txt")
    assert (builtin.is_builtin, builtin.hub, builtin.path) == (True, None, None)
    assert (hub.is_builtin, hub.path) == (False, None)
    assert hub.hub == HubSplit("a/b", None, "train", None, None, streaming=True)
    assert (path.is_builtin, path.hub, path.path) == (False, None, Path.home() / "b.txt")


def test_all_that_a_hub_source_can_say():
    text = "hf:a/b?name=sample-10BT&split=train%5B:5%5D&revision=v1&column=body&streaming=false"
    hub = source(text).hub
    assert hub == HubSplit("a/b", "sample-10BT", "train[:5]", "v1", "body", streaming=False)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("hf:a/b?splt=test", "unknown key 'splt' (did you mean 'split'?)"),
        ("hf:a/b?config=x", "unknown key 'config'"),
        ("hf:a/b?name=x&name=y", "give 'name' one value"),
        ("hf:a/b?name=", "give 'name' one value"),
        ("hf:a/b?name", "give 'name' one value"),
        ("hf:a/b?streaming=no", "streaming must be true or false, not 'no'"),
        ("hf:?name=x", "the form is hf:OWNER/NAME"),
        ("hf:", "the form is hf:OWNER/NAME"),
        ("builtin:pydoc", "unknown source 'builtin:pydoc' (did you mean 'builtin:pydocs'?)"),
        ("", "source is empty"),
        (" ", "source is empty"),
        ({"source": "builtin:pydocs", "column": "y"}, "'builtin:pydocs' has no columns"),
        ({"source": "hf:a/b?column=x", "column": "y"}, "column"),
        ({"source": "a.txt", "share": 0}, "share: input should be greater than 0"),
        ({"source": "a.txt", "share": -1}, "share: input should be greater than 0"),
        ({"source": "a.txt", "colum": "y"}, "unknown key 'colum' (did you mean 'column'?)"),
        ({"column": "y"}, "'source' is required"),
    ],
    ids=str,
)
def test_mistakes_are_named(raw, message):
    with pytest.raises(ConfigError) as refused:
        source(raw)
    assert str(refused.value).startswith("f: ")
    assert message in str(refused.value)


def test_relative_paths_are_taken_from_a_folder(copies, tmp_path):
    assert source("in/a.txt").anchored(tmp_path).source == str(tmp_path / "in/a.txt")
    assert source("/in/a.txt").anchored(tmp_path).source == "/in/a.txt"
    assert source("~/a.txt").anchored(tmp_path).source == str(Path.home() / "a.txt")
    local = source("hf:copies/acme/tiny?split=x").anchored(tmp_path)
    assert local.source == f"hf:{copies / 'acme/tiny'}?split=x"
    for same in ("hf:acme/tiny?split=x", "builtin:pydocs"):
        assert source(same).anchored(tmp_path) == source(same)
    assert source({"source": "a", "share": 2, "column": "c"}).anchored(tmp_path) == source(
        {"source": str(tmp_path / "a"), "share": 2, "column": "c"}
    )


def test_files(tmp_path):
    rows = [{"body": "x", "license": "MIT"}, {"body": "y"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"source": str(tmp_path / "a.jsonl"), "column": "body", "license": "CC0-1.0"}
    assert list(read_documents(source(given))) == [
        SourceDocument("a.jsonl:1", "x", None, "MIT"),
        SourceDocument("a.jsonl:2", "y", None, "CC0-1.0"),
    ]


@pytest.mark.parametrize("streaming", ["true", "false"])
def test_hub_datasets_through_local_copies(copies, streaming):
    text = f"hf:acme/tiny?streaming={streaming}"
    assert list(read_documents(source(text), SourceContext(copies=copies))) == [
        SourceDocument("7", "a", None),
        SourceDocument("8", "b", None),
        SourceDocument("9", "", None),
    ]
    bodies = read_documents(source(f"{text}&column=body"), SourceContext(copies=copies))
    assert [document.text for document in bodies] == ["x", "y", "z"]
    same = read_documents(source({"source": text, "column": "body"}), SourceContext(copies=copies))
    assert [document.text for document in same] == ["x", "y", "z"]
    given = {"source": f"hf:acme/more?split=test&streaming={streaming}", "license": "CC0-1.0"}
    more = list(read_documents(source(given), SourceContext(copies=copies)))
    assert more == [SourceDocument("test:0", "t", None, "MIT")]


def test_whole_numbers_are_found_beside_empty_cells(tmp_path):
    (tmp_path / "years").mkdir()
    (tmp_path / "years/train.csv").write_text("text,year\na,2020\nb,\nc,2021\n")
    pq.write_table(pa.table({"text": ["a", "c"], "year": [2020.0, 2021.5]}), tmp_path / "y.parquet")
    for name in (f"hf:{tmp_path / 'years'}", str(tmp_path / "y.parquet")):
        for year in (2020, "2020.0"):
            own = source({"source": name, "only": {"year": year}})
            assert [document.text for document in read_documents(own)] == ["a"]


def test_a_folder_in_the_hub_s_layout(copies):
    documents = read_documents(source(f"hf:{copies / 'acme/tiny'}"))
    assert [document.id for document in documents] == ["7", "8", "9"]


@pytest.mark.parametrize("streaming", ["true", "false"])
def test_a_hub_column_that_is_no_text_is_named_with_its_row(copies, streaming):
    text = f"hf:acme/tiny?streaming={streaming}"
    message = r"hf:acme/tiny, split train, row 0: 'id' is not text but a value of type int"
    with pytest.raises(DataError, match=message):
        list(read_documents(source(f"{text}&column=id"), SourceContext(copies=copies)))
    with pytest.raises(DataError, match=r"no column 'txt' .*'text'"):
        list(read_documents(source(f"{text}&column=txt"), SourceContext(copies=copies)))


def test_the_built_in_source_keeps_its_splits_and_not_its_test_documents(monkeypatch):
    def load(libraries):
        assert libraries == ("numpy",)
        return [
            Document(split, f"text {split}", "m", "numpy", split)
            for split in ("train", "validation", "test")
        ]

    monkeypatch.setattr(documentation, "load_documents", load)
    documents = read_documents(source("builtin:pydocs"), SourceContext(("numpy",)))
    assert list(documents) == [
        SourceDocument("train", "text train", "train"),
        SourceDocument("validation", "text validation", "heldout"),
    ]
    licensed = source({"source": "builtin:pydocs", "license": "PSF-2.0"})
    documents = read_documents(licensed, SourceContext(("numpy",)))
    assert [document.license for document in documents] == ["PSF-2.0", "PSF-2.0"]


def test_origin_of_files(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("abc")
    (folder / "b.pdf").write_text("?")
    given = source({"source": str(folder), "license": "MIT"})
    origin = source_origin(given)
    assert str(tmp_path) not in json.dumps(origin)
    assert (origin["source"], origin["name"]) == ("files", "texts")
    assert (origin["files"]["count"], origin["files"]["bytes"]) == (1, 3)
    assert (origin["num_ignored"], origin["license"]) == (1, "MIT")
    for change in ({"license": "CC0"}, {"column": "x"}):
        assert source_origin(given.model_copy(update=change)) != origin
    os.utime(folder / "b.pdf", ns=(1, 1))  # not read, so of no consequence
    assert source_origin(given) == origin
    os.utime(folder / "a.txt", ns=(1, 1))
    assert source_origin(given) == origin
    (folder / "a.txt").write_text("xyz")
    os.utime(folder / "a.txt", ns=(1, 1))
    assert source_origin(given) != origin
    with pytest.raises(DataError, match="no such file or folder"):
        source_origin(source(str(tmp_path / "none")))


def test_origin_of_a_local_copy(copies):
    origin = source_origin(source("hf:acme/tiny?column=body"), SourceContext(copies=copies))
    assert str(copies) not in json.dumps(origin)
    assert origin["column"] == "body"
    assert (origin["dataset"], origin["config"], origin["split"]) == ("acme/tiny", None, "train")
    assert (origin["revision"], origin["local"], origin["files"]["count"]) == (None, True, 1)
    # How rows are fetched does not change them.
    same = source_origin(
        source("hf:acme/tiny?column=body&streaming=false"), SourceContext(copies=copies)
    )
    assert same == origin
    by_path = source_origin(source(f"hf:{copies / 'acme/tiny'}"))
    assert str(copies) not in json.dumps(by_path)


def test_origin_of_the_built_in_source():
    origin = source_origin(source("builtin:pydocs"), SourceContext(("numpy", "python")))
    assert set(origin["libraries"]) == {"numpy"}
    assert origin["standard_library"]
    assert origin["python"] == platform.python_version()
    assert not source_origin(source("builtin:pydocs"), SourceContext(("numpy",)))[
        "standard_library"
    ]
    assert source_origin(source("builtin:pydocs"))["standard_library"]
    # A licence is part of it, and none is as it always was.
    licensed = source({"source": "builtin:pydocs", "license": "PSF-2.0"})
    names = ("numpy", "python")
    assert source_origin(licensed, SourceContext(names)) == {**origin, "license": "PSF-2.0"}
    assert "license" not in origin


def test_reading_is_lazy(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\nnot JSON\n')
    documents = read_documents(source(str(tmp_path)))
    assert next(documents).text == "a"
    with pytest.raises(DataError, match=r"a\.jsonl:2: not valid JSON"):
        next(documents)
