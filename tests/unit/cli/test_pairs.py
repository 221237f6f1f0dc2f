"""`biphasic pairs`: what it prints, and its errors."""

from __future__ import annotations

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
from biphasic.study.inputs.corpus import corpus_settings
from biphasic.tasks.folder import load_task
from biphasic.tasks.source import find_source, prepare_task
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
    folder = prepare_task(find_source("zs:questions"), store=tmp_path / "store", say=lambda _: None)
    assert load_task(folder).num_examples("test") == 24
