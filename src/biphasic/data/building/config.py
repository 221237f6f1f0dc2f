"""Corpus settings, for study files and the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeInt,
    PositiveInt,
    SerializerFunctionWrapHandler,
    WrapSerializer,
    model_validator,
)

from biphasic.config import Config, nearest, parse_config
from biphasic.data.text.source import SourceContext, TextSource
from biphasic.data.text.sources import (
    BUILTIN,
    AnySource,
    SourceConfig,
    asked_once,
    at_commit,
    documentation,
)
from biphasic.errors import ConfigError
from biphasic.files import digest, expanded, is_folder


def _reading(source: TextSource) -> Any:
    """Return what a source reads, which is one value however its path or dataset is written."""
    if not isinstance(source, SourceConfig):
        # A plugin may be named twice, with different settings of its own.
        return source.model_copy(update={"share": None, "license": ""})
    if hub := source.hub:
        return replace(hub, column=hub.column or source.column, streaming=True), source.only
    return source.path and source.path.resolve(), source.column, source.only


class ShareConfig(Config):
    """Shares of sources by their sizes."""

    temperature: Annotated[float, Field(ge=0, le=1)]
    """Shares are proportional to tokens to this power: 1 keeps the sizes, 0 makes all equal."""


class CorpusConfig(Config):
    """Text to pretrain on."""

    sources: Annotated[tuple[AnySource, ...], Field(min_length=1)] = (SourceConfig(source=BUILTIN),)
    """Text sources; `builtin:pydocs` is the documentation in every installation."""
    # Not written if it is not set, so that records stay as they were before this setting.
    share: Annotated[ShareConfig | None, Field(exclude_if=lambda share: share is None)] = None
    """Shares of the sources by their sizes, in place of a share for each."""
    libraries: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """For `builtin:pydocs`: libraries to read; by default all that are installed."""
    vocab_size: Annotated[int, Field(ge=300, le=1 << 17)] | None = None
    """Entries of the byte-level BPE vocabulary, trained on the training split; 8,192 by default."""
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    """Use this tokenizer instead of training one: its folder, or the hub id of a model."""
    max_tokens: PositiveInt | None = None
    """Maximum tokens of the training split; documents are kept whole."""
    max_documents: PositiveInt | None = None
    """Maximum documents of the training split."""
    min_characters: NonNegativeInt = 0
    """Shorter documents are skipped."""
    max_characters: PositiveInt | None = None
    """Longer documents are skipped."""
    deduplicate: bool = False
    """Skip documents whose text occurred before, in any source and Unicode form."""
    against: tuple[str, ...] = ()
    """Evaluation tasks; documents that hold a text of theirs are skipped (docs/corpora.md)."""
    heldout_fraction: Annotated[float, Field(gt=0, le=0.5)] = 0.01
    """Probability that a document is held out, by hash; `builtin:pydocs` has its own split."""
    copies: Path | None = None
    """Folder of local copies of hub datasets, as `owner/name/`, used instead of the hub."""
    folder: Path | None = None
    """A corpus made by `biphasic corpus build`; excludes all other settings."""

    @model_validator(mode="after")
    def _consistent(self) -> CorpusConfig:
        for name, field in CorpusConfig.model_fields.items() if self.folder else ():
            # Compare values, because a fully written configuration must load again.
            if name != "folder" and getattr(self, name) != field.default:
                raise ValueError(f"'folder' is a finished corpus; '{name}' cannot change it")
        readings = [_reading(source) for source in self.sources]
        for place, source in enumerate(self.sources):
            if (first := readings.index(readings[place])) < place:
                raise ValueError(
                    f"sources: '{source.source}' is the same text as "
                    f"'{self.sources[first].source}'; remove one"
                )
        shares = [source.share is not None for source in self.sources]
        if any(shares) and not all(shares) and not self.share:
            without = self.sources[shares.index(False)].source
            raise ValueError(f"give all sources a share or none; '{without}' has none")
        # A phase that names no sources has those of its run.
        is_alone = len(shares) == 1 and "sources" in self.model_fields_set
        if self.is_mixture and self.max_documents is not None:
            raise ValueError(
                "shares are of tokens: limit a mixture by max_tokens, not max_documents"
            )
        if self.share and (any(shares) or is_alone):
            why = "sources have their own" if any(shares) else "there is only one source"
            raise ValueError(f"share: {why}; remove one of both")
        if self.libraries is not None and all(source.source != BUILTIN for source in self.sources):
            raise ValueError(f"'libraries' applies to {BUILTIN}, which is not a source here")
        for library in self.libraries or ():
            if library not in (known := documentation().known):
                raise ValueError(f"unknown library '{library}'{nearest(library, known)}")
        if self.tokenizer and self.vocab_size:
            raise ValueError("give a tokenizer, or the vocab_size of one to train, not both")
        if self.max_characters is not None and self.max_characters < self.min_characters:
            raise ValueError(
                f"max_characters {self.max_characters} is below min_characters "
                f"{self.min_characters}"
            )
        return self

    @property
    def is_mixture(self) -> bool:
        """Whether sources have shares of the tokens."""
        return self.share is not None or self.sources[0].share is not None

    @property
    def context(self) -> SourceContext:
        """The settings that all sources may use."""
        return SourceContext(self.libraries, self.copies)

    def at_commits(self) -> CorpusConfig:
        """Return the settings with the commits of hub datasets: the hub is asked once."""
        resolve = asked_once()
        sources = tuple(at_commit(source, self.copies, resolve) for source in self.sources)
        return self.model_copy(update={"sources": sources})

    def anchored(self, base: Path) -> CorpusConfig:
        """Return the settings with relative paths resolved against `base`."""
        tokenizer = self.tokenizer
        if tokenizer and is_folder(local := base / expanded(tokenizer)):
            tokenizer = str(local)
        moved = {
            "sources": tuple(source.anchored(base) for source in self.sources),
            "tokenizer": tokenizer,
            "folder": base / expanded(self.folder) if self.folder else None,
            "copies": base / expanded(self.copies) if self.copies else None,
        }
        # A phase has what it sets, and the rest of its run.
        own = {name: value for name, value in moved.items() if value != getattr(self, name)}
        return self.model_copy(update=own)


def _only_own(corpus: Path | CorpusConfig, write: SerializerFunctionWrapHandler) -> Any:
    """Return what is written of a phase's corpus: what it does not set is the run's."""
    written = write(corpus)
    if isinstance(corpus, Path) or _is_whole(corpus):
        return written
    # Also what is null, which takes a setting of the run away.
    own = [name for name in CorpusConfig.model_fields if name in corpus.model_fields_set]
    return {
        name: written.get(name) for name in own if name in written or getattr(corpus, name) is None
    }


def _is_whole(corpus: CorpusConfig) -> bool:
    """Return whether a phase's corpus has all settings, as in a record."""
    return corpus.model_fields_set >= CorpusConfig.model_fields.keys() - {"share"}


# A finished corpus has no other settings than its folder.
PhaseCorpus = Annotated[
    Path | CorpusConfig,
    AfterValidator(lambda corpus: getattr(corpus, "folder", None) or corpus),
    WrapSerializer(_only_own),
]
_OF_RUN = ("tokenizer", "vocab_size", "against", "heldout_fraction")


def phase_corpus(own: CorpusConfig, run: CorpusConfig, *, where: str) -> CorpusConfig:
    """Return a phase's corpus with all settings; those that it lacks are the run's."""
    if _is_whole(own):
        return own
    given = {name: getattr(own, name) for name in own.model_fields_set}
    for name in _OF_RUN:
        # A document is held out everywhere or nowhere, and compared with the same tasks.
        is_own = name == "against" and run.folder is not None  # whose record has hashes alone
        is_other = given.get(name) is not None and given[name] != getattr(run, name)
        if is_other and not is_own:
            raise ConfigError(
                f"{where}.{name}: all corpora of a run share it; set it in the run's corpus, or "
                "name the folder of a corpus from 'biphasic corpus build'"
            )
    inherited = {n: getattr(run, n) for n in {*run.model_fields_set, "sources"} if not run.folder}
    if "sources" in given:
        if all(source.source != BUILTIN for source in own.sources):
            inherited.pop("libraries", None)
        if own.is_mixture or len(own.sources) == 1:
            inherited.pop("share", None)
    elif run.folder is not None:
        raise ConfigError(f"{where}: the run's corpus is finished ({run.folder}); give sources")
    raw = {n: v for n, v in {**inherited, **given}.items() if n not in {"tokenizer", "vocab_size"}}
    whole = parse_config(CorpusConfig, raw, where=where)
    return whole.model_copy(update=vars(whole))


def corpus_name(corpus: Path | CorpusConfig) -> str:
    """Return the name of a phase's corpus in records: its folder, or a hash of its settings."""
    if isinstance(corpus, Path):
        return str(corpus)
    return f"corpus-{digest(corpus.model_dump(mode='json', exclude_defaults=True))[:32]}"


def short_corpus_name(corpus: Path | CorpusConfig) -> str:
    """Return the name of a phase's corpus in names of arms: its folder, or what it sets."""
    if isinstance(corpus, Path):
        return corpus.name
    is_named = "sources" in corpus.model_fields_set
    parts = [source.short_name for source in corpus.sources if is_named]
    parts += [f"t{corpus.share.temperature:g}"] if corpus.share else []
    return ".".join(parts) or corpus_name(corpus)[:13]
