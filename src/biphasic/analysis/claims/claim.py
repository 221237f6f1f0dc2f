"""Claims of the paper and of users: Python functions that check a table."""

from __future__ import annotations

import re
import runpy
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

from biphasic.analysis.claims.check import Check
from biphasic.analysis.claims.table import Table
from biphasic.config import refuse_repeats
from biphasic.errors import BiphasicError, ConfigError

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_NEW_FORM = "claims are a Python file with functions under @claim(id, sentence); see docs/claims.md"


@dataclass(frozen=True)
class Claim:
    """A sentence, and the function that yields its checks on a table."""

    id: str
    text: str
    ask: Callable[[Table], Iterable[Check]]
    source: str = ""  # where the paper makes the claim
    reading: str = ""  # how the checks interpret the sentence, if it is ambiguous

    def checks(self, table: Table) -> tuple[Check, ...]:
        """Return the checks on a table; an error names the claim and the line."""
        code = self.ask.__code__
        with _named(Path(code.co_filename), code.co_firstlineno, f"claim '{self.id}': "):
            asked = self.ask(table)
            if not isinstance(asked, Iterable):
                raise ValueError(f"returns {asked!r:.60}; it must yield checks")
            checks = tuple(asked)
            for check in checks:
                if not isinstance(check, Check):
                    raise ValueError(f"yields {check!r}, which is not a check")
            if all(check.weaker for check in checks):
                raise ValueError("yields no check")
        return checks


def claim(
    id: str, text: str, *, source: str = "", reading: str = ""
) -> Callable[[Callable[[Table], Iterable[Check]]], Claim]:
    """Make a claim of the decorated function, which takes a table and yields checks.

    Raises:
        ValueError: The id or the sentence is empty, or the id is not a short name.
    """
    if not _ID.fullmatch(id) or not text:
        raise ValueError(f"@claim: give a short id of letters, digits, '.', '_' and '-' and a "
                         f"sentence, not {id!r}, {text!r}")  # fmt: skip

    def made(ask: Callable[[Table], Iterable[Check]]) -> Claim:
        new = Claim(id, text, ask, source, reading)
        # A list per file, because functions may share a name.
        ask.__globals__.setdefault("__claims__", []).append(new)
        return new

    return made


@lru_cache(maxsize=1)
def paper_claims() -> tuple[Claim, ...]:
    """Return the 28 claims of arXiv:2507.00994 and one of a blog post about it."""
    package = resources.files("biphasic.analysis")
    with resources.as_file(package.joinpath("reference", "claims.py")) as path:
        return load_claims(path)


def load_claims(path: Path) -> tuple[Claim, ...]:
    """Run a Python file and return its claims; an error names the file and the line."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    if path.suffix != ".py":
        raise ConfigError(f"{path}: {_NEW_FORM}")
    with _named(path):
        claims = runpy.run_path(str(path)).get("__claims__", [])
    if not claims:
        raise ConfigError(f"{path}: no claims; {_NEW_FORM}")
    try:
        refuse_repeats("id", [entry.id for entry in claims])
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    return tuple(claims)


@contextmanager
def _named(path: Path, first_line: int | None = None, what: str = "") -> Iterator[None]:
    """Name the file, the line and the error if the user's code fails, even with `exit()`."""
    try:
        yield
    except (BiphasicError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001  # the code is the user's
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        line = lines[-1] if lines else getattr(error, "lineno", first_line)
        place = f"{path}, line {line}" if line else f"{path}"
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ConfigError(f"{place}: {what}{kind}{error}") from None
