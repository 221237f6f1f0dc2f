"""A disk that is full, wherever a command first notices it: one line, and exit code 1."""

from __future__ import annotations

import json
import random
import sys

import pytest

from mini_study import run_command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("warm"),
    pytest.mark.skipif(sys.platform == "win32", reason="no limit on file sizes"),
]

LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))"
"""No file may become longer; the system's error differs from that of a full disk in its number."""


@pytest.fixture
def text(tmp_path):
    draw = random.Random(3)  # noqa: S311 - words, not secrets
    words = [f"word{draw.randrange(3000)}" for _ in range(3000)]
    documents = [{"text": " ".join(draw.choices(words, k=60))} for _ in range(400)]
    path = tmp_path / "text.jsonl"
    path.write_text("\n".join(map(json.dumps, documents)))
    return path


@pytest.mark.parametrize("limit", [300, 1_000, 40_000])
@pytest.mark.parametrize(
    "command", [("tokenizer", "train"), ("corpus", "build", "--workers", "2", "--quiet")]
)
def test_a_full_disk_is_reported_in_one_line(command, limit, text, tmp_path):
    options = ("--vocab-size", "1000", "--out", tmp_path / "out")
    ended = run_command(*command, text, *options, setup=LIMIT.format(limit))
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, ended.stderr
    assert "File too large" in errors[0] or "cannot be written whole" in errors[0]
    assert run_command(*command, text, *options).returncode == 0
