"""The exceptions that biphasic raises on purpose.

BiphasicError
├── ConfigError       a setting is wrong: which one, its value, the remedy
├── DataError         text, corpus or task data are missing, damaged or unusable
├── ModelError        a model breaks the attention contract or cannot be built
├── CheckpointError   a state on disk is damaged or does not belong to this run
├── TrainingError     training cannot go on (non-finite loss or gradient)
│   └── LostRankError a process that trains together with others has lost one of them
├── StoppedError      work was stopped on request
└── StudyError        a study cannot be planned, run or reported
    └── LockedError   another process is using the folder
        └── TakenError    another process holds the claim: it says who
"""

import errno

REPAIR = "correct it or restore it"
"""What to do about a damaged file of somebody's own: to delete it would lose it."""


class BiphasicError(Exception):
    """Base of all errors raised on purpose; its text is one line for people."""


class ConfigError(BiphasicError):
    """A setting is wrong."""


class DataError(BiphasicError):
    """Text, corpus or task data are missing, damaged or unusable."""


class ModelError(BiphasicError):
    """A model breaks the attention contract or cannot be built."""


class CheckpointError(BiphasicError):
    """A state on disk is damaged or belongs to something else."""


class TrainingError(BiphasicError):
    """Training cannot go on."""


class LostRankError(TrainingError):
    """A process that trains together with others has lost one of them."""


class StudyError(BiphasicError):
    """A study cannot be planned, run or reported."""


class LockedError(StudyError):
    """Another process is using the folder."""


class TakenError(LockedError):
    """Another process holds the claim."""

    def __init__(self, message: str, holder: str = "") -> None:
        """Say so, and name the holder: host, process, since when, doing what."""
        super().__init__(message)
        self.holder = holder


class StoppedError(BiphasicError):
    """Work was stopped on request; what was saved is gone on from next time."""


def os_error_text(error: OSError) -> str:
    """Say what the system refused, where, and what to do about a full disk; one line."""
    where = f"{error.filename}: " if error.filename else ""
    reason = error.strerror or str(error)
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"{where}{reason}; make room ('biphasic study clean' helps) and run again"
    return f"{where}{reason}"
