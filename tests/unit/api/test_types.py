"""The script that pyright checks in strict mode calls everything public."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import biphasic

SCRIPT = Path(__file__).with_name("everything_public.py")


def test_the_script_uses_everything_public():
    tree = ast.parse(SCRIPT.read_text(encoding="utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert set(biphasic.__all__) <= used


def test_the_script_contains_the_example_of_the_readme():
    readme = Path(__file__).parents[3] / "README.md"
    block = readme.read_text(encoding="utf-8").split("```python\n")[1].partition("```")[0]
    example = textwrap.indent(block.removeprefix("import biphasic\n\n"), "    ")
    assert "estimate.mean" in example
    assert example in SCRIPT.read_text(encoding="utf-8")
