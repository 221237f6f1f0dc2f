"""Data of a study: corpora and built-in tasks, each built once per store."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from biphasic.config import Config
from biphasic.data.build import RECORD, build_corpus, corpus_origin, read_record
from biphasic.data.corpus import Corpus
from biphasic.data.corpus_config import CorpusConfig
from biphasic.data.pydocs import (
    PYDOCS_VERSION,
    STANDARD_LIBRARY,
    installed_versions,
    load_documents,
)
from biphasic.data.tokenizer import TextTokenizer
from biphasic.errors import DataError
from biphasic.files import (
    MANIFEST,
    digest,
    file_sha256,
    is_complete,
    remove_partials,
)
from biphasic.tasks.builtin.write import BUILTIN_TASKS, TASKS_VERSION, build_tasks
from biphasic.training.loop import TrainingData


class CorpusPaths(Config):
    """Where a study's text is."""

    tokenizer: Path
    """Folder of the tokenizer."""
    train: Path
    """Folder of the corpus to pretrain on."""
    heldout: Path
    """Folder of the corpus to watch losses on."""

    def content(self) -> tuple[str, ...]:
        """Return hashes that change with the content of any part."""
        folders = (self.tokenizer, self.train, self.heldout)
        return tuple(file_sha256(folder / MANIFEST) for folder in folders)

    def open(self) -> TrainingData:
        """Read tokenizer and corpora, checking every byte.

        Raises:
            CheckpointError: A file is damaged.
        """
        return TrainingData(
            corpus=Corpus(self.train),
            heldout=Corpus(self.heldout),
            tokenizer=TextTokenizer.load(self.tokenizer),
        )


def prepare_corpus(config: CorpusConfig, store: Path, *, say: Callable[[str], None]) -> CorpusPaths:
    """Build the text that a study trains on, or find it built.

    Args:
        config: The study's corpus.
        store: Content store.
        say: Told what is being done, one sentence at a time.

    Raises:
        DataError: There is no text, or it cannot be used.
    """
    if config.folder is not None:
        return _built(config.folder)
    key = digest(corpus_origin(config))[:32]
    folder = store / "data" / key
    paths = _paths(folder)
    with _lock(store, f"data-{key}"):
        # The record comes last: a corpus that was refused or interrupted has parts but no record.
        if not (folder / RECORD).is_file() or not _is_whole(paths):
            build_corpus(config, folder, say=say)
    return paths


def check_corpus(config: CorpusConfig) -> None:
    """Check that a corpus's sources or its folder are there; quick, before any work.

    Raises:
        DataError: They are not.
    """
    if config.folder is not None:
        _built(config.folder)
    else:
        corpus_origin(config)


def data_origin(config: CorpusConfig) -> dict[str, Any]:
    """Return what a corpus was made from, for reports."""
    if config.folder is not None:
        return read_record(config.folder)["origin"]
    return corpus_origin(config)


def _built(folder: Path) -> CorpusPaths:
    """Return the paths of a corpus that was built before.

    Raises:
        DataError: The folder holds no finished corpus.
    """
    paths = _paths(folder)
    if not (folder / RECORD).is_file() or not _is_whole(paths):
        raise DataError(f"{folder}: no finished corpus here; make one with 'biphasic corpus build'")
    return paths


def _is_whole(paths: CorpusPaths) -> bool:
    return all(map(is_complete, (paths.tokenizer, paths.train, paths.heldout)))


def _paths(folder: Path) -> CorpusPaths:
    return CorpusPaths(
        tokenizer=folder / "tokenizer", train=folder / "train", heldout=folder / "heldout"
    )


def prepare_builtin_tasks(
    libraries: tuple[str, ...] | None, store: Path, *, say: Callable[[str], None]
) -> Path:
    """Make the built-in tasks, or find them made; return the folder that holds them.

    Args:
        libraries: Whose documentation to read; all that are installed when None.
        store: Content store.
        say: Told what is being done, one sentence at a time.

    Raises:
        DataError: The documentation yields no example for some split of a task.
    """
    key = digest(builtin_tasks_origin(libraries))[:32]
    folder = store / "tasks" / f"builtin-{key}"
    with _lock(store, f"tasks-{key}"):
        if not all(is_complete(folder / name) for name in BUILTIN_TASKS):
            remove_partials(folder)
            say("making the four built-in tasks")
            build_tasks(load_documents(libraries), folder)
    return folder


def builtin_tasks_origin(libraries: tuple[str, ...] | None) -> dict[str, Any]:
    """Return all that determines the built-in tasks: code and installed versions."""
    return {
        "libraries": installed_versions(libraries),
        # It has no version of its own: without this, tasks with and without it would be one.
        "standard_library": libraries is None or STANDARD_LIBRARY in libraries,
        "python": platform.python_version(),
        "pydocs_version": PYDOCS_VERSION,
        "tasks_version": TASKS_VERSION,
    }


@contextmanager
def _lock(store: Path, name: str) -> Iterator[None]:
    """Wait until no other process makes the same data."""
    locks = store / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with FileLock(locks / f"{name}.lock"):
        yield
