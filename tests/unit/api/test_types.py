"""The script that pyright checks in strict mode calls everything public."""

from __future__ import annotations

import ast
from pathlib import Path

import biphasic

SCRIPT = Path(__file__).with_name("everything_public.py")


def test_the_script_uses_everything_public():
    tree = ast.parse(SCRIPT.read_text(encoding="utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert set(biphasic.__all__) <= used
