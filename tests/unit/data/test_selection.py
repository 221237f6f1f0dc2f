"""Settings of a corpus: which documents stay, where limits cut, and how shares mix."""

import hashlib
import sqlite3
import tracemalloc
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from biphasic.config import load_config, parse_config
from biphasic.data.building.config import CorpusConfig
from biphasic.data.building.gather import Reach, fitting_quotas, largest_total, token_quotas
from biphasic.data.building.selection import SeenDigests, Selection, digest_of, split_of
from biphasic.data.text.source import SourceDocument
from biphasic.errors import ConfigError


def config(**raw) -> CorpusConfig:
    return parse_config(CorpusConfig, raw, where="file.yaml")


def test_the_default_is_the_built_in_documentation():
    assert config() == CorpusConfig()
    assert [source.source for source in config().sources] == ["builtin:pydocs"]


def test_two_columns_of_a_file_are_two_sources():
    columns = [{"source": "a.jsonl", "column": column} for column in ("question", "answer")]
    assert len(config(sources=columns).sources) == 2


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"sources": []}, "sources"),
        ({"source": "builtin:pydocs"}, "unknown key 'source' (did you mean 'sources'?)"),
        ({"sources": ["hf:a/b?nam=x"]}, "sources.0: 'hf:a/b?nam=x': unknown key 'nam'"),
        ({"sources": [{"source": "a", "shar": 1}]}, "unknown key 'sources.0.shar'"),
        (
            {"sources": [{"source": "a", "share": 1}, "b"]},
            "give all sources a share or none; 'b' has none",
        ),
        (
            {"sources": [{"source": "a", "share": 1}], "share": {"temperature": 0.5}},
            "share: sources have their own; remove one of both",
        ),
        (
            {"sources": [{"source": "a", "share": 1}, "b"], "share": {"temperature": 0.5}},
            "share: sources have their own; remove one of both",
        ),
        ({"sources": ["a"], "share": {"temperature": 0.5}}, "share: there is only one source"),
        (
            {"sources": [{"source": "a", "share": 1}], "max_documents": 5},
            "limit a mixture by max_tokens, not max_documents",
        ),
        (
            {"sources": ["a", "b"], "share": {"temperature": 1}, "max_documents": 5},
            "limit a mixture by max_tokens, not max_documents",
        ),
        ({"sources": ["a", "b"], "share": {"temperature": 1.5}}, "share.temperature: input should"),
        ({"sources": ["a", "b"], "share": {}}, "'share.temperature' is required"),
        ({"sources": ["a", "b"], "share": 0.5}, "share: expected a mapping of settings (got 0.5)"),
        (
            {"sources": [{"source": "builtin:pydocs", "only": {"language": "de"}}]},
            "'builtin:pydocs' has no columns; omit 'only'",
        ),
        ({"sources": ["b", "a", "b"]}, "sources: 'b' is the same text as 'b'; remove one"),
        ({"sources": ["b/c", "./b/d/../c/"]}, "sources: './b/d/../c/' is the same text as 'b/c'"),
        (
            {"sources": ["hf:a/b", "hf:a/b?split=train&column=text"]},
            "sources: 'hf:a/b?split=train&column=text' is the same text as 'hf:a/b'",
        ),
        ({"tokenizer": ""}, "tokenizer: string should have at least 1 character"),
        ({"tokenizer": "t", "vocab_size": 512}, "give a tokenizer, or the vocab_size of one"),
        ({"vocab_size": 299}, "vocab_size"),
        ({"vocab_size": 131_073}, "vocab_size"),
        ({"libraries": ["scipi"]}, "unknown library 'scipi' (did you mean 'scipy'?)"),
        ({"libraries": []}, "libraries"),
        (
            {"libraries": ["scipy"], "sources": ["a.txt"]},
            "'libraries' applies to builtin:pydocs, which is not a source here",
        ),
        (
            {"min_characters": 6, "max_characters": 5},
            "max_characters 5 is below min_characters 6",
        ),
        ({"min_characters": -1}, "min_characters"),
        ({"max_characters": 0}, "max_characters"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_documents": 0}, "max_documents"),
        ({"heldout_fraction": 0}, "heldout_fraction"),
        ({"heldout_fraction": 0.51}, "heldout_fraction"),
        (
            {"folder": "f", "max_tokens": 5},
            "'folder' is a finished corpus; 'max_tokens' cannot change it",
        ),
        ({"folder": "f", "sources": ["a"]}, "'folder' is a finished corpus; 'sources' cannot"),
    ],
    ids=str,
)
def test_mistakes_are_named(raw, message):
    with pytest.raises(ConfigError) as refused:
        config(**raw)
    assert str(refused.value).startswith("file.yaml: ")
    assert message in str(refused.value)


def test_two_languages_of_a_file_are_two_sources():
    both = [{"source": "a.jsonl", "only": {"language": language}} for language in ("de", "fi")]
    assert [source.short_name for source in config(sources=both).sources] == [
        "a.jsonl:de",
        "a.jsonl:fi",
    ]
    with pytest.raises(ConfigError, match="is the same text"):
        config(sources=[both[0], both[0]])


def test_relative_paths_are_taken_from_the_file_s_folder(tmp_path):
    (tmp_path / "tok").mkdir()
    made = config(
        sources=["in", "/abs", "hf:a/b", "builtin:pydocs"], tokenizer="tok", copies="copies"
    ).anchored(tmp_path)
    texts = [source.source for source in made.sources]
    assert texts == [str(tmp_path / "in"), "/abs", "hf:a/b", "builtin:pydocs"]
    assert made.tokenizer == str(tmp_path / "tok")
    assert made.copies == tmp_path / "copies"
    assert config(tokenizer="owner/name").anchored(tmp_path).tokenizer == "owner/name"
    assert config(folder="built").anchored(tmp_path).folder == tmp_path / "built"
    assert config(folder="~/built").anchored(tmp_path).folder == Path.home() / "built"


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"folder": "built"},
        {"sources": [{"source": "a", "share": 1}], "tokenizer": "t", "deduplicate": True},
    ],
    ids=str,
)
def test_written_out_in_full_it_loads_again(tmp_path, raw):
    import yaml

    made = config(**raw).anchored(tmp_path)
    (tmp_path / "corpus.yaml").write_text(yaml.safe_dump(made.model_dump(mode="json")))
    assert load_config(CorpusConfig, tmp_path / "corpus.yaml") == made


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


def reach(lengths, *, limit, positions=None, cuts=()):
    """Follow documents of some lengths, in shards that begin at `cuts`."""
    positions = range(len(lengths)) if positions is None else positions
    index = np.array([positions, lengths], dtype=np.int64).T
    found = Reach(*limit)
    for part in np.split(index, cuts):
        found.extend(part)
    return found.tokens, found.documents, found.stop


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ((), (20, 4, None)),
        ((21,), (20, 4, None)),
        ((20,), (20, 4, 9)),  # filled exactly, by the document at position 8
        ((19,), (11, 3, 8)),  # 11 + 9 would be too much
        ((11,), (11, 3, 6)),
        ((3,), (0, 0, 0)),  # the first has 4
        ((None, 4), (20, 4, 9)),
        ((None, 3), (11, 3, 6)),  # the empty one at position 3 is not counted
        ((12, 2), (6, 2, 3)),
    ],
)
@pytest.mark.parametrize("cuts", [(), (1,), (2, 3, 4)])
def test_where_a_limit_cuts(limit, expected, cuts):
    # 4 + 2 + 0 + 5 + 9 tokens; the positions between are held out.
    assert reach([4, 2, 0, 5, 9], limit=limit, positions=[0, 2, 3, 5, 8], cuts=cuts) == expected


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(1, 60))
def test_a_limit_is_kept_and_no_further_document_would_fit(lengths, limit):
    tokens, _, stop = reach(lengths, limit=(limit,))
    kept = lengths if stop is None else lengths[:stop]
    assert tokens == sum(kept) <= limit
    if stop is None:
        assert sum(lengths) < limit
    else:
        assert tokens == limit or sum(lengths[: stop + 1]) > limit


@given(st.lists(st.tuples(st.floats(0.001, 1000), st.integers(1, 10**12)), min_size=1, max_size=5))
def test_quotas_can_be_filled(sources):
    shares, available = zip(*sources, strict=True)
    quotas = fitting_quotas(shares, available)
    assert all(quota <= tokens for quota, tokens in zip(quotas, available, strict=True))
    assert any(quota == tokens for quota, tokens in zip(quotas, available, strict=True))
    for place, tokens in enumerate(available):
        total = largest_total(shares, place, tokens)
        assert token_quotas(shares, total)[place] <= tokens
        assert token_quotas(shares, total + len(sources) * 10**6)[place] >= tokens - 1
