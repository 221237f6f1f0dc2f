"""Where words begin, against a reference that walks through the text character by character."""

import inspect
import json
import re
import textwrap
import unicodedata
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from biphasic.data.tokens.tokenizer import BOS, EOS, MASK, PAD, TextTokenizer, train_tokenizer
from biphasic.errors import ConfigError
from biphasic.objectives.supervision import Spellings, spellings_of, word_starts

ROLES = {"bos": BOS, "eos": EOS, "pad": PAD, "mask": MASK}
# Scripts and signs that part words in different ways, beside plain prose and code.
LINES = (
    "The quick brown fox doesn't jump over 13 lazy dogs; it sleeps (badly)...",
    "Größere Übung über Straßen: façade, naïve, Łódź, 3,14 %.",
    unicodedata.normalize("NFD", "Tiếng Việt có dấu, même en français."),
    "हिन्दी में लिखा हुआ वाक्य। दूसरा वाक्य?",
    "می‌خواهم کتاب‌ها را بخوانم.",
    "私はカタカナと漢字をABCと書きます。中文没有空格，对吧？",
    "한국어 문장은 띄어쓰기가 있다.",
    "Family 👨‍👩‍👧‍👦 and ❤️ love👍🏽🎉 go 🇫🇷!",
    "def snake_case(x):\n\treturn x**2  # 'quoted'\r\n\n    y = https://example.org/a-b?c=1",
)
REAL = "\n".join([*LINES, inspect.getdoc(re) or "", inspect.getdoc(textwrap.fill) or ""])
SOME_TEXT = st.text(
    st.one_of(
        st.characters(codec="utf-8"),
        st.sampled_from(sorted(set(REAL))),
    ),
    max_size=40,
)


@cache
def byte_level(vocab_size: int) -> tuple[TextTokenizer, Spellings]:
    """A byte-level BPE: at 261 entries hardly anything is merged, so all but ASCII is split."""
    tokenizer = train_tokenizer(LINES, vocab_size=vocab_size)
    return tokenizer, spellings_of(tokenizer)


def is_ideograph(character: str) -> bool:
    return unicodedata.name(character, "").startswith("CJK ")


def is_word(character: str) -> bool:
    return unicodedata.category(character)[0] in "LN" and not is_ideograph(character)


def is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] == "M"


def continues_word(text: str, place: int, *, after_lone_space: bool) -> bool:
    """Tell whether the character at a place belongs to the word before it."""
    character, before = text[place], text[:place]
    if is_mark(character) or character in "\u200c\u200d":
        return True
    is_space = character.isspace() or unicodedata.category(character)[0] == "Z"
    if is_space:
        return False
    while before and is_mark(before[-1]):
        before = before[:-1]
    joined = before[-1:] in {"\u200c", "\u200d"}
    return joined or after_lone_space or (is_word(character) and is_word(before[-1:] or " "))


def expected_starts(text: str, offsets: list[tuple[int, int]]) -> list[bool]:
    """Say of each token but the first whether it begins a word, by its place in the text."""
    starts = []
    for (start_before, end_before), (start, _) in pairwise(offsets):
        is_split = start < end_before  # both hold bytes of one character
        lone = text[start_before:end_before] == " "
        starts.append(not is_split and not continues_word(text, start, after_lone_space=lone))
    return starts


def words_of(tokenizer: TextTokenizer, text: str) -> list[str]:
    """Return the words of a text, as its tokens are grouped, by what the tokens spell."""
    ids, spelled = np.array(tokenizer.encode(text), dtype=np.int64), spellings_of(tokenizer)
    starts = word_starts(ids, spelled)
    starts[:1] = True
    borders = [*np.flatnonzero(starts).tolist(), len(ids)]
    tokens = [
        spelled.content[spelled.borders[each] : spelled.borders[each + 1]].tobytes()
        for each in ids.tolist()
    ]
    # `decode` is strict: a word that began or ended amid a character would raise.
    return [b"".join(tokens[start:end]).decode() for start, end in pairwise(borders)]


@pytest.mark.parametrize("vocab_size", [261, 400, 700])
def test_byte_level_words_of_real_text(vocab_size):
    tokenizer, spellings = byte_level(vocab_size)
    ids, offsets = tokenizer.encode_offsets(REAL)
    assert len(ids) > 1500
    starts = word_starts(np.array(ids), spellings)[1:].tolist()
    assert starts == expected_starts(REAL, offsets)
    assert 0.1 < np.mean(starts) < 0.9


@given(SOME_TEXT, st.sampled_from([261, 700]))
def test_byte_level_words_of_any_text(text, vocab_size):
    tokenizer, spellings = byte_level(vocab_size)
    ids, offsets = tokenizer.encode_offsets(text)
    starts = word_starts(np.array(ids, dtype=np.int64), spellings)
    assert starts[1:].tolist() == expected_starts(text, offsets)


@given(SOME_TEXT)
def test_no_character_is_split(text):
    tokenizer, _ = byte_level(261)
    assert "".join(words_of(tokenizer, text)) == text


def test_byte_level_words_read_well():
    tokenizer, _ = byte_level(261)
    assert words_of(tokenizer, "She doesn't like Übungen, (or) 漢字!") == [
        *("She", " doesn", "'", "t", " like", " Übungen", ",", " (", "or", ")", " 漢", "字", "!")
    ]
    assert words_of(tokenizer, "a 👨‍👩‍👧 b❤️c") == ["a", " 👨‍👩‍👧", " b", "❤️", "c"]
    assert words_of(tokenizer, "می‌خواهم") == ["می‌خواهم"]
    assert words_of(tokenizer, "हिन्दी में") == ["हिन्दी", " में"]
    assert words_of(tokenizer, "x  =\n\ty_1") == ["x", " ", " =", "\n", "\t", "y", "_", "1"]


def test_a_chunk_that_begins_within_a_character_is_read_separately():
    tokenizer, spellings = byte_level(261)
    ids = np.array(tokenizer.encode("漢字ab"))
    assert len(ids) == 8  # three bytes, three bytes, two letters
    assert word_starts(ids[1:], spellings).tolist() == [
        *(False, False, True, False, False, True, False)
    ]
    with_others = np.concatenate([tokenizer.encode("abc"), ids[1:], tokenizer.encode("d")])
    assert word_starts(with_others, spellings)[5:10].tolist() == [True, False, False, True, False]


def test_added_tokens_stand_for_their_text():
    # ModernBERT's vocabulary has runs of spaces as added tokens, which are not in byte-level form.
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        special_tokens=list(ROLES.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(["ab ab cd"], trainer)
    inner.add_tokens(["   ", "é"])
    tokenizer = TextTokenizer(inner, ROLES)
    spelled = spellings_of(tokenizer)
    for token in ("   ", "é"):
        token_id = tokenizer.vocabulary()[token]
        first, last = spelled.borders[token_id : token_id + 2]
        assert spelled.content[first:last].tobytes().decode() == token
    assert words_of(tokenizer, "ab   cdéab é") == ["ab", "   ", "cdéab", " é"]


def wordpiece() -> TextTokenizer:
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 - no password
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=130, special_tokens=["[UNK]", *ROLES.values()], show_progress=False
    )
    inner.train_from_iterator(LINES[:2] * 3, trainer)
    return TextTokenizer(inner, ROLES)


def test_wordpiece_words_are_those_of_its_pre_tokenizer():
    tokenizer = wordpiece()
    text = LINES[0] + LINES[1]
    ids = tokenizer.encode(text)
    tokens = {token_id: token for token, token_id in tokenizer.vocabulary().items()}
    starts = word_starts(np.array(ids), spellings_of(tokenizer))[1:].tolist()
    assert starts == [not tokens[each].startswith("##") for each in ids[1:]]
    assert not all(starts)


def llama_like() -> TextTokenizer:
    """BPE as in Llama 2: a space becomes `▁`, and what is rare becomes bytes."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    inner = Tokenizer(models.BPE(byte_fallback=True, unk_token=None, fuse_unk=True))
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=256 + 60,
        special_tokens=[*ROLES.values(), *bytes_],
        show_progress=False,
        limit_alphabet=40,
    )
    # Word by word, as a trainer without a pre-tokenizer would merge across spaces.
    inner.train_from_iterator(re.findall(r" ?\w+|\W", LINES[0] * 3), trainer)
    # The trainer takes bytes as special tokens alone; published vocabularies have plain entries.
    rules = json.loads(inner.to_str())
    rules["added_tokens"] = [each for each in rules["added_tokens"] if each["id"] < len(ROLES)]
    return TextTokenizer(Tokenizer.from_str(json.dumps(rules)), ROLES)


def unigram() -> TextTokenizer:
    inner = Tokenizer(models.Unigram())
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    inner.decoder = decoders.Metaspace(prepend_scheme="never")
    trainer = trainers.UnigramTrainer(
        vocab_size=90, special_tokens=[*ROLES.values(), "<unk>"], unk_token="<unk>",  # noqa: S106
        show_progress=False,
    )  # fmt: skip
    inner.train_from_iterator(LINES[:2], trainer)
    return TextTokenizer(inner, ROLES)


@pytest.mark.parametrize("make", [llama_like, unigram])
def test_sentencepiece_words(make):
    tokenizer = make()
    text = "The quick brown dogs, (badly) jump 13 over."
    ids = tokenizer.encode(text)
    assert len(ids) > 15
    expected = "The| quick| brown| dogs|,| (|badly|)| jump| 13| over|."
    assert words_of(tokenizer, text) == expected.split("|")


def test_bytes_of_sentencepiece_are_joined():
    tokenizer = llama_like()
    text = "fox 漢字 🎉"
    assert len(tokenizer.encode(text)) > 6 + 4
    assert words_of(tokenizer, text) == ["fox", " 漢", "字", " 🎉"]


def test_a_vocabulary_without_words_is_refused():
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(
        vocab_size=100, special_tokens=list(ROLES.values()), show_progress=False
    )
    inner.train_from_iterator(LINES[:1], trainer)
    with pytest.raises(ConfigError, match=r"\(BPE\) does not mark word starts"):
        spellings_of(TextTokenizer(inner, ROLES))
