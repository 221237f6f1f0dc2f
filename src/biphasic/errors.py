"""The exceptions that biphasic raises on purpose.

BiphasicError
├── ConfigError       a setting is wrong: which one, its value, the remedy
├── DataError         text, corpus or task data are missing, damaged or unusable
├── ModelError        a model breaks the attention contract or cannot be built
│   └── ModelFilesError its files are missing or damaged; a DataError too
├── CheckpointError   a state on disk is damaged or does not belong to this run
├── TrainingError     training cannot go on
│   ├── DivergedError a loss or gradient is not finite: it says which, and at which step
│   └── LostRankError a process that trains together with others has lost one of them
├── StoppedError      work was stopped on request
└── StudyError        a study cannot be planned, run or reported
    └── LockedError   another process is using the folder
        └── LockHeldError    another process holds the lock: it says which
"""

from __future__ import annotations

import errno
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST = 2000
_KEPT_END = 400

REPAIR = "correct it or restore it"
"""What to do about a damaged file of somebody's own: to delete it would lose it."""


class BiphasicError(Exception):
    """Base of all errors raised on purpose; its text is one line for people.

    Attributes:
        message: What was wrong, and what to do.
        about: What it is about, such as a file or a task; begins the line. Empty where the message
            says it.
    """

    def __init__(self, message: str = "", *, about: str = "") -> None:
        super().__init__(f"{about}: {message}" if about else message)
        self.message = message
        self.about = about

    def __str__(self) -> str:
        """Return the text; names from files can neither break the line nor steer a terminal."""
        text = visible(super().__str__(), kept="")
        if len(text) <= _LONGEST:
            return text
        return f"{text[: _LONGEST - _KEPT_END]} ... {text[-_KEPT_END:]}"


class ConfigError(BiphasicError):
    """A setting is wrong."""


class DataError(BiphasicError):
    """Text, corpus or task data are missing, damaged or unusable."""


class ModelError(BiphasicError):
    """A model breaks the attention contract or cannot be built."""


class ModelFilesError(ModelError, DataError):
    """A model's files are missing or damaged."""


class CheckpointError(BiphasicError):
    """A state on disk is damaged or belongs to something else."""


class TrainingError(BiphasicError):
    """Training cannot go on."""


class DivergedError(TrainingError):
    """A loss or gradient is not finite."""

    def __init__(self, message: str, divergence: str = "") -> None:
        """Say what to do; `divergence` says what was not finite at which step."""
        super().__init__(message)
        self.divergence = divergence

    @classmethod
    def at(cls, step: int, what: str) -> DivergedError:
        """Return the error of a step, counted from 0, and a loss or gradient."""
        return cls(
            f"step {step}: the {what} is not finite; lower the learning rate",
            f"the {what} was not finite at step {step}",
        )


class LostRankError(TrainingError):
    """A process that trains together with others has lost one of them."""


class StudyError(BiphasicError):
    """A study cannot be planned, run or reported."""


class LockedError(StudyError):
    """Another process is using the folder."""


class LockHeldError(LockedError):
    """Another process holds the lock."""

    def __init__(self, message: str, owner: str = "") -> None:
        """Say so, and name the owner of the lock: host and process."""
        super().__init__(message)
        self.owner = owner


class StoppedError(BiphasicError):
    """Work was stopped on request; what was saved is gone on from next time."""


@contextmanager
def reading(
    what: object,
    kind: type[BiphasicError],
    *,
    remedy: str = REPAIR,
    failure: str = "cannot be read",
) -> Iterator[None]:
    """Turn whatever goes wrong while an input is read into one line that names the input.

    Libraries raise more than they document. The block reads and checks one named input and does
    nothing else, so that no fault of the program is taken for one of the input.

    Args:
        what: Names the input: a file, a folder, an option.
        kind: What is raised.
        remedy: What to do; ends the message.
        failure: What could not be done with the input.

    Raises:
        BiphasicError: Of `kind`; one that the block raises is left as it is.
    """
    try:
        yield
    except BiphasicError:
        raise
    except Exception as error:  # the one place that foresees everything
        match error:
            case RecursionError():
                reason = "it is nested too deeply"
            case MemoryError():
                reason = "it does not fit into memory"
            case OSError(strerror=str(reason)):
                pass
            case _:
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise kind(f"{failure} ({reason}); {remedy}", about=str(what)) from error


def visible(text: str, *, kept: str = "\n\t") -> str:
    r"""Write out characters that steer a terminal or turn text round, such as escape as `\u001b`.

    JSON stays JSON: it writes them so, too.

    Args:
        text: To be shown.
        kept: Controls that stay.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in kept or unicodedata.category(character) == "Zs"
        else f"\\u{ord(character):04x}"
        for character in text
    )


def os_error_text(error: OSError) -> str:
    """Say what the system refused, where, and what to do about a full disk; one line."""
    where = f"{error.filename}: " if error.filename else ""
    reason = error.strerror or str(error)
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"{where}{reason}; make room ('biphasic study clean' helps) and run again"
    return f"{where}{reason}"
