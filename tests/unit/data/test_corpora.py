"""Corpora on disk: written, inspected, verified and merged."""

import json
import os
import shutil
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import biphasic
from biphasic.data.building.build import build_corpus, is_built_from, read_record
from biphasic.data.building.built import (
    count_duplicates,
    fill_rate,
    inspect_corpus,
    length_bins,
    merge_builds,
    merge_corpora,
    verify_build,
    verify_corpus,
    verify_tokenizer,
)
from biphasic.data.building.config import CorpusConfig
from biphasic.data.corpus import Corpus, content_hash_of
from biphasic.data.tokens.tokenizer import TextTokenizer, train_tokenizer, write_tokenizer
from biphasic.errors import CheckpointError, ConfigError, DataError
from biphasic.store import seal_folder
from mini_study import edit_json
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


inspected = partial(inspect_corpus, tokenizer=None, max_seqlen=64, num_samples=3)


def test_lengths_are_counted_by_powers_of_two():
    bins = length_bins(np.array([2, 3, 4, 7, 8, 15, 16, 5]))
    assert [(part.first, part.last, part.documents, part.tokens) for part in bins] == [
        (2, 3, 2, 5),
        (4, 7, 3, 16),
        (8, 15, 2, 23),
        (16, 31, 1, 16),
    ]
    with_gap = length_bins(np.array([1, 4, 2**40]))
    assert [part.documents for part in with_gap[:4]] == [1, 0, 1, 0]
    assert with_gap[-1].first == 2**40


def test_fill_is_that_of_the_rows_that_training_reads():
    # Each row of 10 takes two documents of 3 + BOS + EOS: full.
    assert fill_rate(np.full(8, 3), max_seqlen=10)[0] == 1.0
    # Rows of 9 take one each: 5 of 9.
    assert fill_rate(np.full(8, 3), max_seqlen=9)[0] == pytest.approx(5 / 9)
    # Longer documents are cut: 16 tokens are two pieces of 8 + 2.
    assert fill_rate(np.full(8, 16), max_seqlen=10)[0] == 1.0
    assert fill_rate(np.full(200_000, 16), max_seqlen=10)[1] == 4096
    with pytest.raises(ConfigError, match="max_seqlen 2 has no room"):
        fill_rate(np.full(8, 3), max_seqlen=2)


def test_duplicates_are_of_content_within_borders(tmp_path, tokenizer):
    texts = ["rows of", "rows", "of", "rows of", "rows of", "of rows", "of"]
    pairs = [(str(number), text) for number, text in enumerate(texts)]
    corpus = write_corpus(tmp_path / "c", pairs, tokenizer, provenance={}, block_bytes=10)
    assert count_duplicates(corpus) == 3


def test_a_mask_token_in_the_text_is_reported(tmp_path, documents, tokenizer):
    pairs = [*documents, ("mask", "rows Z"), ("again", "Z")]
    write_corpus(tmp_path / "c", pairs, tokenizer, provenance={}, block_bytes=2000)
    assert inspected(tmp_path / "c", tokenizer=tokenizer).mask_document is None

    class Spoilt:
        sha256 = tokenizer.sha256
        special_tokens = {"mask": "M", "eos": "Z", "pad": "P"}  # noqa: RUF012
        mask_id = tokenizer.encode("Z")[0]
        special_ids = {"mask": mask_id, "eos": mask_id, "pad": 0}  # noqa: RUF012
        decode = tokenizer.decode
        unknown_token = None

    summary = inspected(tmp_path / "c", tokenizer=Spoilt())
    assert summary.mask_document == len(documents)
    assert summary.special_in_text == {"Z": 2}


def harmed(corpus, folder, harm):
    """Copy a corpus, change it, and seal it again: hashes fit, contents do not."""
    shutil.copytree(corpus.folder, folder)
    harm(folder)
    (folder / "manifest.json").unlink()
    seal_folder(folder)
    return folder


def change_details(**changes):
    def harm(folder):
        edit_json(folder / "corpus.json", **changes)

    return harm


def change_lengths(change):
    def harm(folder):
        np.save(folder / "lengths.npy", change(np.load(folder / "lengths.npy")))

    return harm


def drop_tokens(folder):
    path = folder / "tokens-00000.bin"
    path.write_bytes(path.read_bytes()[:-4])


def swap_tokens(folder):
    path = folder / "tokens-00000.bin"
    tokens = np.fromfile(path, dtype="<u2")
    tokens[::-1].tofile(path)


def drop_name(folder):
    path = folder / "documents.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


def shift(lengths):
    lengths[0] += 1
    lengths[1] -= 1
    return lengths


@pytest.mark.parametrize(
    ("harm", "file", "problem"),
    [
        (change_details(num_documents=61), "lengths.npy", "number of documents"),
        (change_details(num_tokens=3), "lengths.npy", "do not add up"),
        (change_details(vocab_size=10), "tokens-00000.bin", "beyond the vocabulary"),
        (change_details(content_hash="0"), "corpus.json", "content hash"),
        (change_lengths(lambda lengths: lengths[:-1]), "lengths.npy", "number of documents"),
        (change_lengths(lambda lengths: lengths * 0), "lengths.npy", "do not add up"),
        (change_lengths(shift), "corpus.json", "content hash"),
        (drop_tokens, "tokens-00000.bin", "but its documents"),
        (swap_tokens, "corpus.json", "content hash"),
        (drop_name, "documents.jsonl", "59 ids for 60 documents"),
    ],
)
def test_contradictions_between_files_are_named(tmp_path, corpus, harm, file, problem):
    folder = harmed(corpus, tmp_path / "c", harm)
    with pytest.raises(CheckpointError) as caught:
        verify_corpus(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder / file}: damaged: ")
    assert problem in message
    assert message.endswith("; delete the folder and build the corpus again")


def test_a_folder_that_is_no_corpus(tmp_path, corpus):
    folder = harmed(corpus, tmp_path / "c", lambda c: (c / "corpus.json").write_text("{}"))
    with pytest.raises(DataError, match=r"corpus\.json: .*content_hash"):
        verify_corpus(folder)
    with pytest.raises(CheckpointError, match="incomplete"):
        verify_corpus(tmp_path)


def test_a_whole_corpus_is_whole_and_of_its_tokenizer(tmp_path, corpus, tokenizer):
    assert verify_corpus(corpus.folder).content_hash == corpus.content_hash
    write_tokenizer(tokenizer, tmp_path / "tokenizer")
    verify_tokenizer(tmp_path / "tokenizer", corpus)
    other = Corpus(corpus.folder)
    other.details = other.details.model_copy(update={"tokenizer_sha256": "0" * 64})
    with pytest.raises(DataError, match=r"not the tokenizer that .* was made with"):
        verify_tokenizer(tmp_path / "tokenizer", other)


@pytest.fixture
def parts(tmp_path, documents, tokenizer):
    """The documents in two corpora of several shards."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder, pairs in zip(folders, (documents[:35], documents[35:]), strict=True):
        write_corpus(folder, pairs, tokenizer, provenance={"from": folder.name}, block_bytes=2000)
    return folders


def test_a_merged_corpus_is_that_of_all_documents(tmp_path, parts, documents, corpus):
    merge_corpora(parts, tmp_path / "merged")
    merged = verify_corpus(tmp_path / "merged")
    assert merged.content_hash == corpus.content_hash
    assert [json.loads(name) for name in merged.names()] == [name for name, _ in documents]
    assert merged.details.vocab_size == 320
    noted = merged.details.provenance["merged"]
    assert [part["name"] for part in noted] == ["first", "second"]
    assert [part["provenance"] for part in noted] == [{"from": "first"}, {"from": "second"}]
    assert [part["content_hash"] for part in noted] == [Corpus(p).content_hash for p in parts]


def test_shards_are_linked_or_copied(tmp_path, monkeypatch, parts):
    merge_corpora(parts, tmp_path / "linked")
    assert (tmp_path / "linked/tokens-00000.bin").samefile(parts[0] / "tokens-00000.bin")

    def refuse(*_):
        raise OSError("another file system")

    monkeypatch.setattr(os, "link", refuse)
    merge_corpora(parts, tmp_path / "copied")
    assert not (tmp_path / "copied/tokens-00000.bin").samefile(parts[0] / "tokens-00000.bin")
    for name in ("corpus.json", "manifest.json", "tokens-00000.bin"):
        expected = (tmp_path / "linked" / name).read_bytes()
        assert (tmp_path / "copied" / name).read_bytes() == expected


def test_different_tokenizers_are_refused_by_name(tmp_path, parts, documents):
    other = train_tokenizer([text for _, text in documents], vocab_size=300)
    write_corpus(tmp_path / "other", documents, other, provenance={})
    with pytest.raises(DataError) as caught:
        merge_corpora([*parts, tmp_path / "other"], tmp_path / "merged")
    message = str(caught.value)
    assert message.startswith(
        f"{parts[0]} and {tmp_path / 'other'}: made with different tokenizers"
    )
    assert "same --tokenizer" in message
    assert not (tmp_path / "merged").exists()


def test_different_types_are_refused(tmp_path, parts, tokenizer):
    class Wide:
        sha256 = tokenizer.sha256
        vocab_size = 70_000
        rules, encode_many = tokenizer.rules, tokenizer.encode_many

    write_corpus(tmp_path / "wide", [("a", "rows")], Wide(), provenance={})
    with pytest.raises(DataError, match=r"different number types \(<u2 and <u4\)"):
        merge_corpora([parts[0], tmp_path / "wide"], tmp_path / "merged")


def test_the_same_again_is_done(tmp_path, parts):
    merge_corpora(parts, tmp_path / "merged")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "merged").iterdir()}
    merge_corpora(parts, tmp_path / "merged")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "merged").iterdir()} == before
    with pytest.raises(ConfigError, match="merged: already exists"):
        merge_corpora(parts[::-1], tmp_path / "merged")


def test_damage_is_not_merged(tmp_path, parts):
    path = parts[1] / "tokens-00001.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CheckpointError, match=r"tokens-00001\.bin: wrong size"):
        merge_corpora(parts, tmp_path / "merged")


@pytest.fixture
def builds(tmp_path, documents, tokenizer):
    """Two builds with one tokenizer."""
    write_tokenizer(tokenizer, tmp_path / "given")
    folders = []
    for name, pairs in (("one", documents[:30]), ("two", documents[30:])):
        lines = (json.dumps({"id": key, "text": text}) for key, text in pairs)
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
        config = CorpusConfig.model_validate(
            {
                "sources": [str(tmp_path / f"{name}.jsonl")],
                "tokenizer": str(tmp_path / "given"),
                "heldout_fraction": 0.2,
            }
        )
        folders.append(tmp_path / name)
        build_corpus(config, folders[-1], num_workers=1, say=lambda _: None)
    return folders


def test_built_corpora_are_merged_split_by_split(tmp_path, builds):
    folders = merge_builds(builds, tmp_path / "merged", say=print)
    for split, folder in (("train", folders.train), ("heldout", folders.heldout)):
        parts = [Corpus(build / split) for build in builds]
        merged = verify_corpus(folder)
        verify_tokenizer(folders.tokenizer, merged)
        assert list(merged.names()) == [name for part in parts for name in part.names()]
        sources = biphasic.corpus.inspect(folder).summaries[split].sources
        assert [(name, counts["documents"]) for name, counts in sources] == [
            ("one.jsonl", len(parts[0])),
            ("two.jsonl", len(parts[1])),
        ]
    same = TextTokenizer.load(builds[0] / "tokenizer").sha256
    assert TextTokenizer.load(folders.tokenizer).sha256 == same
    record = read_record(tmp_path / "merged")
    parts = [read_record(build) for build in builds]
    assert record["origin"] == {"merged": [part["origin"] for part in parts]}
    assert record["sources"] == parts[0]["sources"] | parts[1]["sources"]
    # A corpus of a description is another one.
    with pytest.raises(ConfigError, match="made from other sources"):
        is_built_from(tmp_path / "merged", parts[0]["origin"])


@pytest.mark.parametrize("fraction", [0.2, 0.5])
def test_held_out_text_that_another_part_may_train_on_is_reported(tmp_path, builds, fraction):
    settings = {"tokenizer": str(tmp_path / "given"), "heldout_fraction": fraction}
    again = [str(tmp_path / "one.jsonl"), str(tmp_path / "two.jsonl")]
    config = CorpusConfig.model_validate({"sources": again, **settings})
    build_corpus(config, tmp_path / "both", num_workers=1, say=lambda _: None)
    said = []
    merge_builds([*builds, tmp_path / "both"], tmp_path / "merged", say=said.append)
    train, heldout = (
        {json.loads(line).split(":")[-1] for line in Corpus(tmp_path / "merged" / split).names()}
        for split in ("train", "heldout")
    )
    is_leaked = bool(train & heldout)
    assert is_leaked == (fraction != 0.2)
    assert any("0.2, 0.5" in line for line in said) == is_leaked


def test_a_merge_that_is_refused_leaves_nothing(tmp_path, builds):
    shutil.rmtree(builds[1] / "heldout")
    shutil.copytree(builds[0] / "heldout", builds[1] / "heldout")
    with pytest.raises(DataError, match="the same documents"):
        merge_builds(builds, tmp_path / "merged", say=print)
    (builds[0] / "tokenizer/tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="tokenizer"):
        merge_builds(builds[:1], tmp_path / "merged", say=print)
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        ("[]", "no 'origin' and 'sources'"),
        ("{}", "no 'origin' and 'sources'"),
        ('{"origin": {}, "sources": []}', "no 'origin' and 'sources'"),
        ('{"origin": {}, "sources": {"one": {}}}', "left_out"),
        ('{"origin": {"settings": {}}, "sources": {}}', "heldout_fraction"),
    ],
)
def test_a_damaged_record_is_named(builds, damaged, reason):
    (builds[0] / "built.json").write_text(damaged)
    for read in (verify_build, lambda folder: merge_builds([folder], folder / "m", say=print)):
        with pytest.raises(DataError, match=rf"built\.json: .*{reason}.*; restore it"):
            read(builds[0])


def test_no_corpora_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="folders: is empty"):
        biphasic.corpus.merge([], tmp_path / "merged")
