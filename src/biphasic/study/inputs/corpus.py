"""Corpora and built-in tasks of a study, each built once per store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from biphasic.config import Config, parse_config
from biphasic.data.building import DEFAULT_VOCAB_SIZE
from biphasic.data.building.build import (
    RECORD,
    CorpusFolders,
    build_corpus,
    check_columns,
    corpus_origin,
    decisive,
    heldout_fractions,
    is_built,
    notes_on,
    open_sources,
    read_record,
)
from biphasic.data.building.built import read_tokenizer, verify_tokenizer
from biphasic.data.building.config import CorpusConfig, corpus_name
from biphasic.data.building.gather import BuildProgress, BuildReport
from biphasic.data.building.selection import TaskTexts
from biphasic.data.corpus import DETAILS, Corpus
from biphasic.data.pairs import Pairs
from biphasic.data.text.hub_tables import find_copy
from biphasic.data.text.sources import SourceConfig
from biphasic.errors import ConfigError, DataError, StoppedError
from biphasic.execution.job import Job, Progress, Report, ShouldStop, never, save_job
from biphasic.files import (
    digest,
    expanded,
    file_sha256,
    read_json_object,
    remove_partials,
    write_json,
)
from biphasic.locks import Say, lock_work
from biphasic.model.loading.hub import LocalModel, fetch_model
from biphasic.plugins import load_with_plugins
from biphasic.pydocs.documents import load_documents, pydocs_origin
from biphasic.pydocs.tasks import BUILTIN_TASKS, TASKS_VERSION, build_tasks
from biphasic.store import BUILTIN, FOUND, MANIFEST, is_complete
from biphasic.study.settings.study import anchor_corpus
from biphasic.tasks.pairs import task_texts
from biphasic.tasks.source import is_mteb, published_source
from biphasic.training.lineage import TrainingData, vocabulary_of
from biphasic.training.recipe import PretrainedModel, Recipe

if TYPE_CHECKING:
    from rich.console import Console

    from biphasic.data.tokens.tokenizer import TextTokenizer


class DataPaths(Config):
    """Paths of a run's text, and of its pretrained model if it has one."""

    tokenizer: Path  # Folder of the tokenizer.
    train: Path  # Folder of the corpus to pretrain on.
    heldout: Path  # Folder of the corpus for held-out losses.
    corpora: Mapping[str, Path] = {}  # Folders of the corpora of single phases, by name.
    pairs: tuple[Path, ...] = ()  # Folders of the pairs that phases read.
    pretrained: LocalModel | None = None  # The pretrained model that recipes begin with.

    @classmethod
    def of(cls, folder: Path) -> DataPaths:
        """Return the paths of a corpus, built or not."""
        return cls(**vars(CorpusFolders.below(folder)))

    def origin(self) -> dict[str, Any]:
        """Return the origin of the corpus: its sources and settings."""
        return read_record(self.train.parent)["origin"]

    def content(self) -> tuple[str, ...]:
        """Return hashes of all parts."""
        folders = (
            self.tokenizer,
            self.train,
            self.heldout,
            *(folder / "train" for folder in self.corpora.values()),
            *self.pairs,
        )
        hashes = tuple(file_sha256(folder / MANIFEST) for folder in folders)
        return (*hashes, self.pretrained.identity) if self.pretrained else hashes

    def open(self) -> TrainingData:
        """Load tokenizer and corpora, and verify their hashes."""
        corpus = Corpus(self.train)
        return TrainingData(
            corpus=corpus,
            heldout=Corpus(self.heldout),
            tokenizer=verify_tokenizer(self.tokenizer, corpus),
            pretrained=self.pretrained,
            corpora={n: Corpus(folder / "train") for n, folder in self.corpora.items()},
            pairs={folder: Pairs(folder) for folder in self.pairs},
        )

    def extended(self, recipes: Iterable[Recipe]) -> DataPaths:
        """Return the paths with what else recipes need: pairs, a pretrained model."""
        recipes, tokenizer = list(recipes), read_tokenizer(self.tokenizer)
        check_phase_tokenizers(recipes, tokenizer)
        pairs = phase_pairs(recipes)
        for folder in pairs:
            Pairs(folder)
        model, pretrained = pretrained_model(recipes), None
        if model is not None:
            from biphasic.study.inputs.models import fetch_pretrained  # noqa: PLC0415 - reads models

            pretrained = fetch_pretrained(model, recipes, tokenizer)
        return self.model_copy(update={"pairs": pairs, "pretrained": pretrained})

    def with_phases(self, recipes: Iterable[Recipe], store: Path, *, console: Console) -> DataPaths:
        """Return the paths with the corpora of phases, which are built with this tokenizer."""
        corpora = {}
        for name, corpus in phase_corpora(recipes).items():
            if isinstance(corpus, Path):
                corpora[name] = corpus
                continue
            given = as_run(corpus, self.tokenizer)
            settings = given.at_commits()
            corpora[name] = folder = locate_corpus(settings, store)
            if not is_built(folder):
                save_job(CorpusJob.of(settings, folder, store))
            prepare_corpus(settings, folder, store, console=console)
            if not is_local(given):
                remember(store, given, folder)
        return self.model_copy(update={"corpora": corpora})


def as_run(corpus: CorpusConfig, tokenizer: Path) -> CorpusConfig:
    """Return a phase's corpus with the run's tokenizer; what the run holds out is held out."""
    # The settings of a finished corpus are in its record. Merged ones may have several fractions.
    fractions = heldout_fractions(read_record(tokenizer.parent)["origin"])
    fraction = max(fractions, default=corpus.heldout_fraction)
    return corpus.model_copy(update={"tokenizer": str(tokenizer), "heldout_fraction": fraction})


def phase_corpora(recipes: Iterable[Recipe]) -> dict[str, Path | CorpusConfig]:
    """Return the corpora of single phases by name; those without settings are finished."""
    every = (phase.corpus for recipe in recipes for phase in recipe.phases if phase.corpus)
    corpora = {corpus_name(corpus): corpus for corpus in every}
    finished = sorted(corpus for corpus in corpora.values() if isinstance(corpus, Path))
    if missing := [str(folder) for folder in finished if not is_built(folder)]:
        raise DataError(
            f"{', '.join(missing)}: no finished corpus here, but a phase reads it; build it with "
            "'biphasic corpus build'"
        )
    return dict(sorted(corpora.items()))


def check_phase_tokenizers(recipes: Iterable[Recipe], tokenizer: TextTokenizer) -> None:
    """Check that phases can read the run's tokenizer, and that their finished corpora have it."""
    vocabulary = vocabulary_of(tokenizer)
    for phase in (phase for recipe in recipes for phase in recipe.phases):
        phase.check_vocabulary(vocabulary)
    for folder in phase_corpora(recipes).values():
        if not isinstance(folder, Path):
            continue
        if read_tokenizer(folder / "tokenizer").sha256 != tokenizer.sha256:
            raise DataError(
                f"{folder}: built with another tokenizer than the run's corpus; build it with "
                "'--tokenizer' and the folder 'tokenizer' of that corpus"
            )


def phase_pairs(recipes: Iterable[Recipe]) -> tuple[Path, ...]:
    """Return the folders of the pairs that phases read."""
    readings = (phase.reading for recipe in recipes for phase in recipe.phases)
    return tuple(sorted({reading.folder for reading in readings if reading}))


def pretrained_model(recipes: Iterable[Recipe]) -> PretrainedModel | None:
    """Return the pretrained model that recipes begin with; None if they begin with new models."""
    models = [recipe.model for recipe in recipes if isinstance(recipe.model, PretrainedModel)]
    if any(model != models[0] for model in models):
        raise ConfigError("arms name different pretrained models; a study can use only one")
    return models[0] if models else None


def corpus_settings(corpus: CorpusConfig | Mapping[str, Any] | Path | str | None) -> CorpusConfig:
    """Return the settings of a corpus: given, of a folder or file of it, or of a source of text."""
    if isinstance(corpus, CorpusConfig):
        return corpus
    if corpus is None or isinstance(corpus, Mapping):
        return parse_config(CorpusConfig, corpus or {}, where="corpus")
    path, source = expanded(corpus).resolve(), str(corpus)
    if path.suffix in {".yaml", ".yml"}:
        return anchor_corpus(load_with_plugins(CorpusConfig, path), path.parent)
    # Folders of text have a folder `train`, too.
    if (path / RECORD).is_file() or is_complete(path / "train"):
        return CorpusConfig(folder=path)
    if (path / DETAILS).is_file() and is_complete(path):
        raise DataError(f"{source}: one split of a corpus; give the folder of the whole corpus")
    named = parse_config(SourceConfig, {"source": source}, where="corpus").path
    if named is not None and not named.exists():
        raise DataError(f"{source}: no such file or folder; give text, or hf:DATASET")
    return corpus_settings({"sources": [source]})


def corpus_of(corpus: CorpusConfig, recipes: Sequence[Recipe]) -> CorpusConfig:
    """Return the text of recipes: that of their pairs, if they read nothing else and name none."""
    pairs = phase_pairs(recipes)
    is_named = corpus.folder is not None or "sources" in corpus.model_fields_set
    phases = [phase for recipe in recipes for phase in recipe.phases]
    if is_named or not pairs or any(phase.reading is None for phase in phases):
        return corpus
    update: dict[str, Any] = {
        "sources": tuple(SourceConfig(source=str(folder)) for folder in pairs)
    }
    if (model := pretrained_model(recipes)) and not corpus.vocab_size:
        update["tokenizer"] = corpus.tokenizer or model.pretrained
    return corpus.model_copy(update=update)


def locate_corpus(config: CorpusConfig, store: Path) -> Path:
    """Return the folder of a corpus, built or not. This is fast: at most 64 MiB are read."""
    if config.folder is None:
        origin = decisive(corpus_origin(config, tasks_of(config, store)))
        for source in origin["sources"]:
            source.pop("name", None)  # a copy of a folder may be called otherwise
        return store / "data" / digest(origin)[:32]
    if not is_built(config.folder):
        raise DataError(
            f"{config.folder}: no finished corpus here; build one with 'biphasic corpus build'"
        )
    return config.folder


def is_local(config: CorpusConfig) -> bool:
    """Return whether what determines a corpus is known without the hub."""
    hubs = [
        replace(source.hub, column=source.hub.column or source.column)
        for source in config.sources
        if isinstance(source, SourceConfig) and source.hub
    ]
    return (
        (config.tokenizer is None or Path(config.tokenizer).is_dir())
        and not any(is_mteb(task) or published_source(task) for task in config.against)
        and all(find_copy(hub.dataset, config.copies) for hub in hubs)
    )


def remember(store: Path, settings: object, folder: Path) -> None:
    """Note where the data of settings are, whose identity only the hub knows."""
    write_json(_note(store, settings), {"folder": str(folder.relative_to(store))})


def recall(store: Path, settings: object) -> Path | None:
    """Return where the data of settings are, as an earlier run found them; None if none did."""
    path = _note(store, settings)
    name = read_json_object(path, remedy="delete it").get("folder") if path.is_file() else None
    return store / name if isinstance(name, str) else None


def _note(store: Path, settings: object) -> Path:
    raw = settings.model_dump(mode="json") if isinstance(settings, Config) else settings
    return store / FOUND / f"{digest(raw)[:32]}.json"


def tasks_of(config: CorpusConfig, store: Path, say: Say = lambda _: None) -> TaskTexts:
    """Return the evaluation tasks whose texts a corpus leaves out."""
    return task_texts(config.against, store=store, copies=config.copies, say=say)


def prepare_corpus(
    config: CorpusConfig,
    folder: Path,
    store: Path,
    *,
    console: Console,
    recipes: Sequence[Recipe] = (),
) -> DataPaths:
    """Build the corpus of a study, and those of its phases, unless they are built."""
    # All else is checked before the corpus is built, which may take hours.
    if config.folder is None and not is_built(folder):
        for own in phase_corpora(recipes).values():
            if isinstance(own, CorpusConfig):
                text = own.at_commits()
                locate_corpus(text, store)  # a source may be missing
                check_columns(text)
                open_sources(text.sources, text)
        if any(phase.lora for recipe in recipes for phase in recipe.phases):
            from biphasic.model.lora import require_peft  # noqa: PLC0415 - imports torch

            require_peft()
        # Imported here: commands that only look for the corpus start faster.
        from biphasic.data.building.gather import build_bar  # noqa: PLC0415
        from biphasic.progress import progress_bar, say_on  # noqa: PLC0415

        checks: list[Callable[[TextTokenizer], None]] = [partial(check_phase_tokenizers, recipes)]
        if model := pretrained_model(recipes):
            from biphasic.study.inputs.models import (  # noqa: PLC0415
                check_training,
                check_vocabulary,
                check_vocabulary_size,
            )

            local = fetch_model(model.pretrained, revision=model.revision)
            with progress_bar(console, "checking the model"):
                check_training(local, [recipe for recipe in recipes if recipe.model == model])
            if config.tokenizer is None:
                size = config.vocab_size or DEFAULT_VOCAB_SIZE
                check_vocabulary_size(local.folder, size, name=model.pretrained)
            checks.append(partial(check_vocabulary, local.folder, name=model.pretrained))

        def check(tokenizer: TextTokenizer) -> None:
            for agrees in checks:
                agrees(tokenizer)

        with build_bar(console) as report:
            build_missing_corpus(
                config, folder, store, say=say_on(console), progress=report, check_tokenizer=check
            )
    return DataPaths.of(folder).with_phases(recipes, store, console=console)


def build_missing_corpus(
    config: CorpusConfig,
    folder: Path,
    store: Path,
    *,
    say: Say,
    progress: BuildReport,
    check_tokenizer: Callable[[TextTokenizer], None] = lambda _: None,
) -> None:
    """Build a corpus, or wait for another process that builds it."""
    name = f"data-{folder.name}"
    with lock_work(store, name, wait=f"building {name}", say=say):
        if not is_built(folder):
            build_corpus(
                config,
                folder,
                say=say,
                progress=progress,
                check_tokenizer=check_tokenizer,
                tasks=tasks_of(config, store, say),
            )
            for line in notes_on(folder):
                say(line)


def prepare_builtin_tasks(libraries: tuple[str, ...] | None, store: Path, *, say: Say) -> Path:
    """Build the built-in tasks unless they are built; return their folder."""
    folder = builtin_tasks_folder(libraries, store)
    work = folder.name.replace("builtin", "tasks")
    with lock_work(store, work, wait=f"building {work}", say=say):
        if not all(is_complete(folder / name) for name in BUILTIN_TASKS):
            remove_partials(folder)
            say("building the four built-in tasks")
            build_tasks(load_documents(libraries), folder)
    return folder


def builtin_tasks_folder(libraries: tuple[str, ...] | None, store: Path) -> Path:
    """Return the folder of the built-in tasks, built or not, by what determines them."""
    origin = {**pydocs_origin(libraries), "tasks_version": TASKS_VERSION}
    return store / "tasks" / f"{BUILTIN}{digest(origin)[:32]}"


class CorpusJob(Job):
    """Tokenise a corpus of a study."""

    kind: Literal["tokenise"] = "tokenise"
    id: str  # `data-` and the name of the folder.
    folder: Path  # Output folder.
    corpus: CorpusConfig  # Settings of the corpus.

    @classmethod
    def of(cls, corpus: CorpusConfig, folder: Path, store: Path) -> CorpusJob:
        """Return the job that builds a corpus in its folder from `locate_corpus`."""
        return cls(
            id=f"data-{folder.name}", label="the corpus", store=store, folder=folder, corpus=corpus
        )

    def outputs(self) -> list[Path]:
        """Return the folder that it writes."""
        return [self.folder]

    def is_done(self) -> bool:
        """Return whether the corpus is built."""
        return is_built(self.folder)

    def run(self, report: Report, *, should_stop: ShouldStop = never) -> None:
        """Build the corpus, or wait for the process that builds it."""

        def forward(progress: BuildProgress) -> None:
            total = progress.total_tokens or progress.tokens
            report(Progress(progress.tokens, total, progress.rates()))
            if should_stop():
                raise StoppedError("stopped; finished shards are kept")

        # It prints nothing: a job has a progress bar.
        build_missing_corpus(
            self.corpus, self.folder, self.store, say=lambda _: None, progress=forward
        )
