"""Data of a study: documents, tokenizer, corpora and tasks, each built once per store."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from biphasic.config import Config
from biphasic.data.corpus import Corpus, write_corpus
from biphasic.data.pydocs import (
    PYDOCS_VERSION,
    STANDARD_LIBRARY,
    Document,
    installed_versions,
    load_documents,
)
from biphasic.data.tokenizer import TextTokenizer, train_tokenizer, write_tokenizer
from biphasic.files import digest, is_complete, read_json, remove_partials, write_json
from biphasic.study.config import CorpusConfig
from biphasic.tasks.builtin import BUILTIN_TASKS, TASKS_VERSION, build_tasks
from biphasic.training.loop import TrainingData

DEFAULT_VOCAB_SIZE = 8192
_SPLITS = {"train": "train", "heldout": "validation"}


class PreparedPaths(Config):
    """Where a study's data are."""

    tokenizer: Path
    """Folder of the tokenizer."""
    train: Path
    """Folder of the corpus to pretrain on."""
    heldout: Path
    """Folder of the corpus to watch losses on."""
    tasks: Path
    """Folder that holds the built-in tasks' folders."""

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


def prepare(config: CorpusConfig, store: Path, *, say: Callable[[str], None]) -> PreparedPaths:
    """Build what a study reads, or find it built.

    Args:
        config: The study's corpus.
        store: Content store.
        say: Told what is being done, one sentence at a time.

    Raises:
        DataError: There is no text.
    """
    origin = data_origin(config)
    key = digest(origin)[:32]
    folder = store / "data" / key
    paths = PreparedPaths(
        tokenizer=folder / "tokenizer",
        train=folder / "train",
        heldout=folder / "heldout",
        tasks=folder / "tasks",
    )
    record = folder / "prepared.json"
    locks = store / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with FileLock(locks / f"data-{key}.lock"):
        if not (record.is_file() and read_json(record) == origin and _is_whole(paths)):
            _build(config, paths, origin, say=say)
            write_json(record, origin)
    return paths


def _build(
    config: CorpusConfig,
    paths: PreparedPaths,
    origin: dict[str, Any],
    *,
    say: Callable[[str], None],
) -> None:
    """Make what is missing; what an interrupted call finished is kept."""
    for leftovers in (paths.tokenizer.parent, paths.tasks):
        remove_partials(leftovers)
    if config.tokenizer:
        _copy_tokenizer(config.tokenizer, paths.tokenizer)
    say("reading the documentation of the installed libraries")
    documents = load_documents(config.libraries)
    if not is_complete(paths.tokenizer):
        say(f"training a tokenizer on {_megabytes(documents, 'train')} MB of text")
        texts = (document.text for document in documents if document.split == "train")
        vocab_size = config.vocab_size or DEFAULT_VOCAB_SIZE
        write_tokenizer(train_tokenizer(texts, vocab_size=vocab_size), paths.tokenizer)
    tokenizer = TextTokenizer.load(paths.tokenizer)
    for name, split in _SPLITS.items():
        target = paths.tokenizer.parent / name
        if not is_complete(target):
            say(f"tokenising {_megabytes(documents, split)} MB of text ({name})")
            pairs = [(doc.id, doc.text) for doc in documents if doc.split == split]
            write_corpus(target, pairs, tokenizer, provenance={**origin, "split": split})
    say("making the four tasks")
    build_tasks(documents, paths.tasks)


def data_origin(config: CorpusConfig) -> dict[str, Any]:
    """Return all that determines the data: settings, code and installed versions."""
    return {
        "source": config.source,
        "tokenizer": _tokenizer_origin(config),
        "libraries": installed_versions(config.libraries),
        # It has no version of its own: without this, studies with and without it would share data.
        "standard_library": config.libraries is None or STANDARD_LIBRARY in config.libraries,
        "tokenizers": importlib.metadata.version("tokenizers"),
        "python": platform.python_version(),
        "pydocs_version": PYDOCS_VERSION,
        "tasks_version": TASKS_VERSION,
    }


def _tokenizer_origin(config: CorpusConfig) -> dict[str, Any]:
    if config.tokenizer:
        return {"sha256": TextTokenizer.load(config.tokenizer).sha256}
    return {"kind": "byte-level BPE", "vocab_size": config.vocab_size or DEFAULT_VOCAB_SIZE}


def _copy_tokenizer(source: Path, target: Path) -> None:
    """Keep a tokenizer with the data made by it.

    Raises:
        DataError: It lacks a token that training needs.
    """
    tokenizer = TextTokenizer.load(source)
    _ = tokenizer.mask_id
    write_tokenizer(tokenizer, target)


def _is_whole(paths: PreparedPaths) -> bool:
    tasks = (paths.tasks / name for name in BUILTIN_TASKS)
    return all(map(is_complete, (paths.tokenizer, paths.train, paths.heldout, *tasks)))


def _megabytes(documents: list[Document], split: str) -> int:
    return sum(len(doc.text) for doc in documents if doc.split == split) // 1_000_000
