"""The Hugging Face hub: checks names, explains errors, and hides what its libraries print."""

from __future__ import annotations

import errno
import logging
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from biphasic.errors import DataError, one_line, system_fault_in

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_LOCAL = "or give a local copy"
# Time for the hub to answer; without it, a network that drops packets blocks for minutes.
ANSWER_SECONDS = 10.0
_OFFLINE = f"hub access is disabled (HF_HUB_OFFLINE or HF_DATASETS_OFFLINE); unset it, {_LOCAL}"
_UNREACHABLE = f"the hub cannot be reached; check the connection, {_LOCAL}"
_NEEDS_CODE = (
    "needs custom code to be read, which the datasets library no longer runs; give a local "
    "copy in a common format (Parquet, JSON lines, CSV)"
)
# By the names of huggingface_hub's errors; subclasses come before their base classes.
_MEANINGS: Mapping[str, str] = {
    "GatedRepoError": "request access on its hub page, then log in with `hf auth login`",
    "RevisionNotFoundError": "the hub has no such revision",
    "RepositoryNotFoundError": (
        "not on the hub, or private; check the name, or log in with `hf auth login`"
    ),
}

# Faults of this machine; others, such as that of a refused connection, are of the network.
_OF_THE_MACHINE = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE,
}  # fmt: skip
_CACHE = "cache of hub files (HF_HOME)"


def check_hub_id(name: str) -> None:
    """Raise a DataError for a name, of no folder, that cannot be an id on the hub."""
    if not _HUB_ID.fullmatch(name) or name.startswith("."):
        raise DataError(f"{name}: no such folder, and not a hub id such as owner/name")


def fetch_files(
    name: str, patterns: Iterable[str], *, revision: str | None, failure: str = ""
) -> Path:
    """Fetch files of a model on the hub, all of one commit, and return their folder.

    If the hub does not answer, the files in its cache are used. `failure` begins the reason of an
    error.
    """
    check_hub_id(name)
    from huggingface_hub import HfApi, snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import HTTPError  # noqa: PLC0415  # pyright: ignore[reportPrivateImportUsage]

    unanswered: Exception | None = None
    with quiet():
        # `snapshot_download` asks the same, but waits without a limit. Given the commit of this
        # answer, it would not record it under the branch, and files would not be found offline.
        try:
            HfApi().model_info(name, revision=revision, timeout=ANSWER_SECONDS)
        except (HTTPError, OSError, ValueError) as error:
            unanswered = error
        try:
            folder = snapshot_download(
                name,
                revision=revision,
                allow_patterns=[*patterns],
                local_files_only=unanswered is not None,
            )
        except (HTTPError, OSError, ValueError) as error:
            at = f" at revision '{revision}'" if revision else ""
            reason = explain(unanswered or error.__cause__ or error)
            raise DataError(f"model {name}{at}: {failure}{reason}") from None
    return Path(folder)


def library_errors() -> tuple[type[Exception], ...]:
    """Return the errors of the hub's libraries; wrong names are a ValueError."""
    import pyarrow as pa  # noqa: PLC0415
    from datasets.exceptions import DatasetsError  # noqa: PLC0415
    from huggingface_hub.errors import HTTPError  # noqa: PLC0415  # pyright: ignore[reportPrivateImportUsage]  # httpx's, or its successor's

    # RuntimeError is raised for a dataset with custom code.
    return DatasetsError, HTTPError, pa.ArrowException, OSError, RuntimeError


def explain(error: BaseException) -> str:
    """Return a one-line explanation of an error of the hub's libraries, with a remedy.

    Raises:
        OSError: The disk is full, or another fault of this machine, which says nothing of the hub.
    """
    from huggingface_hub import errors  # noqa: PLC0415

    chain = list(_chain(error))
    for fault in filter(None, map(_fault_of_the_machine, chain)):
        raise fault from error
    # datasets drops the chain of causes and keeps only the name.
    if any("OfflineModeIsEnabled" in f"{type(part).__name__} {part}" for part in chain):
        return _OFFLINE
    for name, meaning in _MEANINGS.items():
        if any(isinstance(part, getattr(errors, name)) for part in chain):
            return meaning
    if "scripts are no longer supported" in str(error):
        return _NEEDS_CODE
    # The first cause is the most specific.
    if isinstance(error, errors.HfHubHTTPError):
        return f"the hub refuses to answer; try again later, {_LOCAL} ({one_line(chain[-1])})"
    if isinstance(error, errors.HTTPError | ConnectionError):  # pyright: ignore[reportPrivateImportUsage]
        return f"{_UNREACHABLE} ({one_line(chain[-1])})"
    return f"cannot be read ({one_line(chain[-1])})"


def _fault_of_the_machine(error: BaseException) -> OSError | None:
    if str(error).startswith("Not enough disk space"):  # datasets looks before it writes
        return OSError(errno.ENOSPC, one_line(error), _CACHE)
    fault = error if isinstance(error, OSError) else system_fault_in(str(error), _CACHE)
    if fault is None or fault.errno not in _OF_THE_MACHINE:
        return None
    return OSError(fault.errno, os.strerror(fault.errno), fault.filename or _CACHE)


@contextmanager
def quiet() -> Iterator[None]:
    """Disable progress bars and retry logs of the hub's libraries within the block."""
    import datasets.utils  # noqa: PLC0415
    import huggingface_hub.utils  # noqa: PLC0415

    with ExitStack() as undo:
        for name in ("datasets", "huggingface_hub"):
            logger = logging.getLogger(name)
            undo.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        # If the environment controls progress bars, the libraries warn and change nothing.
        undo.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", UserWarning)
        for library in (datasets.utils, huggingface_hub.utils):
            if not library.are_progress_bars_disabled():
                library.disable_progress_bars()
                undo.callback(library.enable_progress_bars)
        yield


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, the first cause last."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
