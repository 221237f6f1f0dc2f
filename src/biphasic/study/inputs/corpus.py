"""Data of a study: corpora and built-in tasks, each built once per store."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.config import Config, load_config, parse_config
from biphasic.data.building.blend import Report
from biphasic.data.building.build import RECORD, build_corpus, corpus_origin, read_record
from biphasic.data.building.config import CorpusConfig
from biphasic.data.building.verify import read_tokenizer, verify_tokenizer
from biphasic.data.corpus import Corpus
from biphasic.data.text.pydocs import (
    PYDOCS_VERSION,
    STANDARD_LIBRARY,
    installed_versions,
    load_documents,
)
from biphasic.errors import DataError
from biphasic.files import MANIFEST, digest, expanded, file_sha256, is_complete, remove_partials
from biphasic.locks import wait_for_work
from biphasic.model.loading.hub import LocalModel
from biphasic.tasks.builtin.write import BUILTIN_TASKS, TASKS_VERSION, build_tasks
from biphasic.training.data import TrainingData, vocabulary_of
from biphasic.training.recipe import PretrainedModel, Recipe

if TYPE_CHECKING:
    from rich.console import Console


class DataPaths(Config):
    """Where the text of a run is, and the finished model that it may begin with."""

    tokenizer: Path
    """Folder of the tokenizer."""
    train: Path
    """Folder of the corpus to pretrain on."""
    heldout: Path
    """Folder of the corpus to watch losses on."""
    corpora: tuple[Path, ...] = ()
    """Folders of the corpora of single phases."""
    pretrained: LocalModel | None = None
    """The finished model that recipes begin with."""

    def origin(self) -> dict[str, Any]:
        """Return what the corpus was made from.

        Raises:
            DataError: That is damaged.
        """
        return read_record(self.train.parent)["origin"]

    def content(self) -> tuple[str, ...]:
        """Return hashes that change with the content of any part."""
        folders = (self.tokenizer, self.train, self.heldout, *map(_training_part, self.corpora))
        hashes = tuple(file_sha256(folder / MANIFEST) for folder in folders)
        return (*hashes, self.pretrained.identity) if self.pretrained else hashes

    def open(self) -> TrainingData:
        """Read tokenizer and corpora, checking every byte.

        Raises:
            CheckpointError: A file is damaged.
            DataError: The corpus was made with another tokenizer.
        """
        corpus = Corpus(self.train)
        return TrainingData(
            corpus=corpus,
            heldout=Corpus(self.heldout),
            tokenizer=verify_tokenizer(self.tokenizer, corpus),
            pretrained=self.pretrained,
            corpora={folder: Corpus(_training_part(folder)) for folder in self.corpora},
        )

    def extended(self, recipes: Iterable[Recipe]) -> DataPaths:
        """Return the paths with all that recipes read beside: corpora of phases, a model.

        Raises:
            CheckpointError: A tokenizer is damaged.
            ConfigError: The recipes begin with different finished models, or an objective needs a
                tokenizer of another kind.
            DataError: There is no such corpus or model, or it has another tokenizer.
            ModelError: The model cannot be gone on from as the recipes say.
        """
        recipes, tokenizer = list(recipes), read_tokenizer(self.tokenizer)
        corpora = {p.corpus for recipe in recipes for p in recipe.placed_phases if p.corpus}
        for folder in sorted(corpora):
            _check_phase_corpus(folder, self.tokenizer, tokenizer.sha256)
        vocabulary = vocabulary_of(tokenizer)
        for phase in (phase for recipe in recipes for phase in recipe.phases):
            phase.check_vocabulary(vocabulary)
        pretrained = None
        if any(isinstance(recipe.model, PretrainedModel) for recipe in recipes):
            from biphasic.study.inputs.base_model import locate_pretrained  # noqa: PLC0415 - reads models

            pretrained = locate_pretrained(recipes, tokenizer)
        return self.model_copy(update={"corpora": tuple(sorted(corpora)), "pretrained": pretrained})


def corpus_settings(corpus: CorpusConfig | Mapping[str, Any] | Path | str | None) -> CorpusConfig:
    """Return the corpus that somebody means.

    Args:
        corpus: Its settings; a folder that `biphasic corpus build` made; a corpus file (YAML),
            whose relative paths begin where it lies; or None for the built-in documentation.

    Raises:
        ConfigError: A setting is wrong, or there is no such folder or file.
    """
    if isinstance(corpus, CorpusConfig):
        return corpus
    if corpus is None or isinstance(corpus, Mapping):
        return parse_config(CorpusConfig, corpus or {}, where="corpus")
    path = expanded(corpus).resolve()
    if path.is_dir():
        return CorpusConfig(folder=path)
    return load_config(CorpusConfig, path).anchored(path.parent)


def locate_corpus(config: CorpusConfig, store: Path) -> Path:
    """Return the folder that a corpus is in, or will be; quick, before any work.

    Raises:
        DataError: There is no such source, tokenizer or finished corpus.
    """
    if config.folder is None:
        return store / "data" / digest(corpus_origin(config))[:32]
    if not is_built(config.folder):
        raise DataError(
            f"{config.folder}: no finished corpus here; make one with 'biphasic corpus build'"
        )
    return config.folder


def prepare_corpus(
    config: CorpusConfig, folder: Path, store: Path, *, console: Console
) -> DataPaths:
    """Build the text that a study trains on, or find it built.

    Args:
        config: The study's corpus.
        folder: Where `locate_corpus` says.
        store: Content store.
        console: Where progress is shown.

    Raises:
        DataError: There is no text, or it cannot be used.
    """
    if config.folder is None and not is_built(folder):
        # Most commands only look whether the corpus is there, and start sooner without these.
        from biphasic.data.building.display import build_bar  # noqa: PLC0415
        from biphasic.progress import say_on  # noqa: PLC0415

        with build_bar(console) as report:
            build_missing_corpus(config, folder, store, say=say_on(console), progress=report)
    return DataPaths(
        tokenizer=folder / "tokenizer", train=folder / "train", heldout=folder / "heldout"
    )


def build_missing_corpus(
    config: CorpusConfig,
    folder: Path,
    store: Path,
    *,
    say: Callable[[str], None],
    progress: Report,
) -> None:
    """Build a corpus, or wait for whoever builds it.

    Args:
        config: What it is made from.
        folder: Where `locate_corpus` says.
        store: Content store.
        say: Told what is being done, one sentence at a time.
        progress: Told how far tokenising is.

    Raises:
        DataError: There is no text, or it cannot be used.
    """
    with _lock(store, f"data-{folder.name}", say=say):
        # Of a corpus that was refused or interrupted there may be parts, but no record.
        if not is_built(folder):
            build_corpus(config, folder, say=say, progress=progress)


def is_built(folder: Path) -> bool:
    """Tell whether a folder holds a finished corpus."""
    parts = (folder / part for part in ("tokenizer", "train", "heldout"))
    return (folder / RECORD).is_file() and all(map(is_complete, parts))


def _training_part(folder: Path) -> Path:
    return folder / "train"


def _check_phase_corpus(folder: Path, tokenizer: Path, sha256: str) -> None:
    if not is_built(folder):
        raise DataError(
            f"{folder}: no finished corpus here, though a phase reads one; make one with "
            "'biphasic corpus build'"
        )
    if read_tokenizer(folder / "tokenizer").sha256 != sha256:
        raise DataError(
            f"{folder}: made with another tokenizer than the run's corpus; build it with "
            f"'--tokenizer {tokenizer}'"
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
    with _lock(store, f"tasks-{key}", say=say):
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


def _lock(store: Path, name: str, *, say: Callable[[str], None]) -> AbstractContextManager[object]:
    """Wait until no other process makes the same data."""
    return wait_for_work(store, name, doing=f"making {name}", say=say)
