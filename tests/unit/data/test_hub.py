"""Datasets of the hub, through local copies in its layout; nothing here reaches the network."""

import errno
import json
import logging
import os
import resource
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import datasets
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import biphasic
from biphasic.data.text import hub_tables as module
from biphasic.data.text.hub_tables import HubSplit, find_copy, resolve_revision
from biphasic.data.text.sources import SourceConfig, read_documents
from biphasic.errors import DataError
from biphasic.hub import quiet
from biphasic.study.resolve import resolve
from biphasic.study.study import Study
from mini_study import flip
from tiny_study import mlm, tiny_study

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CARD = """---
configs:
- config_name: v1
  data_files:
  - split: train
    path: v1/train-*
  - split: validation
    path: v1/validation-*
- config_name: v2
  data_files:
  - split: train
    path: v2/train-*
---
A card.
"""


def write_table(path: Path, **columns) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def copies(tmp_path) -> Path:
    """Local copies: one config by file names, two by the card, and several that are no use."""
    folder = tmp_path / "copies"
    tiny = folder / "acme/tiny/data"
    write_table(tiny / "train-00000-of-00002.parquet", text=["a", "b"], n=[1, 2])
    write_table(tiny / "train-00001-of-00002.parquet", text=["c"], n=[3])
    write_table(tiny / "test-00000-of-00001.parquet", text=["t"], n=[4])
    for name in ("v1/train", "v1/validation", "v2/train"):
        write_table(folder / f"acme/multi/{name}-00000-of-00001.parquet", text=[name])
    (folder / "acme/multi/README.md").write_text(CARD)
    (folder / "acme/empty").mkdir()
    (folder / "acme/code").mkdir()
    (folder / "acme/code/code.py").write_text("import datasets\n")
    (folder / "acme/broken/data").mkdir(parents=True)
    (folder / "acme/broken/data/train-00000-of-00001.parquet").write_bytes(b"no parquet")
    return folder


def texts(table) -> list:
    return [row["text"] for row in table.read(["text"])]


def open_hub(dataset, *, copies=None, **names):
    return HubSplit(dataset, **names).open(copies)


def hub_fingerprint(dataset, *, copies=None, **names):
    return HubSplit(dataset, **names).fingerprint(copies)


def refusal(function, *arguments, **options) -> str:
    with pytest.raises(DataError) as refused:
        function(*arguments, **options)
    message = str(refused.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("streaming", [False, True])
def test_splits_and_configs(copies, streaming):
    def read(dataset, **names):
        return texts(open_hub(dataset, **names, streaming=streaming, copies=copies))

    assert read("acme/tiny") == ["a", "b", "c"]
    assert read("acme/tiny", split="test") == ["t"]
    assert read("acme/tiny", config="default") == ["a", "b", "c"]
    assert read("acme/multi", config="v1") == ["v1/train"]
    assert read("acme/multi", config="v1", split="validation") == ["v1/validation"]
    assert read("acme/multi", config="v2") == ["v2/train"]


def test_a_copy_that_was_changed_is_read_again(copies, tmp_path):
    def read(folder):
        return texts(open_hub("acme/multi", config="v1", copies=folder))

    assert read(copies) == ["v1/train"]
    # The library itself knows a copy by its folder's name and config.
    other = tmp_path / "other"
    shutil.copytree(copies / "acme/multi", other / "acme/multi")
    write_table(other / "acme/multi/v1/train-00000-of-00001.parquet", text=["other"])
    assert read(other) == ["other"]
    write_table(copies / "acme/multi/v1/train-00000-of-00001.parquet", text=["changed"])
    assert read(copies) == ["changed"]
    assert read(other) == ["other"]


def test_a_fingerprint_of_a_copy_follows_its_files_without_notes_of_a_download(copies):
    before = hub_fingerprint("acme/tiny", copies=copies)
    assert before["files"]["count"] == 3
    note = copies / "acme/tiny/.cache/huggingface/download/train.metadata"
    note.parent.mkdir(parents=True)
    note.write_text("when")
    assert hub_fingerprint("acme/tiny", copies=copies) == before
    data = copies / "acme/tiny/data/test-00000-of-00001.parquet"
    os.utime(data, ns=(1, 1))
    assert hub_fingerprint("acme/tiny", copies=copies) == before
    flip(data)
    assert hub_fingerprint("acme/tiny", copies=copies) != before
    (copies / "acme/tiny/more").symlink_to(copies / "acme/multi")
    assert "more: a linked folder" in refusal(hub_fingerprint, "acme/tiny", copies=copies)


@pytest.mark.parametrize("streaming", [False, True])
def test_text_that_is_no_utf8_is_named(copies, streaming):
    path = copies / "acme/tiny/data/train-00001-of-00002.parquet"
    write_table(path, text=pa.array([b"caf\xe9"]).cast(pa.string(), safe=False), n=[1])
    table = open_hub("acme/tiny", copies=copies, streaming=streaming)
    message = refusal(texts, table)
    assert message.startswith("hf:acme/tiny, split train: damaged: text that is not UTF-8")


@pytest.mark.parametrize("streaming", [False, True])
def test_text_beside_values_of_other_types_is_read_as_it_is(tmp_path, streaming):
    (folder := tmp_path / "mixed").mkdir()
    values = ['said "a"\nthen \u00e9', None, ["b"]]
    lines = [json.dumps({"id": str(number), "text": v}) for number, v in enumerate(values)]
    (folder / "train.jsonl").write_text("\n".join([*lines, '{"id": 3, "text": "c"}']))
    rows = open_hub(str(folder), streaming=streaming).read(["text"], optional=["id"])
    read = list(rows)
    assert [row["text"] for row in read] == [*values, "c"]
    assert [row["id"] for row in read][3] == 3


@pytest.mark.parametrize("streaming", [False, True])
def test_a_folder_called_as_a_format_is_read_alone(tmp_path, streaming):
    write_table(tmp_path / "parquet/train.parquet", text=["inside"])
    write_table(tmp_path / "train-other.parquet", text=["outside"])
    assert texts(open_hub("./parquet", streaming=streaming)) == ["inside"]


@pytest.mark.parametrize("streaming", [True, False])
def test_files_without_rows_are_named(tmp_path, streaming):
    (folder := tmp_path / "empty").mkdir()
    (folder / "train.jsonl").touch()
    message = refusal(open_hub, str(folder), streaming=streaming)
    assert message == "hf:empty, split train: its files have no rows"


def test_a_copy_has_no_revision(copies):
    for function in (open_hub, hub_fingerprint):
        message = refusal(function, "acme/tiny", revision="v1", copies=copies)
        assert "the local copy has no revision 'v1'" in message


def test_a_slice_of_a_split(copies):
    assert texts(open_hub("acme/tiny", split="train[1:]", copies=copies)) == ["b", "c"]
    message = refusal(open_hub, "acme/tiny", split="train[1:]", copies=copies, streaming=True)
    assert message.endswith("a slice of a split cannot be streamed")
    message = refusal(open_hub, "acme/tiny", split="train[1", copies=copies)
    assert "train[1" in message
    assert "streamed" not in message


@pytest.mark.parametrize(
    ("dataset", "names", "message"),
    [
        ("tiny", {"split": "tset"}, "split tset: no split 'tset' (did you mean 'test'?)"),
        ("tiny", {"split": "x"}, "split x: no split 'x' (known: test, train)"),
        ("tiny", {"config": "v"}, "config v, split train: no config 'v' (known: default)"),
        ("multi", {}, "split train: several configs; choose one of v1, v2"),
        ("multi", {"config": "v3"}, "no config 'v3'"),
        ("multi", {"config": "v2", "split": "validation"}, "no split 'validation' (known: train)"),
        ("code", {}, "no longer runs; give a local copy in a common format"),
        ("empty", {}, "doesn't contain any data files"),
        ("broken", {}, "arquet"),
    ],
    ids=str,
)
@pytest.mark.parametrize("streaming", [False, True])
def test_missing_datasets_are_reported_in_one_line(copies, dataset, names, message, streaming):
    text = refusal(open_hub, f"acme/{dataset}", **names, copies=copies, streaming=streaming)
    assert text.startswith(f"hf:acme/{dataset}")
    assert message in text


@pytest.mark.parametrize("streaming", [False, True])
def test_columns(copies, streaming):
    table = open_hub("acme/tiny", copies=copies, streaming=streaming)
    assert list(table.read(["n", "text"]))[2] == {"n": 3, "text": "c"}
    assert next(table.read(["n"], optional=["text", "none"])) == {"n": 1, "text": "a"}
    with pytest.raises(DataError, match=r"train: no column 'txt' .*'text'"):
        list(table.read(["n", "txt"]))
    # A table may be read again.
    assert texts(table) == texts(table) == ["a", "b", "c"]


def test_reading_crosses_the_borders_of_batches_and_files(copies, monkeypatch):
    expected = [{"text": text} for text in "abc"]
    for rows_at_once in (1, 2, 3, 100):
        monkeypatch.setattr(module, "_ROWS_AT_ONCE", rows_at_once)
        table = open_hub("acme/tiny", copies=copies, streaming=True)
        assert list(table.read(["text"])) == expected


def test_damage_while_streaming_is_reported_in_one_line(copies):
    rows = [f"text {number}" * 20 for number in range(64)]
    path = copies / "acme/tiny/data/train-00001-of-00002.parquet"
    write_table(path, text=rows, n=list(range(64)))
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    table = open_hub("acme/tiny", copies=copies, streaming=True)
    message = refusal(texts, table)
    assert message.startswith("hf:acme/tiny, split train: cannot be read (")


def test_a_full_disk_is_a_fault_of_the_system_and_not_of_the_dataset(copies):
    write_table(copies / "acme/tiny/data/test-00000-of-00001.parquet", text=["t" * 20_000], n=[4])
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, usual[1]))
    try:
        with pytest.raises(OSError, match="cache of hub files") as failed:
            open_hub("acme/tiny", split="test", copies=copies)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert failed.value.errno == errno.EFBIG
    assert texts(open_hub("acme/tiny", split="test", copies=copies)) == ["t" * 20_000]


def test_nothing_is_written_beside_the_data_or_into_the_working_folder(copies, tmp_path):
    def listed():
        files = {path for path in tmp_path.rglob("*") if path.is_file()}
        return {path for path in files if "cache" not in path.relative_to(tmp_path).parts}

    before = listed()
    texts(open_hub("acme/tiny", copies=copies))
    texts(open_hub("acme/tiny", copies=copies, streaming=True))
    assert listed() == before


@pytest.mark.parametrize("name", ["./none", "/none", "a/b/c", "a b", "", "../x", "hf:a/b"])
def test_what_is_neither_folder_nor_id_is_refused(name):
    message = refusal(find_copy, name, None)
    assert message == f"{name}: no such folder, and not a hub id such as owner/name"


def test_copies_go_before_the_hub_and_only_where_they_are(copies):
    assert find_copy("acme/tiny", copies) == copies / "acme/tiny"
    assert find_copy("acme/other", copies) is None
    assert find_copy("acme/tiny", None) is None
    assert find_copy("plain", copies) is None
    with pytest.raises(DataError, match=r"misspelt: no such folder \(local copies, for hf:acme/t"):
        find_copy("acme/tiny", copies / "misspelt")


@pytest.mark.parametrize("streaming", [False, True])
def test_words_of_csv_files_are_no_missing_values(tmp_path, streaming):
    lines = ["text,n", "NA,1", "null,2", "None,3", "nan,4", '"",5', "by,"]
    (tmp_path / "words").mkdir()
    (tmp_path / "words/train.csv").write_text("\n".join(lines) + "\n")
    rows = list(open_hub("words", streaming=streaming).read(["text", "n"]))
    assert [row["text"] for row in rows] == ["NA", "null", "None", "nan", None, "by"]
    assert [row["n"] for row in rows] == [1, 2, 3, 4, 5, None]


class FakeHub:
    """Stands at the border to the hub: `HfApi`, and what loads datasets."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.loaded: dict = {}

    def dataset_info(self, dataset, *, revision=None, timeout):
        assert timeout
        self.asked.append((dataset, revision))
        return huggingface_hub.DatasetInfo(id=dataset, sha=COMMIT, private=False)

    def load_dataset(self, path, **options):
        self.loaded = {"path": path, **options}
        return datasets.Dataset.from_dict({"text": ["a"]})


@pytest.fixture
def fake_hub(monkeypatch) -> FakeHub:
    fake = FakeHub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    monkeypatch.setattr(datasets, "load_dataset", fake.load_dataset)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda **_: None)
    return fake


def test_what_is_read_from_the_hub_is_the_commit_that_is_recorded(fake_hub, copies):
    table = open_hub("acme/far", config="c", revision="v1", streaming=True, copies=copies)
    assert fake_hub.asked == [("acme/far", "v1")]
    assert fake_hub.loaded == {
        "path": "acme/far",
        "name": "c",
        "split": "train",
        "revision": COMMIT,
        "streaming": True,
        "cache_dir": None,
    }
    assert table.origin == {
        "dataset": "acme/far",
        "config": "c",
        "split": "train",
        "revision": COMMIT,
    }
    assert texts(table) == ["a"]


def test_a_full_commit_needs_no_question(fake_hub):
    assert resolve_revision("acme/far", COMMIT) == COMMIT
    assert fake_hub.asked == []
    assert resolve_revision("acme/far", COMMIT[:8]) == COMMIT
    assert fake_hub.asked == [("acme/far", COMMIT[:8])]


def test_a_fingerprint_of_the_hub_is_its_commit(fake_hub):
    expected = {"dataset": "a/b", "config": None, "split": "test", "revision": COMMIT}
    assert hub_fingerprint("a/b", split="test") == expected
    assert fake_hub.loaded == {}


class MovingHub(FakeHub):
    """A hub whose branch has another commit each time that it is asked."""

    def dataset_info(self, dataset, *, revision=None, timeout):
        super().dataset_info(dataset, revision=revision, timeout=timeout)
        return huggingface_hub.DatasetInfo(id=dataset, sha=f"{len(self.asked):040x}", private=False)

    def load_dataset(self, path, **options):
        super().load_dataset(path, **options)
        texts = [f"the cat number {number} sat on the mat" for number in range(40)]
        return datasets.Dataset.from_dict({"text": texts, "query": texts, "positive": texts[::-1]})


def built_corpus(folder):
    biphasic.corpus.build(["hf:a/b?revision=v1"], out=folder, vocab_size=300, heldout_fraction=0.2)
    return json.loads((folder / "built.json").read_text())["origin"]["sources"][0]["revision"]


def built_pairs(folder):
    table = "hf:a/b?revision=v1"
    biphasic.pairs.build([table], out=folder / "pairs", root=folder, quiet=True)
    [source] = json.loads((folder / "pairs/pairs.json").read_text())["origin"]["sources"]
    assert source["name"] == "b?revision=v1"
    return source["revision"]


def prepared_study(folder):
    corpus = {"sources": ["hf:a/b?revision=v1"], "vocab_size": 300, "heldout_fraction": 0.2}
    study = Study(tiny_study({"name": "a", "phases": [mlm(1)]}, corpus=corpus), folder)
    folder.mkdir()
    resolve(study, missing="build", console=Console(quiet=True))
    [record] = folder.glob("store/data/*/built.json")
    return json.loads(record.read_text())["origin"]["sources"][0]["revision"]


@pytest.mark.parametrize("command", [built_corpus, built_pairs, prepared_study])
def test_a_command_asks_the_hub_once(monkeypatch, tmp_path, command):
    hub = MovingHub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(datasets, "load_dataset", hub.load_dataset)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda **_: None)
    recorded = command(tmp_path / "out")
    assert hub.asked == [("a/b", "v1")]
    assert hub.loaded["revision"] == f"{1:040x}"
    assert recorded == hub.loaded["revision"]


def corpus_of_two(folder):
    biphasic.corpus.build(
        ["hf:a/b?split=x", "hf:a/b?split=y"], out=folder, vocab_size=300, heldout_fraction=0.2
    )


def tokenizer_of_two(folder):
    biphasic.tokenizer.train(["hf:a/b?split=x", "hf:a/b?split=y"], folder, vocab_size=300)


def pairs_of_two(folder):
    tables = ["hf:a/b?split=x", "hf:a/b?split=y"]
    biphasic.pairs.build(tables, out=folder / "pairs", root=folder, quiet=True)


@pytest.mark.parametrize("command", [corpus_of_two, tokenizer_of_two, pairs_of_two])
def test_splits_of_a_dataset_are_of_one_commit(monkeypatch, tmp_path, command):
    hub = MovingHub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(datasets, "load_dataset", hub.load_dataset)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda **_: None)
    command(tmp_path / "out")
    assert hub.asked == [("a/b", None)]


class Refusing(BaseHTTPRequestHandler):
    """A hub that answers every question as `answers` says."""

    answers: tuple[int, str | None] = (404, "RepoNotFound")

    def do_GET(self):
        status, code = self.answers
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


@pytest.mark.parametrize(
    ("answers", "revision", "message"),
    [
        ((404, "RepoNotFound"), None, "hf:a/b: not on the hub, or private; check the name"),
        ((403, "GatedRepo"), None, "hf:a/b: request access on its hub page"),
        ((404, "RevisionNotFound"), "v9", "hf:a/b at revision 'v9': the hub has no such revision"),
        ((500, None), None, "hf:a/b: the hub refuses to answer; try again later"),
    ],
    ids=str,
)
def test_the_hub_s_refusals_are_one_line_each(monkeypatch, answers, revision, message):
    monkeypatch.setattr(Refusing, "answers", answers)
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        here = huggingface_hub.HfApi(endpoint=endpoint)
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: here)
        text = refusal(open_hub, "a/b", revision=revision)
        server.shutdown()
    assert text.startswith(message)


def test_no_hub_at_all(monkeypatch):
    nowhere = huggingface_hub.HfApi(endpoint="http://127.0.0.1:9")  # the port that discards
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: nowhere)
    message = refusal(hub_fingerprint, "a/b")
    assert message.startswith("hf:a/b: the hub cannot be reached; check the connection, or give a")


@pytest.mark.parametrize("revision", [None, COMMIT])
def test_a_hub_that_is_switched_off_is_one_line(monkeypatch, caplog, revision):
    # What HF_HUB_OFFLINE=1 sets, at the start of the process.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    message = refusal(open_hub, "a/b", revision=revision, streaming=True)
    assert message.startswith("hf:a/b")
    assert "hub access is disabled (HF_HUB_OFFLINE or HF_DATASETS_OFFLINE); unset it, or" in message
    assert not caplog.records


def test_no_bars_are_drawn_and_settings_stay(copies, capfd, caplog):
    datasets.enable_progress_bars()
    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub")]
    for logger in loggers:
        caplog.set_level(logging.INFO, logger=logger.name)
    open_hub("acme/tiny", copies=copies)
    assert capfd.readouterr() == ("", "")
    assert not datasets.utils.are_progress_bars_disabled()
    assert [logger.level for logger in loggers] == [logging.INFO] * 2


@pytest.mark.parametrize("is_off_before", [False, True])
def test_quiet_restores_only_its_own_changes(is_off_before):
    libraries = (datasets.utils, huggingface_hub.utils)
    for library in libraries:
        (library.disable_progress_bars if is_off_before else library.enable_progress_bars)()
    try:
        with quiet():
            assert all(library.are_progress_bars_disabled() for library in libraries)
        for library in libraries:
            assert library.are_progress_bars_disabled() == is_off_before
    finally:
        for library in libraries:
            library.enable_progress_bars()


@pytest.mark.parametrize("streaming", ["true", "false"])
@pytest.mark.parametrize("written", ["007", "1.10", "True", "2020-01-05", "1" * 21])
@pytest.mark.parametrize("column", ["id", "text", "body"])
def test_ids_and_texts_of_csv_files_are_read_as_they_are_written(
    tmp_path, written, column, streaming
):
    (tmp_path / "plain").mkdir()
    text = "text" if column == "id" else column
    values = {"id": "a", text: "words", column: written}
    (tmp_path / "plain/train.csv").write_text(f"id,{text}\n" + ",".join(values.values()) + "\n")
    source = f"hf:{tmp_path}/plain?streaming={streaming}"
    [document] = read_documents(SourceConfig(source=source, column=text))
    assert {"id": document.id, text: document.text} == values
