"""kill -9 while a corpus is built or merged: the bytes are those of an uninterrupted build."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys

import pytest

from biphasic.data.building.build import build_corpus, notes_on
from biphasic.data.building.built import merge_builds
from biphasic.data.building.config import CorpusConfig
from biphasic.data.tokens.tokenizer import write_tokenizer
from mini_study import appears, kill_when

DEADLINE = 60.0
NUM_DOCUMENTS = 1500
# As the command does it, with blocks small enough for many shards.
PROGRAM = """
import json, sys
from pathlib import Path
from biphasic.data.building.build import build_corpus
from biphasic.data.building.config import CorpusConfig
from biphasic.data.building.built import merge_builds
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
    killed = []
    for moment, (pattern, count) in MOMENTS.items():
        if kill_when(appears(folder, pattern, count), command(config, folder)):
            killed.append(moment)
    # A moment may slip by on a slow machine, but then the build went on to a later one.
    assert len(killed) >= len(MOMENTS) - 2, killed
    finish = subprocess.run(
        command(config, folder), capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert finish.returncode == 0, finish.stderr
    assert snapshot(folder) == snapshot(whole)


def command(config, folder):
    return [sys.executable, "-c", PROGRAM, json.dumps(config), str(folder)]


MERGE = """
import os, signal, sys
from pathlib import Path
from biphasic.data.building.built import merge_builds
from soak.disk import after_operations
out, number, *sources = sys.argv[1:]
after_operations(Path(out), int(number), lambda: os.kill(os.getpid(), signal.SIGKILL))
merge_builds(list(map(Path, sources)), Path(out), say=print)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_merge_resumes_wherever_it_was_killed(tmp_path, config):
    builds = [tmp_path / "one", tmp_path / "two"]
    for build, source in zip(builds, config["sources"], strict=True):
        settings = {**config, "sources": [source["source"]], "max_tokens": None}
        quiet = CorpusConfig.model_validate(settings)
        build_corpus(quiet, build, num_workers=1, say=lambda _: None, block_bytes=100_000)
    whole = tmp_path / "whole"
    merge_builds(builds, whole, say=lambda _: None)
    assert [*notes_on(whole)] == []  # `corpus inspect` prints what its parts skipped
    for number in range(1000):
        arguments = [sys.executable, "-c", MERGE, tmp_path / "killed", number, *builds]
        ended = subprocess.run(
            list(map(str, arguments)), capture_output=True, text=True, timeout=DEADLINE, check=False
        )
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert number > 20  # operations: locks, folders, names of finished parts
    assert snapshot(tmp_path / "killed") == snapshot(whole)


def snapshot(folder):
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }
