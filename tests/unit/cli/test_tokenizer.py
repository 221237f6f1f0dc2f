"""`biphasic tokenizer`, without the rest of the command line."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading

import pytest
from typer.testing import CliRunner

from biphasic import tokenizer
from biphasic.cli.commands import tokenizer_app
from biphasic.data.tokens.tokenizer import TextTokenizer, train_tokenizer
from biphasic.errors import ConfigError
from biphasic.pydocs.documents import load_documents
from mini_study import command


def run(*arguments) -> list[str]:
    ended = CliRunner().invoke(tokenizer_app, list(map(str, arguments)), catch_exceptions=True)
    if ended.exception and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    assert ended.exit_code == 0, ended.output
    return ended.output.splitlines()


@pytest.fixture
def texts(tmp_path, documents):
    path = tmp_path / "texts.jsonl"
    rows = [{"body": text} for _, text in documents]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_train_gives_the_library_s_result_and_prints_it(texts, documents, tmp_path):
    (tmp_path / "more.txt").write_text("more text of rows")
    out = tmp_path / "made"
    messages = run(
        *("train", texts, tmp_path / "more.txt"),
        *("--column", "body", "--vocab-size", 310, "--out", out),
    )
    expected = train_tokenizer(
        [*(text for _, text in documents), "more text of rows"], vocab_size=310
    )
    assert TextTokenizer.load(out).sha256 == expected.sha256
    assert messages[0] == "read 61 documents, 8.97 kB of text"
    assert messages[1] == "vocabulary: 310 entries"
    assert messages[2] == f"tokenizer: {out}"


def test_files_that_a_folder_skips_do_not_make_other_sources(tmp_path):
    (source := tmp_path / "source").mkdir()
    (source / "a.txt").write_text("one text of words\n" * 40)
    tokenizer.train([source], tmp_path / "made", vocab_size=300)
    (source / ".DS_Store").write_bytes(b"\0")
    (note,) = tokenizer.train([source], tmp_path / "made", vocab_size=300).notes
    assert "already made from the same sources" in note


def test_no_source_is_no_text(tmp_path):
    with pytest.raises(ConfigError, match="sources: is empty; give text"):
        tokenizer.train([], tmp_path / "made")


@pytest.mark.slow
def test_training_on_several_threads_gives_the_same_file(texts, tmp_path):
    made = []
    for threads in ("1", "4"):
        out = tmp_path / threads
        subprocess.run(
            command(
                *("tokenizer", "train", texts, "--column", "body"),
                *("--vocab-size", "400", "--out", out),
            ),
            env={**os.environ, "RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true"},
            check=True, capture_output=True,
        )  # fmt: skip
        made.append((out / "tokenizer.json").read_bytes())
    assert made[0] == made[1]


def test_a_hub_dataset_from_a_local_copy(tmp_path, monkeypatch):
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "copies/a/b").mkdir(parents=True)
    table = pa.table({"text": ["the rows", "the array"]})
    pq.write_table(table, tmp_path / "copies/a/b/train-00000-of-00001.parquet")
    out = tmp_path / "made"
    messages = run("train", "hf:a/b", "--copies", tmp_path / "copies", "--out", out)
    assert messages[0].startswith("read 2 documents")
    assert (out / "tokenizer.json").is_file()
    spec = tmp_path / "corpus.yaml"
    spec.write_text("sources: ['hf:a/b']\ncopies: copies\n")
    assert run("train", spec, "--out", tmp_path / "same")[0] == messages[0]


def test_a_corpus_file_narrows_the_built_in_documentation(tmp_path):
    spec = tmp_path / "corpus.yaml"
    spec.write_text("sources: ['builtin:pydocs']\nlibraries: [packaging]\n")
    messages = run("train", spec, "--vocab-size", 300, "--out", tmp_path / "made")
    documents = [each for each in load_documents(["packaging"]) if each.split == "train"]
    assert messages[0].startswith(f"read {len(documents)} documents")


def test_a_hub_that_cannot_be_reached_is_asked_once(tmp_path):
    requests = []

    def refuse(server: socket.socket) -> None:
        while True:
            connection, _ = server.accept()
            requests.append(connection.recv(256).split(b"\r\n")[0].decode())
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=refuse, args=(server,), daemon=True).start()
        hub = {"HF_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}"}
        ended = subprocess.run(
            command("tokenizer", "check", "owner/unknown"),
            capture_output=True,
            check=False,
            env={**os.environ, **hub, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"},
        )
    assert ended.returncode == 2
    assert requests == ["GET /api/models/owner/unknown HTTP/1.1"]
