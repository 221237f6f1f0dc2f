"""Blocks to shards, in this process and on workers."""

import fcntl
import subprocess
import sys

import pytest

from biphasic.data.tokens.shards import TOKENS, ShardMaker
from biphasic.errors import DataError, StudyError
from biphasic.store import is_complete
from text_corpus import blocks

pytestmark = pytest.mark.slow


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
        "import sys, biphasic.data.tokens.shards as w; "
        "print(*sorted({'torch', 'transformers', 'datasets', 'pyarrow'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "\n"
