"""The code that decides numbers: its hash, and which other code gives the same numbers.

Identities contain versions that are raised by hand when numbers change (`NUMERICS_VERSION`,
`FINETUNING_VERSION`). Code that was edited without that keeps its identities, so states and results
also record the hash of the code that made them. `numerics.json` lists the hashes for which the
golden numbers of a version were reproduced.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Collection, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from biphasic.files import digest, read_json

Part = Literal["pretraining", "finetuning"]
KNOWN = Path(__file__).with_name("numerics.json")
"""Hashes by part and version, and as a shortcut the hash of the code with given bytes."""
_BOTH = (
    "data/packing.py",
    "data/text/words.py",
    "model/compute",
    "model/cpu",
    "model/head.py",
    "model/loading/build.py",
    "model/loading/configurations.py",
    "model/loading/reading.py",
    "model/lora.py",
    "model/shape.py",
    "seeds.py",
    "training/optimizers",
)
PARTS: Mapping[Part, tuple[str, ...]] = {
    "pretraining": (
        *_BOTH,
        "data/building/selection.py",
        "data/corpus.py",
        "data/pairs.py",
        "data/rows.py",
        "data/text/near_duplicates.py",
        "objectives",
        "training/loop.py",
        "training/heldout.py",
        "training/run.py",
        "training/step",
        "training/timeline.py",
    ),
    "finetuning": (
        *_BOTH,
        "objectives/lr.py",
        "tasks/baselines.py",
        "tasks/encoding.py",
        "tasks/finetune.py",
        "tasks/kinds",
        "tasks/metrics.py",
        "tasks/probe.py",
        "tasks/protocol.py",
        "tasks/records.py",
        "training/step/optimizer.py",
        "training/step/weights.py",
    ),
}
"""Files and folders of the package that decide the numbers of states and of results."""


@cache  # a process runs the code that it imported, even if files are edited later
def running_code(part: Part) -> str:
    """Return the hash of this package's code for one part."""
    texts = read_part(part)
    # Parsing takes a tenth of a second, which commands need not spend on unchanged files.
    return known_code()["bytes"].get(bytes_digest(texts)) or code_digest(texts)


def is_other_code(part: Part, made_by: Collection[str], *, than: str | None = None) -> bool:
    """Return whether code with these hashes may give other numbers than that with another hash.

    `than` is the running code's hash if left out. Records from before hashes were recorded have
    none; releases made them.
    """
    here = than or running_code(part)
    equal = {code for codes in known_code()[part].values() if here in codes for code in codes}
    return not {*made_by} <= {here, *equal} or not (made_by or equal)


def read_part(part: Part) -> dict[str, bytes]:
    """Read the files of a part, by name."""
    root = Path(__file__).parent
    places = (root / name for name in PARTS[part])
    files = (sorted(place.rglob("*.py")) if place.is_dir() else (place,) for place in places)
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in chain(*files)}


def bytes_digest(texts: Mapping[str, bytes]) -> str:
    """Hash files by name, with all their bytes."""
    return digest({name: hashlib.sha256(text).hexdigest() for name, text in texts.items()})


def code_digest(texts: Mapping[str, bytes]) -> str:
    """Hash files of code by name, without comments, docstrings and formatting."""
    return digest({name: code_sha256(text) for name, text in texts.items()})


def code_sha256(text: bytes) -> str:
    """Hash one file of code; all Python versions give the same hash."""
    return hashlib.sha256(repr(_plain(ast.parse(text))).encode()).hexdigest()


@cache
def known_code() -> dict[str, dict[str, Any]]:
    """Return the hashes of code that gave the recorded numbers, by part."""
    return read_json(KNOWN, remedy="reinstall the package")


def _plain(node: object) -> object:
    """Return a syntax tree as lists; `ast.dump` differs between Python versions."""
    if isinstance(node, list):
        return [_plain(item) for item in node if not _is_docstring(item)]
    if isinstance(node, ast.JoinedStr):  # Python 3.12.1 ends some with an empty text
        node = ast.JoinedStr([part for part in node.values if not _is_empty(part)])
    if not isinstance(node, ast.AST):
        return ascii(node)  # what `repr` prints as it is depends on the version of Unicode
    fields = [(name, value) for name, value in ast.iter_fields(node) if name != "kind"]
    # Python 3.12 and later have more fields, which are empty in code for 3.11.
    kept = [(name, _plain(value)) for name, value in fields if value is not None and value != []]
    return [type(node).__name__, *kept]


def _is_empty(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == ""


def _is_docstring(node: object) -> bool:
    """Return whether a statement is only a string, also one below a field."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
