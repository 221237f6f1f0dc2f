"""`biphasic pairs`: what it prints, and its errors."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.exceptions import TyperException
from typer.main import get_command

from biphasic.cli.main import app
from biphasic.config import parse_config
from biphasic.data.pairs.folder import Pairs
from biphasic.study.inputs.corpus import corpus_settings
from biphasic.tasks.folder import load_task
from biphasic.tasks.source import prepare_task
from biphasic.training.recipe import Recipe

DOCS = Path(__file__).parents[3] / "docs"
TUTORIAL = (DOCS / "tutorials/search.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TUTORIAL, flags=re.MULTILINE | re.DOTALL)


def read(words: list[str]) -> None:
    """Read a command line as the command does, without running it."""
    command: Any = get_command(app)
    while hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
    command.make_context(command.name, words)


def test_the_commands_recipes_and_code_of_the_tutorial_are_valid():
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(lines) == 13
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "biphasic"
        read(words)
    text, *recipes = map(yaml.safe_load, blocks("yaml"))
    assert corpus_settings(text).vocab_size == 2048
    for recipe in recipes:
        parse_config(Recipe, recipe, where="tutorial").check()
    for code in blocks("python"):
        compile(code, "tutorial", "exec")
    with pytest.raises(TyperException, match="No such option: --techer"):
        read(["pairs", "teach", "pairs", "--techer", "minilm"])


def test_the_questions_of_the_tutorial_are_a_task(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(DOCS)
    variables = {}
    exec(blocks("python")[0], variables)  # noqa: S102 - the page's own code
    assert all((DOCS / page).is_file() for page in variables["questions"].values())
    folder = prepare_task("zs:questions", store=tmp_path / "store", say=lambda _: None)
    assert load_task(folder).num_examples("test") == 24


def test_build_and_inspect_print_counts_and_pairs(cli, tmp_path):
    table = tmp_path / "rows.jsonl"
    rows = [{"anchor": "what purrs", "positive": "a cat", "negatives": ["a dog"]}] * 2
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "pairs"
    code, built, _ = cli("pairs", "build", table, "--out", out, "--root", tmp_path, "--quiet")
    counts = "rows.jsonl: read 2, in evaluation tasks 0, repeated 1, kept 1"
    assert code == 0
    assert built.splitlines()[:2] == ["1 pairs of 3 texts, with 1 negatives", counts]
    code, shown, _ = cli("pairs", "inspect", out)
    assert code == 0
    assert shown.endswith("  query: what purrs\n  positive: a cat\n  negative: a dog\n")


def test_mining_that_finds_nothing_says_so(cli, tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text("query,positive,negative\nwhat purrs,a cat,a dog\n")
    cli("pairs", "build", table, "--out", tmp_path / "pairs", "--root", tmp_path, "--quiet")
    code, mined, _ = cli(
        "pairs", "mine", tmp_path / "pairs", "--miner", "bm25", "--out", tmp_path / "mined"
    )
    assert code == 0
    assert mined.startswith("1 pairs of 2 texts, with 0 negatives\n")
    assert "warning: no negative found: " in mined
    assert "raise --margin, or use another --miner" in mined


def test_bm25_leaves_out_and_counts_negatives_without_a_word_of_the_query(cli, tmp_path):
    table = tmp_path / "rows.csv"
    rows = [
        "purring cats,cats love purring",
        "sleeping cats,cats are sleeping",
        "数学,学生学习数学",
    ]
    table.write_text("\n".join(["query,positive", *rows]) + "\n", encoding="utf-8")
    cli("pairs", "build", table, "--out", tmp_path / "pairs", "--root", tmp_path, "--quiet")
    out = tmp_path / "mined"
    command = ("pairs", "mine", tmp_path / "pairs", "--miner", "bm25", "--negatives", 2)
    code, mined, _ = cli(*command, "--margin", 1, "--out", out)
    assert code == 0
    assert mined.startswith("3 pairs of 6 texts, with 2 negatives\n")
    details = json.loads((out / "pairs.json").read_text())
    assert details["left_out"] == {"no_shared_word": 4}
    assert "left out 4 negatives that share no word with their query" in mined
    assert [len(pair.negatives) for pair in Pairs(out)] == [1, 1, 0]


def test_without_a_source_or_with_a_bad_line_it_says_what_to_do(cli, tmp_path):
    out = tmp_path / "pairs"
    code, _, error = cli("pairs", "build", "--out", out, "--quiet")
    assert (code, error) == (
        2,
        "error: pairs build: give a table, --task or --documents; there is no source\n",
    )
    table = tmp_path / "rows.csv"
    table.write_text("query,positive\na,\n")
    code, _, error = cli("pairs", "build", table, "--out", out, "--quiet")
    assert code == 2
    assert error == f"error: {table}:2: 'positive' is empty; remove the pair or the text\n"
    assert [path.name for path in tmp_path.iterdir() if "building" in path.name] == []
    good = tmp_path / "good.csv"
    good.write_text("query,positive\na,b\n")
    assert cli("pairs", "build", good, table, "--out", out, "--quiet")[0] == 2
    table.write_text("query,positive\na,c\n")
    code, _, error = cli("pairs", "build", good, table, "--out", out)
    assert (code, "good.csv: already read" in error) == (0, True)
    out = tmp_path / "none"
    code, _, error = cli("pairs", "inspect", out)
    assert code == 2
    assert "no finished pairs here; build them: 'biphasic pairs build'" in error
