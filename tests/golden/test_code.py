"""The code that decides numbers is vouched for, and its hash depends on nothing else."""

import ast
from pathlib import Path

import pytest
from golden_code import PART_VERSIONS, code_now

import biphasic
from biphasic import numerics
from biphasic.files import read_json
from biphasic.numerics import KNOWN, PARTS, Part, code_sha256, is_other_code, running_code

PACKAGE = Path(biphasic.__file__).parent
# Imported by code that decides numbers. They decide none, or identities contain what they decide.
OTHER_FILES = {
    "pretraining": {
        "amounts.py",
        "config.py",
        "data/building/config.py",
        "data/text/source.py",
        "data/tokens/shards.py",
        "data/tokens/tokenizer.py",
        "distributed.py",
        "errors.py",
        "facts.py",
        "files.py",
        "locks.py",
        "model/contract.py",
        "model/loading/footprint.py",
        "model/loading/hub.py",
        "numerics.py",
        "plugins.py",
        "records.py",
        "shown.py",
        "store.py",
        "training/compute.py",
        "training/fault.py",
        "training/lineage.py",
        "training/memory.py",
        "training/recipe.py",
        "training/metrics_log.py",
        "training/state.py",
    },
    "finetuning": {
        "config.py",
        "data/text/source.py",  # contents of files that settings name: they are in identities
        "data/tokens/tokenizer.py",
        "distributed.py",
        "errors.py",
        "facts.py",
        "files.py",
        "model/loading/footprint.py",
        "numerics.py",
        "plugins.py",
        "records.py",
        "store.py",
        # What they read of files is content of a task, whose hash is in identities.
        "rows.py",
        "tasks/labels_and_qrels.py",
        "training/memory.py",
        "training/recipe.py",
    },
}
ORIGINAL = b"""
import math

def rate(step: int, *, peak: float = 1e-3) -> float:
    return peak * math.sqrt(step)

class Settings:
    share: float = 0.5
"""
SAME = b'''"""What this file is."""
import math  # of the standard library


def rate(
    step: int,
    *,
    peak: float = 0.001,
) -> float:
    """Return the rate."""
    # The root, as always.
    return (peak * math.sqrt(step))


class Settings:
    """Settings."""

    share: float = 0.5
    """Of all."""
'''


@pytest.mark.parametrize("part", PARTS)
def test_code_is_vouched_for(part):
    _, code = code_now(part)
    known = read_json(KNOWN)[part].get(str(PART_VERSIONS[part]), [])
    assert code in known, (
        f"the code of {part} was edited: if it gives the same numbers, run 'make numerics'; "
        "if not, raise its version first (tests/golden/test_golden.py)"
    )


@pytest.mark.parametrize("part", PARTS)
def test_the_shortcut_gives_the_computed_hash(part):
    assert running_code(part) == code_now(part)[1]


def test_comments_docstrings_and_formatting_do_not_count():
    assert code_sha256(ORIGINAL) == code_sha256(SAME)
    assert code_sha256(ORIGINAL) == code_sha256(ORIGINAL.replace(b"\n", b"\r\n"))


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"0.5", b"0.25"), (b"*,", b""), (b"peak * math", b"peak / math"), (b"share", b"part")],
)
def test_every_change_of_code_counts(old, new):
    assert old in ORIGINAL
    assert code_sha256(ORIGINAL) != code_sha256(ORIGINAL.replace(old, new))


def test_all_python_versions_give_one_hash():
    text = b"def f(a, /, b=None, *c: int, d='\\u00e9\\U0001fae8', **e): return f'{a!r:>{b}} x' '!'"
    assert code_sha256(text) == "30c7f609381fefc072ca7abcb73e901b74db4aa762042aa8ffda90f0f585190e"


@pytest.fixture
def known(monkeypatch):
    """Let this code be `b`, which version 2 lists beside `a`; version 3 has `c`."""
    lists = {"pretraining": {"2": ["a", "b"], "3": ["c"]}}
    monkeypatch.setattr(numerics, "known_code", lambda: lists)
    monkeypatch.setattr(numerics, "running_code", lambda _: "b")
    return lists


@pytest.mark.parametrize(
    ("made_by", "is_other"),
    [(["b"], False), (["a"], False), (["a", "b"], False), ([], False), (["x"], True),
     (["b", "x"], True), (["c"], True)],
)  # fmt: skip
def test_listed_code_equals_what_is_listed_beside_it(known, made_by, is_other):
    assert is_other_code("pretraining", made_by) is is_other


@pytest.mark.parametrize(
    ("made_by", "is_other"), [(["b"], False), (["a"], True), ([], True), (["b", "a"], True)]
)
def test_edited_code_equals_only_itself(known, made_by, is_other):
    known["pretraining"]["2"].remove("b")
    assert is_other_code("pretraining", made_by) is is_other


@pytest.mark.parametrize("part", PARTS)
def test_what_code_of_a_part_imports_is_in_it_or_named_here(part: Part):
    inside = set(numerics.read_part(part))
    imported = {name for path in inside for name in imports(PACKAGE / path)}
    assert imported - inside == OTHER_FILES[part], "does it decide numbers? see PARTS"


def imports(file: Path) -> set[str]:
    """Return the files of the package that a file imports, by path in it."""
    nodes = ast.walk(ast.parse(file.read_text("utf-8")))
    names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    paths = (name.removeprefix("biphasic.").replace(".", "/") + ".py" for name in names)
    return {path for path in paths if (PACKAGE / path).is_file()}
