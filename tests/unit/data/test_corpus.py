"""Tokenised documents on disk."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from biphasic.data.corpus import Corpus, content_hash_of
from biphasic.errors import CheckpointError, DataError
from text_corpus import write_corpus


def build(folder, documents, tokenizer, **options) -> Corpus:
    return write_corpus(folder, documents, tokenizer, provenance={"source": "test"}, **options)


class WideTokenizer:
    """Ids as given, out of a vocabulary that uint16 cannot hold."""

    sha256 = "0" * 64

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def rules(self):
        return {}

    def encode_many(self, texts):
        return [[int(word) for word in text.split()] for text in texts]


def test_round_trip(corpus, documents, tokenizer):
    assert len(corpus) == len(documents)
    for index, (_, text) in enumerate(documents):
        ids = tokenizer.encode(text)
        assert corpus.lengths[index] == len(ids)
        assert corpus.tokens(index, 0, len(ids)).tolist() == ids
        assert corpus.tokens(index, 1, 3).tolist() == ids[1:3]
    assert corpus.num_tokens == sum(len(tokenizer.encode(text)) for _, text in documents)
    assert corpus.details.num_documents == len(documents)
    assert corpus.details.num_tokens == corpus.num_tokens
    assert corpus.details.tokenizer_sha256 == tokenizer.sha256
    assert corpus.details.provenance == {"source": "synthetic"}


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1 << 16, "<u2"), ((1 << 16) + 1, "<u4")])
def test_the_narrowest_type_that_holds_the_vocabulary(tmp_path, vocab_size, dtype):
    largest = vocab_size - 1
    corpus = build(tmp_path / "c", [("a", f"0 {largest} 7")], WideTokenizer(vocab_size))
    assert corpus.details.dtype == dtype
    assert corpus.tokens(0, 0, 3).tolist() == [0, largest, 7]
    assert (tmp_path / "c" / "tokens-00000.bin").stat().st_size == 3 * int(dtype[-1])


@settings(max_examples=8)
@given(
    st.lists(st.lists(st.integers(0, 99), max_size=9), min_size=1, max_size=12),
    st.integers(1, 40),
)
def test_shards_change_neither_content_nor_hash(tmp_path_factory, rows, block_bytes):
    folder = tmp_path_factory.mktemp("shards")
    rows.append([1])
    documents = [(str(i), " ".join(map(str, row))) for i, row in enumerate(rows)]
    whole = build(folder / "whole", documents, WideTokenizer(100))
    parts = build(folder / "parts", documents, WideTokenizer(100), block_bytes=block_bytes)
    assert whole.content_hash == parts.content_hash == content_hash_of(parts)
    assert list(whole.names()) == list(parts.names())
    for index, row in enumerate(filter(None, rows)):
        assert parts.tokens(index, 0, len(row)).tolist() == row


def test_hash_is_of_ordered_content(tmp_path):
    def content_hash(*texts: str, name: str = "x", vocab_size: int = 100) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        documents = [(f"{name}{i}", text) for i, text in enumerate(texts)]
        return build(folder, documents, WideTokenizer(vocab_size)).content_hash

    base = content_hash("1 2", "3")
    assert base == content_hash("1 2", "3")
    assert base == content_hash("1 2", "3", name="y")  # names do not reach the model
    assert base == content_hash("1 2", "", "3")  # documents without a token are left out
    assert base != content_hash("3", "1 2")
    assert base != content_hash("1", "2 3")  # the same tokens, another border
    assert base != content_hash("1 2", "4")
    assert base != content_hash("1 2")
    # Golden: a change here orphans every state on people's disks.
    assert base == "841be3a8022f27a91d109f582014b80d26dbfa223317bd5ed0cdac53de30afef"


@pytest.mark.parametrize("documents", [[], [("a", "")]])
def test_empty_corpus_is_refused_and_leaves_nothing(tmp_path, documents):
    with pytest.raises(DataError, match="pages: the corpus is empty"):
        build(tmp_path / "pages", documents, WideTokenizer(100))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["tokens-00001.bin", "lengths.npy", "documents.jsonl", "corpus.json"]
)
@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda content: content[:-1], "wrong size"),
        (lambda content: bytes([content[0] ^ 1]) + content[1:], "damaged"),
        (None, "missing"),
    ],
)
def test_damage_is_named_with_its_remedy(tmp_path, name, harm, problem):
    documents = [("a", "1 2 3"), ("b", "4 5")]
    folder = tmp_path / "c"
    build(folder, documents, WideTokenizer(100), block_bytes=2)
    if harm is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(harm((folder / name).read_bytes()))
    with pytest.raises(CheckpointError) as caught:
        Corpus(folder)
    assert str(caught.value).startswith(f"{folder / name}: {problem}")
    assert str(caught.value).endswith("; delete the folder and build the corpus again")
