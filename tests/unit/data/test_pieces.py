"""Pieces of texts have the ids that they have in the whole text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from biphasic.data.tokens import shards
from biphasic.data.tokens.shards import _CUT, _PATTERNS, PieceEncoder
from biphasic.data.tokens.tokenizer import BOS, EOS, PAD, TextTokenizer

FRAGMENTS = (
    "a Ab don't 's ' . , ! - 1 42 é e\u0301 \u0301 日本 👍 \x1c \x85 \u3000 \x00 \ufffd <|eos|>"
)
PARTS = [*FRAGMENTS.split(" "), " ", "  ", "\n", "\r\n", "\t", "\u00a0", "x.net"]
TEXT = st.lists(st.sampled_from(PARTS), max_size=12).map("".join)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
BYTES_ONLY = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def split(pattern: str, behavior: str = "isolated"):
    return pre_tokenizers.Split(Regex(pattern), behavior)


def before_bytes(*rules):
    return pre_tokenizers.Sequence([*rules, BYTES_ONLY])


DIVIDING = {
    "gpt2": BYTES,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES]),
    "llama3": before_bytes(split(_PATTERNS[0])),
    "qwen2": before_bytes(split(_PATTERNS[1])),
    "bert": pre_tokenizers.BertPreTokenizer(),
}
SPECIAL = AddedToken("a, <q", special=True, normalized=False)
BERT = (pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer())
NORMALIZERS = {"gpt2": normalizers.NFC(), "bert": normalizers.BertNormalizer()}
OTHERS = {
    "none": BYTES_ONLY,
    "prefix": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    ),
    "joined": before_bytes(split(_PATTERNS[0], "contiguous")),
    "pairs": before_bytes(split(r"\p{L}+ \p{L}+")),
    "digits": before_bytes(pre_tokenizers.Digits()),
    "sentences": pre_tokenizers.Metaspace(split=False),
}


def trained(splitter, normalizer=None) -> TextTokenizer:
    """Return a tokenizer that joins all it may join: BPE of `PARTS` in many orders."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = splitter, decoders.ByteLevel()
    if normalizer is not None:
        made.normalizer = normalizer
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(PARTS, 12)) for _ in range(400)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=3000, special_tokens=[BOS, EOS, PAD], initial_alphabet=alphabet,
        show_progress=False,
    )  # fmt: skip
    made.train_from_iterator(texts, trainer)
    return TextTokenizer(made, {"bos": BOS, "eos": EOS, "pad": PAD})


def ids(encoder: PieceEncoder, texts: list[str]) -> list[list[int]]:
    """Return the ids of texts, which are given thrice: mostly new pieces would stay whole."""
    found = [np.frombuffer(each, "<u2").tolist() for each in encoder.encode(3 * texts)]
    assert found == 3 * found[: len(texts)]
    return found[: len(texts)]


def tokenized(tokenizer: TextTokenizer, text: str, monkeypatch) -> list[str]:
    """Return what a tokenizer is asked for to encode a text."""
    asked: list[str] = []
    encode_many = tokenizer.encode_many
    monkeypatch.setattr(
        tokenizer, "encode_many", lambda texts: asked.extend(texts) or encode_many(texts)
    )
    PieceEncoder(tokenizer, "<u2").encode([text])
    return sorted(asked)


def tokenizes_pieces(tokenizer: TextTokenizer, monkeypatch) -> bool:
    return tokenized(tokenizer, "one two two two", monkeypatch) == [" two", "one"]


@pytest.fixture(scope="module", params=DIVIDING)
def dividing(request) -> TextTokenizer:
    return trained(DIVIDING[request.param], NORMALIZERS.get(request.param))


@given(texts=st.lists(TEXT, max_size=4))
def test_pieces_have_the_ids_of_whole_texts(dividing, texts):
    encoder = PieceEncoder(dividing, "<u2")
    expected = [dividing.encode(text) for text in texts]
    assert ids(encoder, texts) == expected
    assert ids(encoder, texts) == expected  # of known pieces, too


@pytest.mark.parametrize("name", DIVIDING)
@given(text=TEXT)
def test_the_rules_divide_at_every_cut(name, text):
    words = DIVIDING[name].pre_tokenize_str
    apart = [word for piece in _CUT.split(text) for word, _ in words(piece)]
    assert apart == [word for word, _ in words(text)]


def test_known_rules_are_used(dividing, monkeypatch):
    assert tokenizes_pieces(dividing, monkeypatch)


def test_texts_of_mostly_new_words_stay_whole(monkeypatch):
    assert tokenized(trained(BYTES), "one two two three", monkeypatch) == ["one two two three"]


@pytest.mark.parametrize("name", OTHERS)
def test_texts_stay_whole_for_rules_that_may_not_divide_them(name, monkeypatch):
    tokenizer = trained(OTHERS[name])
    assert not tokenizes_pieces(tokenizer, monkeypatch)
    monkeypatch.setattr(shards, "_may_cut", lambda _: True)
    texts = ["".join(np.random.default_rng(seed).choice(PARTS, 12)) for seed in range(200)]
    cut = ids(PieceEncoder(tokenizer, "<u2"), texts)
    assert cut != [tokenizer.encode(text) for text in texts]  # so they are no harmless rules


@pytest.mark.parametrize(
    "token",
    [
        AddedToken("two words", normalized=False),
        AddedToken("end.", normalized=False),
        AddedToken("last ", normalized=False),
        AddedToken("<x>", rstrip=True),
        AddedToken(".net", single_word=True),
    ],
    ids=str,
)
def test_texts_stay_whole_for_tokens_that_extend_over_cuts(token, monkeypatch):
    tokenizer = trained(BYTES)
    tokenizer._tokenizer.add_tokens([token])
    texts = ["two words", "the end.", "at last one", "a <x> b", "x.net"]
    expected = [tokenizer.encode(text) for text in texts]
    assert ids(PieceEncoder(tokenizer, "<u2"), texts) == expected
    monkeypatch.setattr(shards, "_may_cut", lambda _: True)
    assert ids(PieceEncoder(tokenizer, "<u2"), texts) != expected


@pytest.mark.parametrize(
    ("rules", "tokens", "text"),
    [
        # BertNormalizer removes characters and adds white space, in which bytes differ.
        ((BYTES, normalizers.BertNormalizer()), [], "a \x00 \x00 b"),
        ((BYTES, normalizers.BertNormalizer()), [], "a 日 日"),
        # The normalizer's output spells a token where the text does not.
        ((BYTES, normalizers.NFC()), [AddedToken("x\u037ey", normalized=True)], "x;y"),
        (BERT, [AddedToken("é.", normalized=True)], "e."),
        (BERT, [AddedToken("  ", normalized=True)], "a \x00 \x00b"),
        # Other tokens are not looked for within a special one.
        ((BYTES,), [SPECIAL, AddedToken("<q>", normalized=False)], "a, <q>"),
    ],
)
def test_texts_stay_whole_if_a_normalizer_or_special_token_changes_pieces(
    rules, tokens, text, monkeypatch
):
    tokenizer = trained(*rules)
    for token in tokens:
        add = "add_special_tokens" if token.special else "add_tokens"
        getattr(tokenizer._tokenizer, add)([token])
    expected = [tokenizer.encode(text)]
    assert ids(PieceEncoder(tokenizer, "<u2"), [text]) == expected
    monkeypatch.setattr(shards, "_may_cut", lambda _: True)
    assert ids(PieceEncoder(tokenizer, "<u2"), [text]) != expected


@pytest.mark.parametrize("content", ["  ", "<tool>", " of", "x-y", "'s"])
def test_other_added_tokens_are_found_in_pieces(content, monkeypatch):
    tokenizer = trained(BYTES)
    tokenizer._tokenizer.add_tokens([AddedToken(content, lstrip=True, normalized=False)])
    assert tokenizes_pieces(tokenizer, monkeypatch)
    texts = [
        f"a{content}b c {content} d{content}.",
        f"{content} {content}",
        f" {content}\n{content},",
    ]
    assert ids(PieceEncoder(tokenizer, "<u2"), texts) == [tokenizer.encode(text) for text in texts]


def test_the_kept_pieces_are_bounded(monkeypatch):
    monkeypatch.setattr(shards, "_MOST_CHARACTERS", 20)
    tokenizer = trained(BYTES)
    encoder = PieceEncoder(tokenizer, "<u2")
    for number in range(30):
        text = f"word{number} and word{number}"
        assert ids(encoder, [text]) == [tokenizer.encode(text)]
        assert sum(map(len, encoder._known)) <= 20
