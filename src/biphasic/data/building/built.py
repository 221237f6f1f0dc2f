"""Finished corpora: their statistics, their verification, and several merged into one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from shutil import copytree
from tempfile import gettempdir
from typing import Any

import numpy as np
from numpy.typing import NDArray

from biphasic.amounts import percent
from biphasic.data.building.build import (
    RECORD,
    CorpusFolders,
    building,
    heldout_fractions,
    read_record,
)
from biphasic.data.building.gather import unique_names
from biphasic.data.building.mask_token import count_special_tokens, find_token
from biphasic.data.building.selection import SeenDigests, digest_of
from biphasic.data.corpus import (
    DETAILS,
    REMEDY,
    Corpus,
    assemble_corpus,
    content_hash_of,
    sources_of,
    token_blocks,
)
from biphasic.data.rows import NUM_SPECIAL, BatchShape, RowPlan
from biphasic.data.tokens.shards import ShardContent
from biphasic.data.tokens.tokenizer import TextTokenizer, write_tokenizer
from biphasic.errors import CheckpointError, ConfigError, DataError, naming
from biphasic.files import write_json
from biphasic.locks import sole_writer
from biphasic.shown import Shown
from biphasic.store import PLUGIN, TOKENIZER, is_complete, sealed_in

_MOST_ROWS = 4096  # maximum rows for measuring the fill rate
_SAMPLE_TOKENS = 64


@dataclass(frozen=True)
class LengthBin:
    """Documents of `first` to `last` tokens."""

    first: int
    last: int
    documents: int
    tokens: int


@dataclass(frozen=True)
class Sample:
    """The beginning of a document, decoded."""

    document: int
    id: str
    tokens: int
    text: str


@dataclass(frozen=True)
class CorpusSummary:
    """Result of `inspect_corpus`."""

    documents: int
    tokens: int
    shards: int
    dtype: str
    content_hash: str
    lengths: tuple[LengthBin, ...]
    # Tokens of a document at 5, 50, 95, 100 per cent of the documents.
    percentiles: Mapping[int, int]
    fill_rate: float  # tokens in rows, including special tokens, divided by capacity
    fill_rows: int  # rows that the fill rate was measured on
    duplicates: int  # documents whose exact tokens occurred before
    # Names of sources, and their counts as the build recorded them.
    sources: tuple[tuple[str, Mapping[str, Any]], ...]
    # Empty without the corpus's tokenizer, like the following fields.
    samples: tuple[Sample, ...]
    # Index of the first document that contains the mask token; there should be none.
    mask_document: int | None
    # Counts of other special tokens in documents.
    special_in_text: Mapping[str, int]
    is_other_tokenizer: bool  # the given tokenizer is not the corpus's


def inspect_corpus(
    folder: Path, *, tokenizer: TextTokenizer | None, max_seqlen: int, num_samples: int
) -> CorpusSummary:
    """Read a corpus and describe it; a tokenizer other than its own is ignored."""
    corpus = Corpus(folder)
    is_other = bool(tokenizer) and tokenizer.sha256 != corpus.details.tokenizer_sha256
    tokenizer = None if is_other else tokenizer
    has_mask = tokenizer is not None and "mask" in tokenizer.special_ids
    marks = (5, 50, 95, 100)
    values = np.percentile(corpus.lengths, marks, method="nearest").tolist()
    rate, num_rows = fill_rate(corpus.lengths, max_seqlen=max_seqlen)
    return CorpusSummary(
        documents=len(corpus),
        tokens=corpus.num_tokens,
        shards=len(corpus.details.shard_documents),
        dtype=corpus.details.dtype,
        content_hash=corpus.content_hash,
        lengths=length_bins(corpus.lengths),
        percentiles=dict(zip(marks, values, strict=True)),
        fill_rate=rate,
        fill_rows=num_rows,
        duplicates=count_duplicates(corpus),
        sources=tuple(sources_of(corpus.details.provenance)),
        samples=tuple(_samples(corpus, tokenizer, num_samples)) if tokenizer else (),
        mask_document=find_token(tokenizer.mask_id, corpus) if tokenizer and has_mask else None,
        special_in_text=count_special_tokens(corpus, tokenizer) if tokenizer else {},
        is_other_tokenizer=is_other,
    )


def length_bins(lengths: NDArray[np.int64]) -> tuple[LengthBin, ...]:
    """Count documents by length: 1, 2 to 3, 4 to 7, ... tokens, from the first to the last bin."""
    # Bins by powers of two, as lengths of documents spread over several orders of size.
    exponents = np.frexp(lengths)[1] - 1  # exact, unlike a logarithm
    documents = np.bincount(exponents)
    tokens = np.bincount(exponents, weights=lengths)
    return tuple(
        LengthBin(1 << power, (2 << power) - 1, int(documents[power]), int(tokens[power]))
        for power in range(int(exponents.min()), len(documents))
    )


def fill_rate(lengths: NDArray[np.int64], *, max_seqlen: int) -> tuple[float, int]:
    """Return how full the first rows of an epoch are, and the number of rows measured."""
    room = max(max_seqlen - NUM_SPECIAL, 1)
    num_pieces = int(np.sum(-(-lengths // room)))
    num_rows = -(-(int(lengths.sum()) + NUM_SPECIAL * num_pieces) // max_seqlen)
    num_rows = min(num_rows, _MOST_ROWS)
    plan = RowPlan(lengths, [BatchShape(max_seqlen, num_rows, 1)], data_seed=0)
    rows = plan.rows(0)
    num_tokens = sum(piece.end - piece.start + NUM_SPECIAL for row in rows for piece in row)
    return num_tokens / (len(rows) * max_seqlen), len(rows)


def count_duplicates(corpus: Corpus) -> int:
    """Count documents whose exact tokens occurred before, with bounded memory."""
    num_duplicates = 0
    with naming(gettempdir()), closing(SeenDigests()) as seen:
        for _, tokens, lengths in corpus.shards():
            end = 0
            for length in lengths.tolist():
                start, end = end, end + length
                num_duplicates += not seen.add(digest_of(tokens[start:end].data))
    return num_duplicates


def _samples(corpus: Corpus, tokenizer: TextTokenizer, count: int) -> Iterator[Sample]:
    count = min(count, len(corpus))
    documents = sorted({place * len(corpus) // count for place in range(count)})
    names = corpus.names()
    last = -1
    for document in documents:
        name = json.loads(next(islice(names, document - last - 1, None)))
        last = document
        length = int(corpus.lengths[document])
        ids = corpus.tokens(document, 0, min(length, _SAMPLE_TOKENS)).tolist()
        yield Sample(document, name, length, tokenizer.decode(ids))


_BAR_WIDTH = 40
_MOST_SOURCES = 12


@dataclass(frozen=True, repr=False)
class InspectedCorpus(Shown):
    """The result of `corpus.inspect`.

    Attributes:
        summaries: Counts, lengths, samples and sources of each split.
        notes: Warnings, and what the build left out.
    """

    summaries: Mapping[str, CorpusSummary]
    max_seqlen: int
    notes: tuple[str, ...]

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each split and range of lengths."""
        return [
            {
                "split": name,
                "first": part.first,
                "last": part.last,
                "documents": part.documents,
                "tokens": part.tokens,
            }
            for name, summary in self.summaries.items()
            for part in summary.lengths
        ]

    def lines(self) -> Iterator[str]:
        """Return the description of each split."""
        for name, summary in self.summaries.items():
            yield from _describe(name, summary, self.max_seqlen)


def _describe(name: str, summary: CorpusSummary, max_seqlen: int) -> Iterator[str]:
    mean = summary.tokens / summary.documents
    percentiles = ", ".join(f"{at} %: {value:,}" for at, value in summary.percentiles.items())
    yield f"{name}: {summary.documents:,} documents, {summary.tokens:,} tokens"
    yield f"  {summary.shards} shards of {summary.dtype}, content {summary.content_hash[:16]}"
    yield f"  tokens per document: mean {mean:,.0f}; {percentiles}"
    most = max(part.documents for part in summary.lengths)
    for part in summary.lengths:
        bar = "#" * -(-part.documents * _BAR_WIDTH // most)
        yield f"  {part.first:>9,} - {part.last:<9,} {part.documents:>11,} {bar}"
    yield (
        f"  rows of {max_seqlen}: {percent(round(summary.fill_rate, 3))} full "
        f"(over {summary.fill_rows:,} rows)"
    )
    yield f"  exact duplicates: {summary.duplicates:,}"
    for source, counts in summary.sources[:_MOST_SOURCES]:
        documents, tokens = counts["documents"], counts["tokens"]
        share = 100 * tokens / summary.tokens
        yield f"  source {source}: {documents:,} documents, {tokens:,} tokens ({share:.1f} %)"
        for license_name, documents in counts["licenses"].items():
            yield f"    {license_name}: {documents:,} documents"
    if len(summary.sources) > _MOST_SOURCES:
        yield f"  and {len(summary.sources) - _MOST_SOURCES} more sources"
    if summary.is_other_tokenizer:
        yield "  WARNING: built with another tokenizer than the one next to it; cannot show text"
    if summary.mask_document is not None:
        yield f"  WARNING: document {summary.mask_document} contains the mask token"
    for token, count in summary.special_in_text.items():
        yield f"  special token {token} in the text: {count:,} times"
    for sample in summary.samples:
        text = " ".join(sample.text.split())
        yield f"  document {sample.document} ({sample.id}, {sample.tokens:,} tokens): {text}"


def verify_corpus(folder: Path) -> Corpus:
    """Open a corpus and check all hashes, lengths against shards, ids against the vocabulary."""
    corpus = Corpus(folder)
    if contradiction := next(_contradictions(corpus), None):
        file, problem = contradiction
        raise CheckpointError(f"{file}: damaged: {problem}; {REMEDY}")
    return corpus


def _contradictions(corpus: Corpus) -> Iterator[tuple[Path, str]]:
    """Yield files whose contents contradict those of others, and how."""
    folder, details = corpus.folder, corpus.details
    if not sum(details.shard_documents) == len(corpus) == details.num_documents:
        yield folder / "lengths.npy", "its number of documents differs from corpus.json"
    if (corpus.lengths <= 0).any() or corpus.num_tokens != details.num_tokens:
        yield folder / "lengths.npy", "its lengths do not add up to the tokens in corpus.json"
    num_names = sum(1 for _ in corpus.names())
    if num_names != len(corpus):
        yield folder / "documents.jsonl", f"has {num_names} ids for {len(corpus)} documents"
    for file, tokens, lengths in corpus.shards():
        num_tokens = int(lengths.sum())
        if len(tokens) != num_tokens:
            yield file, f"has {len(tokens)} tokens, but its documents {num_tokens}"
        largest = max((int(block.max()) for _, block in token_blocks(tokens)), default=-1)
        if largest >= details.vocab_size:
            yield file, f"has the token {largest}, beyond the vocabulary"
    # The manifest has hashes of files only. Identities of states contain this hash, so it is
    # computed again.
    if content_hash_of(corpus) != corpus.content_hash:
        yield folder / DETAILS, "its content hash does not match the tokens"


def verify_build(folder: Path) -> tuple[Corpus, Corpus]:
    """Verify the training and the held-out corpus of a build, and that they match the tokenizer."""
    read_record(folder)
    folders = CorpusFolders.below(folder)
    corpora = verify_corpus(folders.train), verify_corpus(folders.heldout)
    for corpus in corpora:
        verify_tokenizer(folders.tokenizer, corpus)
    return corpora


def verify_tokenizer(folder: Path, corpus: Corpus) -> TextTokenizer:
    """Read a corpus's tokenizer, and verify its files and that the corpus was made with it."""
    tokenizer = read_tokenizer(folder)
    if tokenizer.sha256 != corpus.details.tokenizer_sha256:
        raise DataError(f"{folder}: not the tokenizer that {corpus.folder} was made with; {REMEDY}")
    return tokenizer


def read_tokenizer(folder: Path) -> TextTokenizer:
    """Read a corpus's tokenizer, and verify its hashes."""
    TOKENIZER.open(folder, remedy=REMEDY).verify()
    return TextTokenizer.load(folder)


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
    # The first of each: `_open_matching` has compared the others with them.
    for corpus in (train[0], heldout[0]):
        verify_tokenizer(parts[0].tokenizer, corpus)
    fractions = {
        f"{fraction:g}" for record in records for fraction in heldout_fractions(record["origin"])
    }
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
            for code in (path for source in sources for path in sealed_in(source / PLUGIN.place)):
                copytree(code, folder / PLUGIN.place / code.name, dirs_exist_ok=True)
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
    special, plugins = Counter[str](), dict[str, list[str]]()
    for record in records:
        special.update(record.get("special_in_text", {}))
        for kind, used in record.get("plugins", {}).items():
            plugins[kind] = sorted({*plugins.get(kind, ()), *used})
    return {
        "origin": {"merged": [record["origin"] for record in records]},
        "sources": {name: counts for name, (_, counts) in zip(names, parts, strict=True)},
        **({"special_in_text": dict(special)} if special else {}),
        **({"plugins": plugins} if plugins else {}),
    }


def _origin(corpus: Corpus) -> dict[str, object]:
    names = {"content_hash", "num_documents", "num_tokens", "provenance"}
    return {"name": corpus.folder.resolve().name, **corpus.details.model_dump(include=names)}
