"""Text to ids and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biphasic.data.tokenizer import (
    BOS,
    EOS,
    MASK,
    PAD,
    TextTokenizer,
    train_tokenizer,
    write_tokenizer,
)
from biphasic.errors import DataError
from biphasic.files import is_complete, read_json

# Lone surrogates are no text: UTF-8 cannot hold them.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture
def folder(tokenizer, tmp_path) -> Path:
    write_tokenizer(tokenizer, tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def change(folder: Path, name: str, **changes: object) -> None:
    declared = json.loads((folder / name).read_text())
    declared.update(changes)
    kept = {key: value for key, value in declared.items() if value is not None}
    (folder / name).write_text(json.dumps(kept))


@given(TEXT)
def test_text_survives(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(tokenizer.special_ids.values())
    assert all(0 <= token < tokenizer.vocab_size for token in ids)


@pytest.mark.parametrize(
    "text", ["naïve 日本語 👩‍👩‍👧‍👦", " two  spaces\n\n\ttab", "\x00\x7f", "e\u0301"]
)
def test_awkward_text_survives(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.lists(TEXT, max_size=5))
def test_many_equal_one_by_one(tokenizer, texts):
    assert tokenizer.encode_many(texts) == [tokenizer.encode(text) for text in texts]


@given(TEXT)
def test_offsets_are_in_characters_and_in_order(tokenizer, text):
    ids, offsets = tokenizer.encode_offsets(text)
    assert ids == tokenizer.encode(text)
    assert len(ids) == len(offsets)
    covered = set()
    for start, end in offsets:
        assert 0 <= start <= end <= len(text)
        covered.update(range(start, end))
    assert covered == set(range(len(text)))
    assert [start for start, _ in offsets] == sorted(start for start, _ in offsets)


def test_offsets_give_words_back(tokenizer):
    text = "the array of rows"
    ids, offsets = tokenizer.encode_offsets(text)
    pieces = [tokenizer.decode([token]) for token in ids]
    assert "".join(pieces) == text
    assert [text[start:end] for start, end in offsets] == pieces


@pytest.mark.parametrize("special", [BOS, EOS, PAD, MASK])
def test_text_that_spells_a_special_token_stays_text(tokenizer, folder, special):
    for candidate in (tokenizer, TextTokenizer.load(folder)):
        for ids in (
            candidate.encode(f"a {special} b"),
            candidate.encode_offsets(f"a {special} b")[0],
            candidate.encode_many([f"a {special} b"])[0],
        ):
            assert not set(ids) & set(candidate.special_ids.values())
            assert candidate.decode(ids) == f"a {special} b"


def test_special_tokens_have_ids_of_their_own(tokenizer):
    expected = {"bos": 0, "eos": 1, "pad": 2, "mask": 3}
    assert tokenizer.special_ids == expected
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.mask_id) == (0, 1, 2, 3)
    assert tokenizer.vocab_size == 320


def test_hash_survives_save_and_load(tokenizer, folder, tmp_path):
    loaded = TextTokenizer.load(folder)
    assert loaded.sha256 == tokenizer.sha256
    assert is_complete(folder)
    assert read_json(folder / "manifest.json")["sha256"] == tokenizer.sha256
    (tmp_path / "again").mkdir()
    loaded.save(tmp_path / "again")
    assert TextTokenizer.load(tmp_path / "again").sha256 == tokenizer.sha256
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_hash_tells_tokenizers_apart(tokenizer, documents, folder):
    texts = [text for _, text in documents]
    assert train_tokenizer(texts, vocab_size=320).sha256 == tokenizer.sha256
    assert train_tokenizer(texts, vocab_size=319).sha256 != tokenizer.sha256
    change(folder, "tokenizer_config.json", pad_token=EOS)  # the same vocabulary, another role
    assert TextTokenizer.load(folder).sha256 != tokenizer.sha256


def test_transformers_reads_it_with_the_same_ids(folder, tokenizer):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    for text in ["the array of rows", "naïve 日本語 👍", " x  y\n"]:
        assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text)
        assert theirs.decode(tokenizer.encode(text)) == text
    assert theirs.bos_token_id == tokenizer.bos_id
    assert theirs.eos_token_id == tokenizer.eos_id
    assert theirs.pad_token_id == tokenizer.pad_id
    assert theirs.mask_token_id == tokenizer.mask_id
    assert len(theirs) == tokenizer.vocab_size


def test_loads_folders_of_other_makers(folder, tokenizer):
    # BERT's names for the roles, tokens as records, and no token for padding.
    change(
        folder,
        "tokenizer_config.json",
        bos_token=None,
        eos_token=None,
        pad_token=None,
        cls_token={"content": BOS},
        sep_token=EOS,
    )
    loaded = TextTokenizer.load(folder)
    assert (loaded.bos_id, loaded.eos_id, loaded.pad_id) == (0, 1, 1)
    assert loaded.encode("the rows") == tokenizer.encode("the rows")


def test_truncation_and_padding_of_the_maker_are_not_applied(folder, tokenizer):
    change(
        folder,
        "tokenizer.json",
        truncation={
            "direction": "Right",
            "max_length": 2,
            "strategy": "LongestFirst",
            "stride": 0,
        },
        padding={
            "strategy": {"Fixed": 64},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 2,
            "pad_type_id": 0,
            "pad_token": PAD,
        },
    )
    loaded = TextTokenizer.load(folder)
    text = "the array of rows holds tokens"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.encode_many([text, "the"]) == tokenizer.encode_many([text, "the"])


def test_no_mask_token_is_told_when_it_is_needed(folder):
    change(folder, "tokenizer_config.json", mask_token=None)
    loaded = TextTokenizer.load(folder)
    assert set(loaded.special_ids) == {"bos", "eos", "pad"}
    with pytest.raises(DataError, match="the tokenizer has no mask token, which masked") as caught:
        _ = loaded.mask_id
    assert "'mask_token' in its tokenizer_config.json" in str(caught.value)


@pytest.mark.parametrize(("role", "field"), [("bos", "bos_token"), ("eos", "eos_token")])
def test_other_missing_roles_are_refused(folder, role, field):
    change(folder, "tokenizer_config.json", **{field: None, "pad_token": PAD})
    with pytest.raises(DataError, match=f"no {role} token; set '{field}'"):
        TextTokenizer.load(folder)


def test_role_outside_the_vocabulary_is_refused(folder):
    change(folder, "tokenizer_config.json", eos_token="</s>")  # noqa: S106
    with pytest.raises(DataError, match="eos token '</s>' is not in its vocabulary"):
        TextTokenizer.load(folder)


def test_missing_and_damaged_files_are_named(folder):
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=r"tokenizer\.json: cannot be read"):
        TextTokenizer.load(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"no tokenizer\.json; only fast tokenizers"):
        TextTokenizer.load(folder)
