"""Docstrings of Python sources, read with `ast`: nothing is imported or run."""

from __future__ import annotations

import ast
import copy
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Package folders without documentation of their own: tests, caches, vendored copies.
SKIPPED_FOLDERS = frozenset(
    {"__pycache__", "test", "tests", "testing", "_tests", "idle_test", "site-packages"}
    | {"dist-packages", "_vendor", "_vendored", "vendored", "externals", "third_party"}
    | {"turtledemo", "pydoc_data", "ensurepip", "lib2to3"}
)
MAX_SIGNATURE_CHARACTERS = 240

# Functions that document extension modules from Python, as in numpy, scipy and torch.
_ATTACHING = frozenset({"add_newdoc", "add_docstr", "add_docstr_all", "add_newdoc_for_scalar_type"})
_BRACES = {"{{": "{", "}}": "}"}
_FORMAT_FIELD = re.compile(r"\{\{|\}\}|\{\w*\}")
_QUOTES = (b'"""', b"'''")


@dataclass(frozen=True)
class Docstring:
    """One docstring of a source file."""

    name: str  # qualified name, including the module
    signature: str  # `(x, ord=None)` without annotations; empty for modules
    text: str  # the string's value, uncleaned


def find_modules(root: Path, package: str) -> Iterator[tuple[str, Path]]:
    """Yield `(module name, file)` for a package's folder or a single-file module, in order."""
    # A stub (`.pyi`) comes after the source of its name; extension modules have only stubs.
    if root.is_file():
        yield package, root
        return
    files = [path for path in root.rglob("*.py*") if path.suffix in {".py", ".pyi"}]
    for path in sorted(files, key=lambda path: (path.with_suffix("").as_posix(), path.suffix)):
        parts = path.relative_to(root).with_suffix("").parts
        name = parts[-1]
        is_test = name.startswith("test_") or name.endswith("_test") or name == "conftest"
        if SKIPPED_FOLDERS.isdisjoint(parts[:-1]) and not is_test:
            named = parts[:-1] if name == "__init__" else parts
            yield ".".join([package, *named] if package else named), path


def read_docstrings(path: Path, module: str) -> list[Docstring]:
    """Read the docstrings of a module that this Python can parse, its classes and functions."""
    source = path.read_bytes()
    if not any(quotes in source for quotes in _QUOTES):
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in others' sources
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    docstrings = [Docstring(module, "", ast.get_docstring(tree, clean=False) or "")]
    docstrings.extend(_definitions(tree.body, module))
    # `add_newdoc("package", "name", "text")` and its relatives, at module level.
    calls = (node.value for node in tree.body if isinstance(node, ast.Expr))
    for call in (call for call in calls if isinstance(call, ast.Call)):
        function = ast.unparse(call.func).rsplit(".", 1)[-1]
        if function in _ATTACHING and len(call.args) > 1:
            owner = _owner(function, call.args[:-1], module)
            for name, text in _attached_texts(call.args[-1]):
                docstrings.append(Docstring(f"{owner}.{name}" if name else owner, "", text))
    return [docstring for docstring in docstrings if docstring.text.strip()]


def _definitions(body: list[ast.stmt], prefix: str) -> Iterator[Docstring]:
    """Walk classes and functions, through `if` and `try`, but not into function bodies."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            name = f"{prefix}.{node.name}"
            if text := ast.get_docstring(node, clean=False):
                makers = (m for m in node.body if isinstance(m, ast.FunctionDef))
                init = next((maker for maker in makers if maker.name == "__init__"), None)
                yield Docstring(name, _signature(init.args) if init else "", text)
            yield from _definitions(node.body, name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node, clean=False):
                yield Docstring(f"{prefix}.{node.name}", _signature(node.args), text)
        elif isinstance(node, ast.If | ast.Try):
            yield from _definitions(node.body, prefix)
            yield from _definitions(node.orelse, prefix)


def _signature(arguments: ast.arguments) -> str:
    """Write a signature without annotations, `self` and `cls`."""
    arguments = copy.copy(arguments)
    for kind in ("posonlyargs", "args", "kwonlyargs"):
        bare = [ast.arg(argument.arg) for argument in getattr(arguments, kind)]
        setattr(arguments, kind, bare)
    for kind in ("vararg", "kwarg"):
        argument = getattr(arguments, kind)
        setattr(arguments, kind, ast.arg(argument.arg) if argument else None)
    text = re.sub(r"^(self|cls)(, /)?(, |$)", "", ast.unparse(arguments))
    if len(text) > MAX_SIGNATURE_CHARACTERS:
        text = text[:MAX_SIGNATURE_CHARACTERS].rsplit(", ", 1)[0] + ", ..."
    return f"({text})"


def _owner(function: str, arguments: list[ast.expr], module: str) -> str:
    parts = [
        str(argument.value) if isinstance(argument, ast.Constant) else ast.unparse(argument)
        for argument in arguments
    ]
    if function == "add_docstr_all":  # torch: methods of Tensor or of storages
        return ".".join([module, *parts])
    package = module.rpartition(".")[0]
    is_of_scipy = function == "add_newdoc" and len(parts) == 1  # functions of the package
    if is_of_scipy or function == "add_newdoc_for_scalar_type":
        return f"{package}.{parts[0]}"
    return ".".join(parts)


def _attached_texts(node: ast.expr) -> Iterator[tuple[str, str]]:
    """Yield `(member, text)` for a string, a `(member, string)` pair or a list of pairs."""
    if isinstance(node, ast.List):
        for element in node.elts:
            yield from _attached_texts(element)
    elif isinstance(node, ast.Tuple) and len(node.elts) == 2:
        member, value = node.elts
        if isinstance(member, ast.Constant):
            yield from ((str(member.value), text) for _, text in _attached_texts(value))
    elif text := _string(node):
        yield "", text


def _string(node: ast.expr) -> str:
    """Return the value of a string literal, of `"..." + "..."`, or of `"...".format(...)`."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _string(node.left) + _string(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        template = _string(node.func.value) if node.func.attr == "format" else ""
        return _FORMAT_FIELD.sub(lambda field: _BRACES.get(field[0], ""), template)
    return ""
