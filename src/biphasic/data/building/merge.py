"""Merges several corpora of one tokenizer into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from biphasic.data.building.build import RECORD, CorpusFolders, building, read_record
from biphasic.data.building.gather import unique_names
from biphasic.data.building.verify import verify_tokenizer
from biphasic.data.corpus import Corpus, assemble_corpus
from biphasic.data.tokens.shards import ShardContent
from biphasic.data.tokens.tokenizer import TextTokenizer, write_tokenizer
from biphasic.errors import ConfigError, DataError
from biphasic.files import write_json
from biphasic.locks import sole_writer
from biphasic.store import is_complete


def merge_builds(
    sources: Sequence[Path], folder: Path, *, say: Callable[[str], None]
) -> CorpusFolders:
    """Merge built corpora, or resume it; training and held-out stay separate."""
    records = [read_record(source) for source in sources]
    parts = [CorpusFolders.below(source) for source in sources]
    folders = CorpusFolders.below(folder)
    merged = _merged_record(records)
    # Check everything before writing.
    train = _open_matching([part.train for part in parts])
    heldout = _open_matching([part.heldout for part in parts])
    for corpus in (train[0], heldout[0]):
        verify_tokenizer(parts[0].tokenizer, corpus)
    fractions = {f"{each:g}" for record in records for each in _heldout_fractions(record["origin"])}
    with building(folder, merged["origin"], say=say) as work:
        if work:
            if len(fractions) > 1:
                say(
                    "warning: the corpora have different fractions of held-out documents "
                    f"({', '.join(sorted(fractions))}), so a text of two of them may be in train "
                    "and in heldout; build them with the same --heldout-fraction"
                )
            if not is_complete(folders.tokenizer):
                write_tokenizer(TextTokenizer.load(parts[0].tokenizer), folders.tokenizer)
            _write(train, folders.train)
            _write(heldout, folders.heldout)
            write_json(folder / RECORD, merged)
    return folders


def merge_corpora(sources: Sequence[Path], folder: Path) -> None:
    """Concatenate corpora; shards are linked, or copied to another file system."""
    corpora = _open_matching(sources)
    origin = [_origin(corpus) for corpus in corpora]
    if is_complete(folder) and Corpus(folder).details.provenance == {"merged": origin}:
        return
    if folder.exists():
        raise ConfigError(f"{folder}: already exists; choose another folder, or delete it")
    with sole_writer(folder):
        _write(corpora, folder)


def _open_matching(sources: Sequence[Path]) -> list[Corpus]:
    corpora = [Corpus(source) for source in sources]
    first = corpora[0]
    seen: dict[str, Path] = {}
    for corpus in corpora:
        for key, what in (("tokenizer_sha256", "tokenizers"), ("dtype", "number types")):
            own, others = getattr(first.details, key), getattr(corpus.details, key)
            if own != others:
                raise DataError(
                    f"{first.folder} and {corpus.folder}: made with different {what} "
                    f"({own[:12]} and {others[:12]}); build them with "
                    "the same --tokenizer"
                )
        if other := seen.get(corpus.content_hash):
            raise DataError(f"{other} and {corpus.folder}: the same documents; give only one")
        seen[corpus.content_hash] = corpus.folder
    return corpora


def _write(corpora: Sequence[Corpus], folder: Path) -> None:
    first = corpora[0].details
    assemble_corpus(
        folder,
        _shards(corpora),
        tokenizer_sha256=first.tokenizer_sha256,
        dtype=first.dtype,
        vocab_size=first.vocab_size,
        provenance={"merged": [_origin(corpus) for corpus in corpora]},
    )


def _shards(corpora: Sequence[Corpus]) -> Iterator[ShardContent]:
    for corpus in corpora:
        names = corpus.names()
        for file, _, lengths in corpus.shards():
            yield file, lengths, names


def _merged_record(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    parts = [item for record in records for item in record["sources"].items()]
    names = unique_names([name for name, _ in parts])
    special = Counter[str]()
    for record in records:
        special.update(record.get("special_in_text", {}))
    return {
        "origin": {"merged": [record["origin"] for record in records]},
        "sources": {name: counts for name, (_, counts) in zip(names, parts, strict=True)},
        **({"special_in_text": dict(special)} if special else {}),
    }


def _heldout_fractions(origin: dict[str, Any]) -> Iterator[float]:
    """Yield the fractions that a build, or each part of a merged one, holds out."""
    for part in origin.get("merged", ()):
        yield from _heldout_fractions(part)
    if "settings" in origin:
        yield origin["settings"]["heldout_fraction"]


def _origin(corpus: Corpus) -> dict[str, object]:
    kept = {"content_hash", "num_documents", "num_tokens", "provenance"}
    return {"name": corpus.folder.resolve().name, **corpus.details.model_dump(include=kept)}
