"""Tokenizers from Python: `tokenizer.train` and `check`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from biphasic.amounts import size
from biphasic.api.arguments import check_arguments
from biphasic.data.building import DEFAULT_VOCAB_SIZE
from biphasic.errors import ConfigError, DataError

if TYPE_CHECKING:
    from biphasic.api.results.data import CheckedTokenizer, TrainedTokenizer
    from biphasic.data.text.source import SourceContext, TextSource


@check_arguments(vocab_size=(300, 1 << 17))  # 256 bytes, 4 special tokens, and some merges
def train(
    sources: Sequence[str],
    out: Path | str,
    *,
    vocab_size: int = DEFAULT_VOCAB_SIZE,
    column: str | None = None,
    copies: Path | str | None = None,
) -> TrainedTokenizer:
    """Train a byte-level BPE tokenizer on all text of the sources.

    Args:
        sources: Files, folders, builtin:pydocs, hf:OWNER/NAME?name=CONFIG&split=SPLIT, or plugins,
            as ./mine.py:Mine; or corpus files (YAML), whose sources are read whole.
        out: Output folder.
        vocab_size: Vocabulary size.
        column: Column or JSON key of the text; corpus files have their own.
        copies: Folder with local copies of hub datasets, as OWNER/NAME. Default: the corpus file's.

    Raises:
        ConfigError: `out` holds something else, or a corpus file names a finished corpus.
        DataError: A source is missing, or has no text.

    Example:
        >>> from biphasic import tokenizer
        >>> tokenizer.train(["texts.jsonl"], "words", vocab_size=300).vocab_size
        300
    """
    from biphasic.api.results.data import TrainedTokenizer
    from biphasic.data.text.sources import (
        asked_once,
        files_skipped,
        pinned,
        read_documents,
        source_origin,
    )
    from biphasic.data.tokens.tokenizer import TextTokenizer, train_tokenizer, write_tokenizer
    from biphasic.files import digest, expanded
    from biphasic.locks import sole_writer
    from biphasic.store import is_complete

    folder = expanded(out)
    if folder.exists() and not is_complete(folder):
        raise ConfigError(f"--out {folder}: already exists; choose another folder, or delete it")
    if column is not None and not any(map(_takes_column, sources)):
        raise ConfigError(
            "--column: give the sources it applies to; corpus files have their own, .txt and .md "
            "files none"
        )
    shared = {} if column is None else {"column": column}
    own_copies = None if copies is None else expanded(copies)
    resolve, found = asked_once(), (_sources_of(named, shared, own_copies) for named in sources)
    parsed = [
        (pinned(source, context.copies, resolve), context)
        for source, context in chain.from_iterable(found)
    ]
    origins = [source_origin(source, context) for source, context in parsed]
    made_from = digest({"sources": origins, "vocab_size": vocab_size})
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
        trained = train_tokenizer(texts(), vocab_size=vocab_size)
        if not sum(sizes):
            raise DataError(f"{', '.join(sources)}: no text to train on")
        write_tokenizer(trained, folder, made_from=made_from)
    is_full = trained.vocab_size == vocab_size
    fewer = "" if is_full else f", not {vocab_size:,}: the text has no more pairs to merge"
    notes = (
        f"read {len(sizes):,} documents, {size(sum(sizes))} of text",
        *files_skipped(origins),
        f"vocabulary: {trained.vocab_size:,} entries{fewer}",
        f"tokenizer: {folder}",
    )
    return TrainedTokenizer(folder, trained.vocab_size, notes)


@check_arguments()
def check(tokenizer: str, *, revision: str | None = None) -> CheckedTokenizer:
    """Show a tokenizer's special tokens and vocabulary size.

    Includes the mask token that a corpus would use, and why.

    Args:
        tokenizer: Folder, or hub id of a model.
        revision: Branch, tag or commit on the hub. Default: the newest.

    Raises:
        DataError: There is no tokenizer.

    Example:
        >>> from biphasic import tokenizer
        >>> tokenizer.check("words").special[-1]
        ('mask', '<|mask|>', 3)
    """
    from biphasic.api.results.data import CheckedTokenizer
    from biphasic.data.building.mask_token import with_mask_token
    from biphasic.data.tokens.tokenizer import load_tokenizer

    loaded = load_tokenizer(tokenizer, revision=revision)
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
    from biphasic.files import expanded

    return expanded(named).suffix in {".yaml", ".yml"}


def _takes_column(named: str) -> bool:
    from biphasic.data.text.files import is_one_document

    return not (_is_corpus_file(named) or is_one_document(Path(named)))


def _sources_of(
    named: str, settings: Mapping[str, str], copies: Path | None
) -> Iterator[tuple[TextSource, SourceContext]]:
    """Yield the sources of a corpus file, or the one that is named, and what they may use."""
    from biphasic.config import parse_config
    from biphasic.data.building.config import CorpusConfig
    from biphasic.data.text.source import SourceContext
    from biphasic.data.text.sources import SourceConfig
    from biphasic.files import expanded
    from biphasic.plugins import is_plugin, load_pinned

    raw, context = {"source": named, **settings}, SourceContext(copies=copies)
    if _is_corpus_file(named):
        path = expanded(named)
        config = load_pinned(CorpusConfig, path).anchored(path.resolve().parent)
        if config.folder is not None:
            raise ConfigError(f"{path}: names a finished corpus, which has a tokenizer; give text")
        context = SourceContext(config.libraries, copies or config.copies)
        found = config.sources
    elif is_plugin("sources", named):
        found = parse_config(CorpusConfig, {"sources": [raw]}, where="SOURCE").sources
    else:
        found = (parse_config(SourceConfig, raw, where="SOURCE"),)
    yield from ((source, context) for source in found)
