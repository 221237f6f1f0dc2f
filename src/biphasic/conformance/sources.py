"""The rules of text sources, on their first documents.

`python -m biphasic.conformance.sources STORE` reads the settings of a source and prints a digest of
its documents, for a process that knows nothing but them.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from biphasic.config import Config
from biphasic.conformance.rules import Rule, check_rules, variants
from biphasic.data.text.source import SourceContext, SourceDocument, TextSource
from biphasic.data.text.sources import AnySource, source_origin
from biphasic.errors import BiphasicError
from biphasic.files import canonical_json
from biphasic.plugin_code import look_in
from biphasic.plugins import keep_files

_MOST_DOCUMENTS = 1000
_CONTEXT = SourceContext()


class _Held(Config):
    source: AnySource


@dataclass(frozen=True)
class Case:
    """A source with settings."""

    settings: TextSource

    def documents(self) -> list[SourceDocument]:
        """Read the first documents."""
        return list(islice(self.settings.documents(_CONTEXT), _MOST_DOCUMENTS))

    def digest(self) -> str:
        """Hash the first documents."""
        return hashlib.sha256(repr([*map(astuple, self.documents())]).encode()).hexdigest()

    def origin(self) -> str:
        """Return what is hashed as the identity of the text."""
        return canonical_json(source_origin(self.settings, _CONTEXT))


def check_source(settings: TextSource) -> None:
    """Check that a text source keeps all rules.

    Raises:
        ConfigError: It breaks a rule, which the message names.

    Example:
        >>> from biphasic.data.text.sources import SourceConfig
        >>> Path("notes.md").write_text("One note.")
        9
        >>> check_source(SourceConfig(source="notes.md"))
    """
    check_rules(Case(settings), RULES, where=settings.short_name)


def _documents(case: Case) -> Iterator[str]:
    """There are documents, each with a text and with an id that no other has."""
    documents, seen = case.documents(), set[str]()
    if not documents:
        yield "there is no document"
    for number, document in enumerate(documents):
        if not isinstance(document, SourceDocument):
            yield f"document {number} is no SourceDocument"
        elif not (isinstance(document.id, str) and isinstance(document.text, str)):
            yield f"document {number}: id and text must be text"
        elif not document.id or document.id in seen:
            yield f"document {number}: its id '{document.id}' is empty or that of another"
        elif document.split not in (None, "train", "heldout"):
            yield f"document {number}: its split must be train, heldout or None"
        else:
            seen.add(document.id)


def _pure(case: Case) -> Iterator[str]:
    """Each reading begins at the first document, whatever was read or drawn before."""
    first = case.digest()
    next(case.settings.documents(_CONTEXT))
    random.seed(1)
    np.random.seed(1)
    if case.digest() != first:
        yield "a second reading gives other documents, or another order"


def _origin(case: Case) -> Iterator[str]:
    """The origin is the same in each call, and has no absolute path."""
    if case.origin() != case.origin():
        yield "a second call gives another origin"
    for value in re.findall(r'"(/[^"]*)"', case.origin()):
        if Path(value).exists():
            yield f"the origin has the path {value}; return a hash of the files there"


def _determinants(case: Case) -> Iterator[str]:
    """Settings that change the documents also change the origin."""
    names = type(case.settings).model_fields.keys() - TextSource.model_fields.keys()
    for change, other in variants(case.settings, sorted(names)):
        assert isinstance(other, TextSource)  # noqa: S101 - variants keep the class
        varied = Case(other)
        try:
            after = varied.digest()
        except BiphasicError:
            continue  # of other settings, which the source refuses
        if after != case.digest() and varied.origin() == case.origin():
            yield f"{change} gives other documents, but the same origin"


def _process(case: Case) -> Iterator[str]:
    """Another process, with another order of sets, reads the same documents from the same code."""
    held = _Held(source=case.settings)
    with tempfile.TemporaryDirectory() as store:
        keep_files(Path(store), held)
        child = subprocess.run(  # noqa: S603 - our own module, no shell
            [sys.executable, "-m", __name__, store],
            input=held.model_dump_json(),
            env={**os.environ, "PYTHONHASHSEED": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if child.returncode:
        yield f"another process cannot read it: {child.stderr.strip().rpartition(chr(10))[2]}"
    elif not child.stdout.endswith(case.digest()):  # the source may have printed too
        yield "another process reads other documents, or in another order; sort sets and listings"


RULES: dict[str, Rule[Case]] = {
    "documents": _documents,
    "pure": _pure,
    "origin": _origin,
    "determinants": _determinants,
    "process": _process,
}
"""The rules by name, in the order of their checks."""


if __name__ == "__main__":
    look_in(Path(sys.argv[1]))
    sys.stdout.write(Case(_Held.model_validate_json(sys.stdin.read()).source).digest())
