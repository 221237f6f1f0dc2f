"""The exceptions that biphasic raises on purpose.

BiphasicError
├── ConfigError       a setting is wrong: which one, its value, the remedy
├── DataError         text, corpus or task data are missing, damaged or unusable
├── ModelError        a model breaks the attention contract or cannot be built
├── CheckpointError   a state on disk is damaged or does not belong to this run
├── TrainingError     training cannot go on (non-finite loss or gradient)
└── StudyError        a study cannot be planned, run or reported
    └── LockedError   another process is using the folder
"""


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


class StudyError(BiphasicError):
    """A study cannot be planned, run or reported."""


class LockedError(StudyError):
    """Another process is using the folder."""
