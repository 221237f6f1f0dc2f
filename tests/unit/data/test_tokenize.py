"""Blocks to shards, in this process and on workers."""

import fcntl
import subprocess
import sys

import numpy as np
import pytest

from biphasic.data.tokens.shards import (
    CHARACTERS,
    INDEX,
    LENGTHS,
    NAMES,
    TOKENS,
    BatchBuilder,
    write_shard,
)
from biphasic.data.tokens.tokenize import ShardMaker
from biphasic.errors import DataError, StudyError
from biphasic.store import is_complete
from text_corpus import blocks

pytestmark = pytest.mark.slow

ODD = [("a/ü", "grüße 🙂 you"), ("b", ""), ("c\n", "a\x00line\nand\r\nanother")]


def content(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_blocks_close_once_they_are_full(documents):
    grouped = list(blocks(documents, block_bytes=500))
    assert [pair for block in grouped for pair in block.documents()] == documents
    for block in grouped[:-1]:
        sizes = block.sizes[:, 1]
        assert sizes.sum() >= 500 > sizes[:-1].sum()


def test_taking_a_block_leaves_its_builder_empty():
    builder = BatchBuilder()
    for number, (name, text) in enumerate(ODD):
        builder.add(name, text, (number, -number))
    block = builder.take()
    assert list(block.documents()) == ODD
    assert block.notes.tolist() == [[0, 0], [1, -1], [2, -2]]
    assert builder.take() is None


def test_the_key_is_of_all_that_determines_a_shard():
    def key(*documents, notes=(0,), tokenizer_sha256="t"):
        builder = BatchBuilder()
        for name, text in documents:
            builder.add(name, text, notes)
        return builder.take().key(tokenizer_sha256)

    base = key(("a", "bc"), ("d", "e"))
    assert base == key(("a", "bc"), ("d", "e"))
    others = [
        key(("ab", "c"), ("d", "e")),  # the same bytes, another border
        key(("a", "bc"), ("d", "f")),
        key(("d", "e"), ("a", "bc")),
        key(("a", "bc"), ("d", "e"), notes=(1,)),
        key(("a", "bc"), ("d", "e"), tokenizer_sha256="u"),
    ]
    assert len({base, *others}) == 6


def test_a_shard_holds_notes_characters_and_lengths(tmp_path, tokenizer):
    builder = BatchBuilder()
    for number, (name, text) in enumerate(ODD):
        builder.add(name, text, (7 + number,))
    write_shard(tmp_path / "s", builder.take(), tokenizer)
    ids = [tokenizer.encode(text) for _, text in ODD]
    index = np.load(tmp_path / "s" / INDEX)
    assert index[:, 0].tolist() == [7, 8, 9]
    assert index[:, CHARACTERS].tolist() == [len(text) for _, text in ODD]
    assert index[:, LENGTHS].tolist() == [len(part) for part in ids]
    tokens = np.fromfile(tmp_path / "s" / TOKENS, dtype="<u2")
    assert tokens.tolist() == [token for part in ids for token in part]
    assert (tmp_path / "s" / NAMES).read_text() == '"a/\\u00fc"\n"b"\n"c\\n"\n'


@pytest.mark.parametrize("num_workers", [1, 2])
def test_shards_are_the_same_wherever_they_are_made(
    tmp_path, documents, tokenizer, tokenizer_folder, num_workers
):
    grouped = list(blocks([*documents, *ODD], block_bytes=1000))
    with ShardMaker(tmp_path / "work", tokenizer_folder, num_workers=num_workers) as maker:
        futures = [maker.make(block, label=str(n)) for n, block in enumerate(grouped)]
        made = [future.result(timeout=60) for future in futures]
    for number, block in enumerate(grouped):
        write_shard(tmp_path / f"expected-{number}", block, tokenizer)
        assert content(made[number]) == content(tmp_path / f"expected-{number}")
    assert maker.num_found == 0
    assert len(made) > 5


def test_finished_shards_are_reused_and_others_rebuilt(tmp_path, documents, tokenizer_folder):
    [block] = blocks(documents)
    [other] = blocks(documents[1:])

    def make(wanted):
        with ShardMaker(tmp_path / "work", tokenizer_folder, num_workers=1) as maker:
            folder = maker.make(wanted, label="0").result()
        return folder, maker.num_found

    folder, num_found = make(block)
    assert num_found == 0
    written = (folder / TOKENS).stat().st_mtime_ns
    assert make(other)[1] == 0
    assert make(block) == (folder, 1)
    assert (folder / TOKENS).stat().st_mtime_ns == written
    # Without its completion record it is made again, and so is a damaged one.
    (folder / "manifest.json").unlink()
    assert make(block) == (folder, 0)
    tokens = bytearray((folder / TOKENS).read_bytes())
    tokens[3] ^= 1
    (folder / TOKENS).write_bytes(tokens)
    assert make(block) == (folder, 0)
    assert make(block) == (folder, 1)


def test_workers_do_without_large_pipes(tmp_path, monkeypatch, documents, tokenizer_folder):
    # As for a user whose quota of pipes is used up.
    def refuse(*_):
        raise PermissionError("quota")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    started = []
    original = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *args, **how: started.append(how) or original(*args, **how)
    )
    [block] = blocks(documents)
    with ShardMaker(tmp_path / "work", tokenizer_folder, num_workers=2) as maker:
        assert is_complete(maker.make(block, label="0").result(timeout=60))
    assert "pipesize" not in started[0]


def test_what_python_prints_as_it_starts_is_no_answer(
    tmp_path, monkeypatch, documents, tokenizer_folder
):
    (tmp_path / "sitecustomize.py").write_text("print('hello', flush=True)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    [block] = blocks(documents)
    with ShardMaker(tmp_path / "work", tokenizer_folder, num_workers=2) as maker:
        assert is_complete(maker.make(block, label="0").result(timeout=60))
        assert "hello" in [log.read_text().strip() for log in (tmp_path / "work").glob("*.log")]


def test_leftovers_of_killed_workers_are_removed(tmp_path, tokenizer_folder):
    (tmp_path / "work/.partial-abc").mkdir(parents=True)
    with ShardMaker(tmp_path / "work", tokenizer_folder, num_workers=1):
        assert not list((tmp_path / "work").iterdir())


def test_a_worker_that_dies_is_reported_with_its_shard(tmp_path, documents, tokenizer_folder):
    copy = tmp_path / "tokenizer"
    copy.mkdir()
    for file in tokenizer_folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    [block] = blocks(documents)
    with ShardMaker(tmp_path / "work", copy, num_workers=2) as maker:
        (copy / "tokenizer.json").unlink()  # known here already, but not to the workers
        # Not an error of the input: the command exits with 1, and a second run resumes.
        with pytest.raises(StudyError, match=r"^books, shard 3: .*resume; see .*worker-\d\.log$"):
            maker.make(block, label="books, shard 3").result(timeout=60)


def test_an_error_in_a_worker_is_reported_with_its_shard(tmp_path, documents, tokenizer_folder):
    work = tmp_path / "work"
    [block] = blocks(documents)
    with ShardMaker(work, tokenizer_folder, num_workers=2) as maker:
        blocked = work / block.key(maker.tokenizer_sha256)
        blocked.write_text("a file where a folder is to be")
        with pytest.raises(DataError, match=r"^books, shard 3: .*is a file"):
            maker.make(block, label="books, shard 3").result(timeout=60)
        # The worker lives on.
        [other] = blocks(documents[1:])
        assert is_complete(maker.make(other, label="4").result(timeout=60))


def test_leaving_ends_the_workers_at_once(tmp_path, documents, tokenizer_folder):
    grouped = list(blocks(documents, block_bytes=2000))
    with ShardMaker(tmp_path / "work", tokenizer_folder, num_workers=2) as maker:
        futures = [maker.make(block, label=str(n)) for n, block in enumerate(grouped[:4])]
    for future in futures:
        assert future.done()
        if error := future.exception():
            assert "its worker died" in str(error) or "the build was stopped" in str(error)


def test_workers_import_nothing_heavy():
    program = (
        "import sys, biphasic.data.tokens.tokenize as w; "
        "print(*sorted({'torch', 'transformers', 'datasets', 'pyarrow'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "\n"
