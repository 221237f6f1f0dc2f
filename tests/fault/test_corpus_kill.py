"""kill -9 while a corpus is built: the bytes are those of an uninterrupted build."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from biphasic.data.building.build import build_corpus
from biphasic.data.building.config import CorpusConfig
from biphasic.data.tokens.tokenizer import write_tokenizer

DEADLINE = 60.0
NUM_DOCUMENTS = 1500
# As the command does it, with blocks small enough for many shards.
PROGRAM = """
import json, sys
from pathlib import Path
from biphasic.data.building.build import build_corpus
from biphasic.data.building.config import CorpusConfig
config = CorpusConfig.model_validate(json.loads(sys.argv[1]))
build_corpus(config, Path(sys.argv[2]), num_workers=2, say=print, block_bytes=30_000)
"""
# What appears on disk at a moment worth dying in, and how many of it; in the order in which a
# build meets them. A fifth of the shards are there before the second kill, half before the third.
MOMENTS = {
    "after the tokenizer": ("tokenizer/manifest.json", 1),
    "between shards": (".building/shards/*/manifest.json", 4),
    "while a shard is written": (".building/shards/.partial-*", 1),
    "between later shards": (".building/shards/*/manifest.json", 10),
    "while the training corpus is put together": (".partial-train-*", 1),
    "between the two corpora": ("train/manifest.json", 1),
    "while the held-out corpus is put together": (".partial-heldout-*", 1),
    "before the record": ("heldout/manifest.json", 1),
}


@pytest.fixture
def config(tmp_path, tokenizer):
    """Two files, mixed by shares and cut by a limit."""
    draw = random.Random(7)  # noqa: S311 - words, not secrets
    words = [f"w{draw.randrange(5000)}" for _ in range(5000)]
    for name in ("a", "b"):
        with (tmp_path / f"{name}.jsonl").open("w") as lines:
            for number in range(NUM_DOCUMENTS):
                text = " ".join(draw.choices(words, k=draw.randrange(20, 100)))
                lines.write(json.dumps({"id": str(number), "text": text}) + "\n")
    write_tokenizer(tokenizer, tmp_path / "given")
    return {
        "sources": [
            {"source": str(tmp_path / f"{name}.jsonl"), "share": share}
            for name, share in (("a", 1), ("b", 2))
        ],
        "tokenizer": str(tmp_path / "given"),
        "heldout_fraction": 0.1,
        "deduplicate": True,
        "max_tokens": 250_000,
    }


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_killed_build_resumes_to_the_same_bytes(tmp_path, config):
    whole = tmp_path / "whole"
    build_corpus(
        CorpusConfig.model_validate(config),
        whole,
        num_workers=1,
        say=lambda _: None,
        block_bytes=30_000,
    )
    folder = tmp_path / "killed"
    killed = [
        moment
        for moment, (pattern, count) in MOMENTS.items()
        if kill_when(config, folder, pattern, count=count)
    ]
    # A moment may slip by on a slow machine, but then the build went on to a later one.
    assert len(killed) >= len(MOMENTS) - 2, killed
    finish = subprocess.run(
        command(config, folder), capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert finish.returncode == 0, finish.stderr
    assert snapshot(folder) == snapshot(whole)


def command(config, folder):
    return [sys.executable, "-c", PROGRAM, json.dumps(config), str(folder)]


def snapshot(folder):
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def kill_when(config, folder, pattern, *, count):
    """Build, kill the parent alone at the moment, see its workers end; tell whether it came."""
    seen = set(folder.glob(pattern))
    with subprocess.Popen(
        command(config, folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        end = time.monotonic() + DEADLINE
        while process.poll() is None:
            assert time.monotonic() < end, f"{pattern} never appeared"
            if is_there(folder, pattern, count, seen):
                break
            time.sleep(0.0005)
        else:
            return False
        workers = children(process.pid)
        process.send_signal(signal.SIGKILL)
    for worker in workers:
        assert ends(worker), f"worker {worker} outlives the process that started it"
    return process.returncode == -signal.SIGKILL


def is_there(folder, pattern, count, seen):
    """Tell whether enough is there: of leftovers those that are new, of all else the total."""
    found = set(folder.glob(pattern))
    if ".partial-" in pattern or count == 1:
        found -= seen
    return len(found) >= count


def children(pid):
    tasks = f"/proc/{pid}/task/{pid}/children"
    with contextlib.suppress(FileNotFoundError), open(tasks) as listed:  # noqa: PTH123
        return [int(child) for child in listed.read().split()]
    return []


def ends(pid):
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
            with open(f"/proc/{pid}/stat") as status:  # noqa: PTH123
                if status.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False
