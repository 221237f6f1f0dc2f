"""Which documents stay, and on which side of the held-out split."""

import hashlib
import sqlite3
import tracemalloc
from contextlib import closing

import pytest

from biphasic.data.building.config import CorpusConfig
from biphasic.data.building.selection import SeenDigests, Selection, digest_of, split_of
from biphasic.data.text.source import SourceDocument


def documents(*texts: str, split=None) -> list[SourceDocument]:
    return [SourceDocument(str(number), text, split) for number, text in enumerate(texts)]


def selected(texts, **options) -> tuple[list[str], dict[str, int]]:
    with Selection(CorpusConfig(**options)) as selection:
        kept = [document.text for document, _ in selection.select(documents(*texts))]
        return kept, dict(selection.left_out)


def test_lengths_are_inclusive_and_in_characters():
    texts = ["ab", "abc", "日本語", "abcde", "abcdef"]
    kept, left_out = selected(texts, min_characters=3, max_characters=5)
    assert kept == ["abc", "日本語", "abcde"]
    assert left_out == {"too_short": 1, "too_long": 1}


@pytest.mark.parametrize(
    "other", ["cafe\u0301 straße", "CAFÉ STRASSE", "ca\u00adfé\n\xa0straße ", "ｃａｆé straße"]
)
def test_duplicates_in_another_unicode_form_case_or_layout(other):
    assert selected(["café straße", other], deduplicate=True) == (
        ["café straße"],
        {"duplicate": 1},
    )


def test_the_split_depends_on_the_text_alone():
    texts = [f"text {number}" for number in range(300)]
    with Selection(CorpusConfig(heldout_fraction=0.2)) as selection:
        forwards = {doc.text: split for doc, split in selection.select(documents(*texts))}
    with Selection(CorpusConfig(heldout_fraction=0.2)) as selection:
        backwards = {doc.text: split for doc, split in selection.select(documents(*texts[::-1]))}
    assert forwards == backwards
    assert set(forwards.values()) == {"train", "heldout"}


def test_the_held_out_side_has_the_asked_size_and_grows_within_itself():
    digests = [digest_of(str(number)) for number in range(20_000)]
    sides = {
        fraction: {d for d in digests if split_of(d, fraction) == "heldout"}
        for fraction in (0.01, 0.02, 0.5)
    }
    for fraction, side in sides.items():
        # Four standard deviations of a binomial count.
        expected, spread = 20_000 * fraction, (20_000 * fraction * (1 - fraction)) ** 0.5
        assert abs(len(side) - expected) < 4 * spread
    assert sides[0.01] < sides[0.02] < sides[0.5]


def test_digests_match_their_definition():
    text = "naïve 日本語"
    assert digest_of(text) == hashlib.blake2b(text.encode(), digest_size=16).digest()
    # The first 8 bytes as a fraction of 2^64: 0x80 00... is one half, 0x7f 00... just below.
    assert split_of(bytes([0x80]) + bytes(15), 0.5) == "train"
    assert split_of(bytes([0x7F]) + bytes(15), 0.5) == "heldout"


def test_the_index_is_in_the_given_folder_and_is_deleted(tmp_path):
    with Selection(CorpusConfig(heldout_fraction=0.1, deduplicate=True), tmp_path) as selection:
        list(selection.select(documents("a", "b")))
        (left,) = tmp_path.iterdir()
        assert left.name.startswith(".partial-")  # so that `remove_partials` clears it
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(sqlite3.ProgrammingError), selection:
        list(selection.select(documents("c")))


def test_an_index_larger_than_its_cache_still_knows_all(tmp_path, monkeypatch):
    monkeypatch.setattr("biphasic.data.building.selection._CACHE_KIB", 64)
    digests = [digest_of(str(number)) for number in range(20_000)]
    tracemalloc.start()
    with closing(SeenDigests(tmp_path)) as seen:
        tracemalloc.reset_peak()
        assert all(map(seen.add, digests))
        assert not any(map(seen.add, digests))
        assert len(seen) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 100_000 + 20_000 * 60  # the digests themselves
    tracemalloc.stop()
