"""Verifies that a corpus on disk is complete and consistent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from biphasic.data.building.build import CorpusFolders, read_record
from biphasic.data.corpus import DETAILS, REMEDY, Corpus, content_hash_of, token_blocks
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import CheckpointError, DataError
from biphasic.store import TOKENIZER


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
