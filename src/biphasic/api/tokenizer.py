"""Tokenizers from Python: `tokenizer.train` and `check`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from biphasic.amounts import size
from biphasic.api.verb import Function, Verb, option
from biphasic.data.building import DEFAULT_VOCAB_SIZE
from biphasic.errors import ConfigError, DataError
from biphasic.files import expanded

if TYPE_CHECKING:
    from biphasic.data.text.source import SourceContext, TextSource
    from biphasic.data.tokens.tokenizer import CheckedTokenizer, TrainedTokenizer


class Train(Verb):
    """Train a byte-level BPE tokenizer on all text of the sources.

    Raises:
        ConfigError: `out` holds something else, or a corpus file names a finished corpus.
        DataError: A source is missing, or has no text.

    Example:
        >>> from biphasic import tokenizer
        >>> tokenizer.train(["texts.jsonl"], "words", vocab_size=300).vocab_size
        300
    """

    sources: Sequence[str] = option(metavar="SOURCE")
    """Files, folders, builtin:pydocs, hf:OWNER/NAME?name=CONFIG&split=SPLIT, or plugins, as
    ./mine.py:Mine; or corpus files (YAML), whose sources are read whole."""
    out: Path | str = option(flag="--out")
    """Output folder."""
    _: KW_ONLY
    vocab_size: int = option(default=DEFAULT_VOCAB_SIZE, least=300, most=131072)
    """Vocabulary size."""
    column: str | None = None
    """Column or JSON key of the text; corpus files have their own."""
    copies: Path | str | None = None
    """Folder with local copies of hub datasets, as OWNER/NAME. Default: the corpus file's."""

    def __call__(self) -> TrainedTokenizer:
        from biphasic.data.building.build import decisive
        from biphasic.data.text.sources import (
            asked_once,
            at_commit,
            files_skipped,
            read_documents,
            source_origin,
        )
        from biphasic.data.tokens.tokenizer import (
            TextTokenizer,
            TrainedTokenizer,
            train_tokenizer,
            write_tokenizer,
        )
        from biphasic.files import digest
        from biphasic.locks import sole_writer
        from biphasic.store import is_complete

        if not self.sources:
            raise ConfigError("sources: is empty; give text to train on")
        folder = expanded(self.out)
        if folder.exists() and not is_complete(folder):
            raise ConfigError(
                f"--out {folder}: already exists; choose another folder, or delete it"
            )
        if self.column is not None and not any(map(_takes_column, self.sources)):
            raise ConfigError(
                "--column: give the sources it applies to; corpus files have their own, .txt and "
                ".md files none"
            )
        shared = {} if self.column is None else {"column": self.column}
        own_copies = None if self.copies is None else expanded(self.copies)
        resolve = asked_once()
        sources = (_sources_of(named, shared, own_copies) for named in self.sources)
        parsed = [
            (at_commit(source, context.copies, resolve), context)
            for source, context in chain.from_iterable(sources)
        ]
        origins = [source_origin(source, context) for source, context in parsed]
        made_from = digest(decisive({"sources": origins, "vocab_size": self.vocab_size}))
        if _is_made(folder, made_from):
            note = f"tokenizer: {folder} (already made from the same sources)"
            return TrainedTokenizer(folder, TextTokenizer.load(folder).vocab_size, (note,))
        sizes: list[int] = []

        def texts() -> Iterator[str]:
            documents = (read_documents(source, context) for source, context in parsed)
            for document in chain.from_iterable(documents):
                if document.split != "heldout":
                    sizes.append(len(document.text.encode()))
                    yield document.text

        with sole_writer(folder):
            trained = train_tokenizer(texts(), vocab_size=self.vocab_size)
            if not sum(sizes):
                raise DataError(f"{', '.join(self.sources)}: no text to train on")
            write_tokenizer(trained, folder, made_from=made_from)
        is_full = trained.vocab_size == self.vocab_size
        fewer = "" if is_full else f", not {self.vocab_size:,}: the text has no more pairs to merge"
        notes = (
            f"read {len(sizes):,} documents, {size(sum(sizes))} of text",
            *files_skipped(origins),
            f"vocabulary: {trained.vocab_size:,} entries{fewer}",
            f"tokenizer: {folder}",
        )
        return TrainedTokenizer(folder, trained.vocab_size, notes)


class Check(Verb):
    """Show a tokenizer's special tokens and vocabulary size.

    Includes the mask token that a corpus would use, and why.

    Raises:
        DataError: There is no tokenizer.

    Example:
        >>> from biphasic import tokenizer
        >>> tokenizer.check("words").special[-1]
        ('mask', '<|mask|>', 3)
    """

    tokenizer: str = option(metavar="NAME_OR_FOLDER")
    """Folder, or hub id of a model."""
    _: KW_ONLY
    revision: str | None = None
    """Branch, tag or commit on the hub. Default: the newest."""

    def __call__(self) -> CheckedTokenizer:
        from biphasic.data.building.mask_token import with_mask_token
        from biphasic.data.tokens.tokenizer import CheckedTokenizer, load_tokenizer

        loaded = load_tokenizer(self.tokenizer, revision=self.revision)
        masked, reason = with_mask_token(loaded)
        special = [
            (role, token, loaded.special_ids[role])
            for role, token in loaded.special_tokens.items()
            if role != "mask"
        ]
        mask = ("mask", masked.special_tokens["mask"], masked.mask_id)
        return CheckedTokenizer((*special, mask), reason, masked.vocab_size, loaded.warning)


def _is_made(out: Path, made_from: str) -> bool:
    """Return whether a tokenizer exists; raise if it was made from something else."""
    from biphasic.store import TOKENIZER

    if not out.exists():
        return False
    manifest = TOKENIZER.open(out).verify().manifest
    if manifest.get("made_from") != made_from:
        raise ConfigError(
            f"--out {out}: already exists, made from other sources or settings; "
            "choose another folder, or delete it"
        )
    return True


def _is_corpus_file(named: str) -> bool:
    return expanded(named).suffix in {".yaml", ".yml"}


def _takes_column(named: str) -> bool:
    from biphasic.data.text.source import is_one_document

    return not (_is_corpus_file(named) or is_one_document(Path(named)))


def _sources_of(
    named: str, settings: Mapping[str, str], copies: Path | None
) -> Iterator[tuple[TextSource, SourceContext]]:
    """Yield the sources of a corpus file, or the one that is named, and what they may use."""
    from biphasic.config import parse_config
    from biphasic.data.building.config import CorpusConfig
    from biphasic.data.text.source import SourceContext
    from biphasic.data.text.sources import SourceConfig
    from biphasic.plugins import is_plugin, load_with_plugins

    raw, context = {"source": named, **settings}, SourceContext(copies=copies)
    if _is_corpus_file(named):
        path = expanded(named)
        config = load_with_plugins(CorpusConfig, path).anchored(path.resolve().parent)
        if config.folder is not None:
            raise ConfigError(f"{path}: names a finished corpus, which has a tokenizer; give text")
        context = SourceContext(config.libraries, copies or config.copies)
        sources = config.sources
    elif is_plugin("sources", named):
        sources = parse_config(CorpusConfig, {"sources": [raw]}, where="SOURCE").sources
    else:
        sources = (parse_config(SourceConfig, raw, where="SOURCE"),)
    yield from ((source, context) for source in sources)


train = Function(Train)
check = Function(Check)
