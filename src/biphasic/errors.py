"""The exceptions that biphasic raises on purpose.

BiphasicError
├── ConfigError       a setting is invalid; names it, its value and the remedy
├── DataError         text, corpus or task data are missing, damaged or unusable
├── ModelError        a model breaks the attention contract or cannot be built
│   └── ModelFilesError its files are missing or damaged; also a DataError
├── CheckpointError   a state on disk is damaged or does not belong to this run
├── TrainingError     training cannot continue
│   ├── DivergedError a loss or gradient is not finite; names it and the step
│   └── LostRankError another process of the group has exited or hangs
├── NewerFormatError  a newer version wrote the file
├── DoneElsewhereError the job was finished before this process locked it
├── StoppedError      work was stopped on request
└── StudyError        a study or one of its jobs failed
    └── LockedError   another process is using the folder
        └── LockHeldError    another process holds the lock; names its owner
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from biphasic.version import __version__

_LONGEST = 2000
_KEPT_END = 400

_ABOUT_THE_PATH = {
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL,
}  # fmt: skip
"""System errors that say what is at a path; all others leave its content unknown."""

_ERROR_NUMBER = re.compile(r"(?:os error |\[Errno )(\d+)")
_CUT_SHORT = re.compile(r"\d+ requested and \d+ written")
_OF_SQLITE = {"database or disk is full": errno.ENOSPC, "disk I/O error": errno.EIO}

_NUMBERED = re.compile(r"biphasic\.[a-z]+/(\d{1,9})")
_NEWEST = 1  # Number of all formats. If one gets another, this becomes a table.

REPAIR = "correct it or restore it"
"""Remedy for a damaged user file, which must not be deleted."""
PERMIT = "give this user permission ('chmod', 'chgrp'), or run as the owner"
"""Remedy for a file or folder of another user."""


class BiphasicError(Exception):
    """Base of all errors raised on purpose; its text is one human-readable line.

    Attributes:
        message: What was wrong, and what to do.
        about: The file, task or option concerned; starts the line. Empty if the message names it.
    """

    def __init__(self, message: str = "", *, about: str = "") -> None:
        super().__init__(f"{about}: {message}" if about else message)
        self.message = message
        self.about = about

    def __str__(self) -> str:
        """Return the text in one line, with control characters escaped."""
        text = visible(super().__str__(), allowed="")
        if len(text) <= _LONGEST:
            return text
        return f"{text[: _LONGEST - _KEPT_END]} ... {text[-_KEPT_END:]}"


class ConfigError(BiphasicError):
    """A setting is invalid."""


class DataError(BiphasicError):
    """Text, corpus or task data are missing, damaged or unusable."""


class ModelError(BiphasicError):
    """A model breaks the attention contract or cannot be built."""


class ModelFilesError(ModelError, DataError):
    """A model's files are missing or damaged."""


class CheckpointError(BiphasicError):
    """A state on disk is damaged or belongs to something else."""


class TrainingError(BiphasicError):
    """Training cannot continue."""


class DivergedError(TrainingError):
    """A loss or gradient is not finite."""

    def __init__(self, message: str, divergence: str = "") -> None:
        """Create the error; `divergence` states which value was not finite at which step."""
        super().__init__(message)
        self.divergence = divergence

    @classmethod
    def at(cls, step: int, what: str, more: str = "") -> DivergedError:
        """Return the error for a loss or gradient at a step, counted from 0.

        `more` continues the advice to lower the learning rate.
        """
        return cls(
            f"step {step}: the {what} is not finite; lower the learning rate{more}",
            f"the {what} was not finite at step {step}",
        )


class LostRankError(TrainingError):
    """Another process of the group has exited or hangs."""


class NewerFormatError(BiphasicError):
    """A newer version of biphasic wrote the file; it is not damaged, so nothing may delete it."""


class StudyError(BiphasicError):
    """A study or one of its jobs failed."""


class LockedError(StudyError):
    """Another process is using the folder."""


class LockHeldError(LockedError):
    """Another process holds the lock."""

    def __init__(self, message: str, owner: str = "") -> None:
        """Create the error; `owner` is the host and process that hold the lock."""
        super().__init__(message)
        self.owner = owner


class DoneElsewhereError(BiphasicError):
    """The job was finished before this process locked it."""


class StoppedError(BiphasicError):
    """Work was stopped on request; the next run resumes from what was saved."""


def refuse_newer(content: object, where: str) -> None:
    """Refuse a record of a newer version. A file without a format has the number 1."""
    name = content.get("format") if isinstance(content, dict) else None
    number = _NUMBERED.fullmatch(name) if isinstance(name, str) else None
    if number and int(number[1]) > _NEWEST:
        raise NewerFormatError(
            f"{where}: {name} is a format of a newer version of biphasic than this one, "
            f"{__version__}; upgrade biphasic"
        )


@contextmanager
def reading(
    what: object,
    kind: type[BiphasicError],
    *,
    remedy: str = REPAIR,
    failure: str = "cannot be read",
) -> Iterator[None]:
    """Convert any error raised while reading an input into one line that names the input.

    Libraries raise undocumented errors. An error of the system (`is_system_fault`) says nothing
    about the input and passes unchanged; a lack of memory becomes one. The block must only read
    and check this input; otherwise a bug in the program would be reported as a fault of the input.

    Args:
        what: The input: a file, a folder, an option.
        kind: Type of error to raise.
        remedy: What to do; ends the message.
        failure: What failed.
    """
    try:
        yield
    except BiphasicError:
        raise
    except MemoryError as error:
        raise OSError(errno.ENOMEM, "does not fit into memory", str(what)) from error
    except Exception as error:  # the only place that catches all errors
        if is_system_fault(error):
            with naming(what):
                raise
        match error:
            case RecursionError():
                reason = "it is nested too deeply"
            case OSError(strerror=str(reason)):
                pass
            case _:
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise kind(f"{failure} ({reason}); {remedy}", about=str(what)) from error


def visible(text: str, *, allowed: str = "\n\t") -> str:
    r"""Escape control and bidirectional characters, e.g. escape as `\u001b`.

    JSON keeps its meaning: the escapes are its own. Control characters in `allowed` stay.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable()
        or character in allowed
        or unicodedata.category(character) == "Zs"
        else re.sub("....", r"\\u\g<0>", character.encode("utf-16-be", "surrogatepass").hex())
        for character in text
    )


@contextmanager
def naming(path: object) -> Iterator[None]:
    """Name the file in errors of the system, which a failed read or write does not.

    Libraries in Rust have their own errors, with the number only in the text.
    """
    try:
        yield
    except OSError as error:
        error.filename = error.filename or (error.errno and str(path))
        raise
    except BiphasicError:
        raise  # it names its own place
    except Exception as error:
        fault = system_fault_in(str(error), path)
        if fault is None:
            raise
        raise fault from error


def system_fault_in(text: str, path: object) -> OSError | None:
    """Return the system fault that a text names, as in `os error 28`; None if it names none."""
    if cut := _CUT_SHORT.search(text):  # numpy does not say why
        return OSError(errno.ENOSPC, f"cannot be written whole ({cut[0]})", str(path))
    named = [_OF_SQLITE[text]] if text in _OF_SQLITE else map(int, _ERROR_NUMBER.findall(text))
    for number in named:
        fault = OSError(number, os.strerror(number), str(path))
        if is_system_fault(fault):
            return fault
    return None


def is_system_fault(error: BaseException) -> bool:
    """Return whether the system failed to answer, e.g. EIO, EMFILE or EACCES.

    Such an error may pass, so it must not be taken for damage. Errors without a number are of
    libraries that did not understand a file.
    """
    number = error.errno if isinstance(error, OSError) else None
    return number is not None and number not in _ABOUT_THE_PATH


def repeated(values: Iterable[Any]) -> list[str]:
    """Return the values that occur more than once, as sorted texts."""
    return sorted(str(value) for value, count in Counter(values).items() if count > 1)


def one_line(error: BaseException) -> str:
    """Return an error's text without line breaks, or its type if it has no text."""
    return " ".join(str(error).split()) or type(error).__name__


def os_error_text(error: OSError) -> str:
    """Describe a system error in one line, with a remedy for a full disk."""
    if error.errno is None:
        error = system_fault_in(str(error), error.filename or "") or error
    where = f"{error.filename}: " if error.filename else ""
    reason = error.strerror or str(error)
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"{where}{reason}; free space ('biphasic study clean' helps) and run again"
    if isinstance(error, PermissionError):
        return f"{where}{reason}; {PERMIT}"
    return f"{where}{reason}"


def lack_of_memory(error: Exception) -> str:
    """Return a message for an error that memory is full, with a remedy; empty for others."""
    reason = one_line(error)
    # Torch may not be imported: its error is known by its name, and the one on a CPU by its text.
    is_torch = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator: can" in reason
    if not is_torch and not isinstance(error, MemoryError):
        return ""
    remedy = (
        "compute fewer tokens at once, or use a smaller model ('biphasic estimate' shows what a "
        "training needs)"
        if is_torch
        else "end other programs, or use fewer processes or smaller input"  # no model computes
    )
    return f"out of memory ({reason}); {remedy}"


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra, by their own names."""
    # No index has `biphasic` itself.
    from importlib.metadata import requires  # noqa: PLC0415 - slow to import

    split = [text.partition(";") for text in requires("biphasic") or []]
    packages = [name.strip() for name, _, marker in split if f"'{extra}'" in marker]
    return f"python -m pip install {shlex.join(packages)}"
