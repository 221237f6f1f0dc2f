"""What the inspection of a corpus shows, and the damage that it reports."""

import shutil
from functools import partial

import numpy as np
import pytest

from biphasic.data.building.built import (
    count_duplicates,
    fill_rate,
    inspect_corpus,
    length_bins,
    verify_corpus,
    verify_tokenizer,
)
from biphasic.data.corpus import Corpus
from biphasic.data.tokens.tokenizer import write_tokenizer
from biphasic.errors import CheckpointError, ConfigError, DataError
from biphasic.store import seal_folder
from mini_study import edit_json
from text_corpus import write_corpus

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
