"""The built-in source of text: English documentation of the installed Python libraries."""

from __future__ import annotations

import ast
import copy
import gc
import hashlib
import importlib.util
import inspect
import platform
import re
import sysconfig
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Literal

from biphasic.data.text.near_duplicates import ShingleIndex, Shingler
from biphasic.data.text.source import SourceContext, SourceDocument, TextSource
from biphasic.errors import DataError

# Package folders without documentation of their own: tests, caches, vendored copies.
_SKIPPED_FOLDERS = frozenset(
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
        if _SKIPPED_FOLDERS.isdisjoint(parts[:-1]) and not is_test:
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


Split = Literal["train", "validation", "test"]

_PYDOCS_VERSION = 2  # increase by hand whenever the same libraries would give different documents
STANDARD_LIBRARY = "python"
# Libraries and their packages. Those not installed are not part of the corpus. Test and lint tools
# are omitted: the text does not depend on them.
_NAMED_AS_THEIR_PACKAGE = (
    "anyio click contourpy cycler datasets dill filelock formulaic fsspec joblib markdown "
    "mpmath multiprocess narwhals networkx numpy packaging pandas patsy pyarrow pygments "
    "pyparsing regex rich safetensors scipy seqeval statsmodels sympy tensorboard "
    "threadpoolctl tokenizers tqdm transformers typer werkzeug"
)
LIBRARIES: Mapping[str, tuple[str, ...]] = dict(
    sorted(
        {
            **{name: (name,) for name in _NAMED_AS_THEIR_PACKAGE.split()},
            "absl-py": ("absl",),
            "fonttools": ("fontTools",),
            "grpcio": ("grpc",),
            "huggingface-hub": ("huggingface_hub",),
            "jinja2": ("jinja2", "markupsafe"),
            "markdown-it-py": ("markdown_it", "mdurl"),
            "matplotlib": ("matplotlib", "mpl_toolkits"),
            "pillow": ("PIL",),
            "pydantic": ("pydantic", "pydantic_core"),
            "python-dateutil": ("dateutil",),
            "pyyaml": ("yaml",),
            "scikit-learn": ("sklearn",),
            "torch": ("torch", "functorch"),
            "typing-extensions": ("typing_extensions",),
        }.items()
    )
)

_MIN_CHARACTERS = 120
_MAX_CHARACTERS = 40_000
VALIDATION_SHARE = 0.06
TEST_SHARE = 0.10

_DOCTEST = re.compile(r"^[ \t]*>>>.*\n?(?:^[ \t]*\S.*\n?)*", re.MULTILINE)
_PLACEHOLDER_LINE = re.compile(r"^[ \t]*(?:%\([^)\n]*\)s|\{\w*\}|\$\w+)[ \t]*$\n?", re.MULTILINE)
_SIGNATURE_LINE = re.compile(r"(?:\w+\.)*(?P<name>\w+)(?P<signature>\(.*\))(?: *-> *.+)?")
_BLANK_LINES = re.compile(r"\n{3,}")
_WORDS = re.compile(r"[A-Za-z]+")
_LICENCE = re.compile(
    r"permission is hereby granted|redistribution and use in source|licensed under the"
    r"|all rights reserved|without warranty of any kind|SPDX-License-Identifier",
    re.IGNORECASE,
)
_COMMON_WORDS = frozenset(
    _WORDS.findall(
        "a an and are as at be by can for from has if in is it its not of on or that the this to"
        " used using when which will with"
    )
)


@dataclass(frozen=True)
class Document:
    """The documentation of one module, class or function."""

    id: str  # qualified name, unique: `numpy.linalg.norm`
    text: str  # name and signature, a blank line, the cleaned docstring
    module: str  # module of the file, which decides the split
    library: str  # a key of `LIBRARIES`, or `python`
    split: Split


class Documentation(TextSource):
    """The documentation as a source of a corpus."""

    known: ClassVar[frozenset[str]] = frozenset({*LIBRARIES, STANDARD_LIBRARY})
    """Names that `libraries` of a corpus may have."""

    def documents(self, context: SourceContext) -> Iterator[SourceDocument]:
        """Yield the documents outside the test split, which belongs to the tasks."""
        for document in load_documents(context.libraries):
            if document.split != "test":
                split = "train" if document.split == "train" else "heldout"
                yield SourceDocument(document.id, document.text, split)

    def origin(self, context: SourceContext) -> dict[str, Any]:
        """Return the versions of the libraries and of the code."""
        return {"source": self.source, **pydocs_origin(context.libraries)}


def load_documents(libraries: Collection[str] | None = None) -> list[Document]:
    """Read the documentation of installed `libraries` (keys of `LIBRARIES`, or `python`), by id."""
    return list(_load_documents(None if libraries is None else tuple(sorted(set(libraries)))))


# A study's corpus and its built-in tasks are made from the same documents in sequence.
@lru_cache(maxsize=1)
def _load_documents(libraries: tuple[str, ...] | None) -> tuple[Document, ...]:
    documents: list[Document] = []
    was_enabled = gc.isenabled()
    gc.disable()  # the cyclic collector would take a third of the time to free nothing
    try:
        if libraries is None or STANDARD_LIBRARY in libraries:
            root = Path(sysconfig.get_path("stdlib"))
            documents += [*read_package(root, "", library=STANDARD_LIBRARY), *_read_topics()]
        for library, packages in LIBRARIES.items():
            if libraries is not None and library not in libraries:
                continue
            for package in packages:
                if root := locate_package(package):
                    documents.extend(read_package(root, package, library=library))
        documents = separate_splits(drop_duplicates(documents))
    finally:
        if was_enabled:
            gc.enable()
    if not documents:
        searched = "this Python" if libraries is None else ", ".join(sorted(libraries))
        raise DataError(f"builtin:pydocs: no documentation found; {searched}: no sources installed")
    return tuple(documents)


def pydocs_origin(libraries: Collection[str] | None) -> dict[str, Any]:
    """Return everything that determines the documents: this code and installed versions."""
    named = LIBRARIES if libraries is None else [name for name in LIBRARIES if name in libraries]
    versions = {name: _installed_version(name) for name in named}
    return {
        "libraries": {name: version for name, version in versions.items() if version is not None},
        # It has no version in `libraries`; this records whether it is used.
        "standard_library": libraries is None or STANDARD_LIBRARY in libraries,
        "python": platform.python_version(),
        "pydocs_version": _PYDOCS_VERSION,
    }


@cache  # reading the metadata of all of them takes longer than planning a study
def _installed_version(library: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(library)
    return None


def locate_package(package: str) -> Path | None:
    """Find a top-level package's folder, or a module's file, without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def read_package(root: Path, package: str, *, library: str) -> Iterator[Document]:
    """Read every usable docstring below a package's folder, without running any code."""
    for module, path in find_modules(root, package):
        split = split_of(module)
        for docstring in read_docstrings(path, module):
            if text := document_text(docstring):
                yield Document(docstring.name, text, module, library, split)


def split_of(module: str) -> Split:
    """Assign a module, with everything its file documents, to a split by the hash of its name."""
    digest = hashlib.sha256(f"pydocs:{module}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    if place < TEST_SHARE:
        return "test"
    return "validation" if place < TEST_SHARE + VALIDATION_SHARE else "train"


def document_text(docstring: Docstring) -> str:
    """Clean a docstring and prepend its name and signature; empty if it is not useful."""
    body = clean(docstring.text)
    signature = docstring.signature
    first, _, rest = body.partition("\n")
    written = _SIGNATURE_LINE.fullmatch(first)
    if written and written["name"] == docstring.name.rpartition(".")[2]:
        # Extension modules write the signature as the docstring's first line.
        signature, body = written["signature"], rest.strip()
    if not _is_useful(body):
        return ""
    return f"{docstring.name}{signature}\n\n{body}"


def clean(text: str) -> str:
    """Dedent, drop unfilled template lines, trailing spaces and runs of blank lines."""
    text = inspect.cleandoc(text.replace("\r\n", "\n").replace("\x00", ""))
    text = _PLACEHOLDER_LINE.sub("", text)
    lines = (line.rstrip().replace("\xa0", " ") for line in text.split("\n"))
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()


def _is_useful(body: str) -> bool:
    """Return whether a text is English prose of some length: no table, code or license."""
    if not _MIN_CHARACTERS <= len(body) <= _MAX_CHARACTERS or _LICENCE.search(body):
        return False
    prose = _DOCTEST.sub("", body)
    words = _WORDS.findall(prose.lower())
    letters = sum(len(word) for word in words)
    if letters < 0.5 * _MIN_CHARACTERS or letters < 0.5 * len("".join(prose.split())):
        return False
    return sum(word in _COMMON_WORDS for word in words) >= 0.1 * len(words)


def drop_duplicates(documents: Iterable[Document]) -> list[Document]:
    """Sort by id; keep the first document of each id, and of each text below the signature."""
    distinct: dict[str, Document] = {}
    bodies: set[bytes] = set()
    for document in sorted(documents, key=lambda document: document.id):
        body = " ".join(body_of(document).split())
        key = hashlib.sha256(body.encode("utf-8", "replace")).digest()
        if document.id not in distinct and key not in bodies:
            distinct[document.id] = document
            bodies.add(key)
    return list(distinct.values())


def separate_splits(documents: Iterable[Document]) -> list[Document]:
    """Drop near-duplicates across splits.

    Test documents are kept over validation, and both over train. Then a held-out document is
    dropped if train or the other held-out split still contains half of it (a short text inside a
    long one).
    """
    shingler = Shingler()
    by_split: dict[str, dict[str, Document]] = {"train": {}, "validation": {}, "test": {}}
    shingles = {}
    for document in documents:
        by_split[document.split][document.id] = document
        shingles[document.id] = shingler(body_of(document))

    def without(split: str, *others: str) -> None:
        index = ShingleIndex(shingles[name] for other in others for name in by_split[other])
        distinct = {n: doc for n, doc in by_split[split].items() if not index.holds(shingles[n])}
        by_split[split] = distinct

    without("validation", "test")
    without("train", "validation", "test")
    without("validation", "train")
    without("test", "train", "validation")
    merged = (document for part in by_split.values() for document in part.values())
    return sorted(merged, key=lambda document: document.id)


def body_of(document: Document) -> str:
    """Return the text below the signature line."""
    return document.text.partition("\n\n")[2]


def _read_topics() -> Iterator[Document]:
    """Read the language reference that `help()` shows, one document per topic."""
    path = Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py"
    if not path.is_file():
        return
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for topic, text in ast.literal_eval(node.value).items():
                module = f"pydoc_data.topics.{topic}"
                body = clean(text)
                if _is_useful(body):
                    shown, split = f"{module}\n\n{body}", split_of(module)
                    yield Document(module, shown, module, STANDARD_LIBRARY, split)
