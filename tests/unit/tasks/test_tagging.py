"""Token classification: which token stands for a word, and what a word without one costs."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from biphasic.tasks.kinds.tagging import TaggedSentence, TagLearner
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, ExampleTask
from custom_tasks import task_info

FAMILY = "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}"
ODD_WORDS = [
    FAMILY,
    "\N{THUMBS UP SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}",
    "\N{REGIONAL INDICATOR SYMBOL LETTER F}\N{REGIONAL INDICATOR SYMBOL LETTER R}",
    "e\N{COMBINING ACUTE ACCENT}\N{COMBINING DOT BELOW}",
    "\N{COMBINING ACUTE ACCENT}",
    "naïve",
    "東京都",
    "각",
    "\N{HANGUL CHOSEONG KIYEOK}\N{HANGUL JUNGSEONG A}",
    "مرحبا",
    "a\N{NO-BREAK SPACE}b",
    "x²½ﬁ",
    "don't",
    "...",
]
EMPTY_WORDS = [
    "\N{NO-BREAK SPACE}",
    "\N{IDEOGRAPHIC SPACE}\N{EM SPACE}",
    "\N{ZERO WIDTH SPACE}",
    "\N{LINE SEPARATOR}",
    "\N{ZERO WIDTH JOINER}",
    "\N{SOFT HYPHEN}",
    "\x01",
]
LABELS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")


def encode(tokenizer, *sentences, max_seqlen=512, labels=LABELS):
    """Encode sentences of words and tags; where there are none, all is `O`."""
    records = tuple(
        TaggedSentence(str(number), tuple(words), tuple(tags or [0] * len(words)))
        for number, (words, tags) in enumerate(sentences)
    )
    task = ExampleTask(task_info("tc", "entity_f1"), dict.fromkeys(SPLITS, records), labels)
    return TagLearner(task, tokenizer, protocol=FinetuneProtocol(max_seqlen=max_seqlen))


class Oracle(nn.Module):
    """Stands for encoder and head: gives every word that has a token its true tag.

    Sentences come in a batch of their own, the last one first.
    """

    def __init__(self, encoded):
        super().__init__()
        self.sentences, self.tags = encoded.sentences["test"], encoded.tags["test"]

    def batches(self, sequences):
        for number in reversed(range(len(sequences))):
            states = torch.zeros(len(sequences[number]), len(LABELS))
            positions, tags = self.sentences[number].positions, self.tags[number]
            for place, tag in zip(positions, tags, strict=True):
                if place >= 0:
                    states[place, tag] = 1.0
            yield np.array([number]), states, np.array([[0, len(states)]])

    def forward(self, states):
        return states


def oracle_scores(encoded):
    oracle = Oracle(encoded)
    return encoded.evaluate(oracle, oracle)["test"]


@settings(max_examples=100, deadline=None)
@given(words=st.lists(st.sampled_from(["the", "cat", "Paris", *ODD_WORDS, *EMPTY_WORDS])))
def test_a_byte_level_tokenizer_has_a_token_for_every_word(tokenizer, words):
    words = ["cat", *words]
    encoded = encode(tokenizer, (words, None))
    [sentence] = encoded.sentences["test"]
    ids, positions = sentence.sequence, sentence.positions
    assert encoded.num_truncated["test_lost_words"] == 0
    assert positions[0] == 1
    # The tokens from one word's first to the next word's spell that word, cut characters and all.
    borders = [*positions, len(ids) - 1]
    for word, start, end in zip(words, borders, borders[1:], strict=False):
        spelt = tokenizer.decode(ids[start:end].tolist())
        # A space that is a token of its own is not the first of the word behind it.
        assert tokenizer.decode([ids[start]]) != " "
        assert spelt.removeprefix(" ").removesuffix(" ") == word


@settings(max_examples=100, deadline=None)
@given(
    words=st.lists(st.sampled_from(["the", "cat", "Paris", *ODD_WORDS, *EMPTY_WORDS]), min_size=1)
)
def test_every_word_that_is_not_dropped_has_a_token(wordpiece, words):
    encoded = encode(wordpiece, (words, None))
    [sentence] = encoded.sentences["test"]
    ids, positions = sentence.sequence, sentence.positions
    for word, place in zip(words, positions, strict=True):
        alone = wordpiece.encode(word)
        assert (place >= 0) == bool(alone), word
        if alone:
            assert ids[place] == alone[0], word
    kept = [place for place in positions if place >= 0]
    assert kept == sorted(set(kept))
    assert encoded.num_truncated["test_lost_words"] == len(words) - len(kept)
    assert encoded.num_truncated["test"] == 0


@settings(max_examples=100, deadline=None)
@given(
    words=st.lists(
        st.sampled_from(
            ["the", "cat", "x²½ﬁ", "㎏", "Ｐａｒｉｓ", "①2", "e\N{COMBINING ACUTE ACCENT}"]
        )
    )
)
def test_every_word_has_its_first_token_after_nfkc(nfkc, words):
    words = ["cat", *words]
    encoded = encode(nfkc, (words, None))
    [sentence] = encoded.sentences["test"]
    assert encoded.num_truncated["test_lost_words"] == 0
    borders = [*sentence.positions, len(sentence.sequence) - 1]
    for word, start, end in zip(words, borders, borders[1:], strict=False):
        spelt = nfkc.decode(sentence.sequence[start:end].tolist())
        assert spelt.replace(" ", "") == unicodedata.normalize("NFKC", word)


@pytest.mark.parametrize("word", ["\N{COMBINING ACUTE ACCENT}", *EMPTY_WORDS])
def test_the_wordpiece_drops_words_of_nothing_but_marks_and_spaces(wordpiece, word):
    [sentence] = encode(wordpiece, (["cat", word, "dog"], None)).sentences["test"]
    assert sentence.positions.tolist() == [1, -1, 2]


def test_words_lost_to_truncation_count_as_errors(tokenizer):
    """A model that is right wherever it looks still misses the entities that were cut."""
    sentence = (["the", "Paris", *["the"] * 9, "Paris"], [0, 1, *[0] * 9, 1])
    whole, cut = (encode(tokenizer, sentence, max_seqlen=length) for length in (64, 9))
    assert oracle_scores(whole).metrics == {"entity_f1": 1.0, "sentence_token_f1": 1.0}
    # Of 9 tokens 2 are BOS and EOS: one Paris and 6 of 10 `O` are seen.
    assert (cut.num_truncated["test"], cut.num_truncated["test_lost_words"]) == (1, 5)
    scores = oracle_scores(cut)
    # One of two entities predicted, none invented: precision 1, recall 1/2.
    assert scores.metrics["entity_f1"] == pytest.approx(2 / 3)
    # B-LOC: precision 1, recall 1/2; O: precision 1, recall 6/10.
    assert scores.metrics["sentence_token_f1"] == pytest.approx((2 / 3 + 2 * 0.6 / 1.6) / 2)


def test_a_sentence_that_just_fits_is_not_cut(tokenizer):
    assert len(tokenizer.encode(" ".join(["the"] * 7))) == 7
    for num_words, lost in ((7, 0), (8, 1)):  # with BOS and EOS 9 and 10
        encoded = encode(tokenizer, (["the"] * num_words, None), max_seqlen=9)
        assert encoded.num_truncated["test"] == encoded.num_truncated["test_lost_words"] == lost


def test_a_word_that_the_tokenizer_drops_is_an_error(wordpiece):
    dropped = (["Paris", "\N{ZERO WIDTH SPACE}", "cat"], [1, 0, 0])
    scores = oracle_scores(encode(wordpiece, dropped, (["Paris", "cat"], [1, 0])))
    # In the first sentence one of two `O` is seen.
    assert scores.scores.tolist() == [pytest.approx((1 + 2 / 3) / 2), 1.0]
    assert scores.metrics["entity_f1"] == 1.0


def test_an_entity_without_its_beginning_does_not_count(wordpiece):
    begin_lost = (["\N{SOFT HYPHEN}", "Paris"], [1, 2])
    scores = oracle_scores(encode(wordpiece, begin_lost))
    assert scores.metrics["entity_f1"] == 0.0
    assert scores.columns["num_predicted"].tolist() == [0]


def test_types_of_entities_may_have_hyphens(tokenizer):
    """As in OntoNotes-like sets: `B-event-sports` is one type, `event` is none."""
    labels = ("O", "B-event-sports", "I-event-sports", "B-event", "I-event")
    words = ["the", "cat", "sat", "Paris"]
    rows = [(words, [1, 2, 0, 3]), (words, [1, 4, 0, 3])]
    encoded = encode(tokenizer, *rows, labels=labels)
    scores = oracle_scores(encoded)
    assert scores.columns["num_entities"].tolist() == [
        2,
        2,
    ]  # an `I-` of another type begins nothing
    assert scores.metrics["entity_f1"] == 1.0


def test_entity_f1_and_its_table_can_be_computed_again_from_the_columns(tokenizer):
    sentences = [
        (["Paris", "and", "Anna", "ran"], [1, 0, 3, 0]),
        (["the", "cat"], [0, 0]),
        (["the", "Anna", "Anna", *["the"] * 5, "Paris", "Anna"], [0, 3, 4, *[0] * 5, 1, 3]),
    ]
    scores = oracle_scores(encode(tokenizer, *sentences, max_seqlen=8))
    columns = {name: list(column) for name, column in scores.columns.items()}
    assert columns["num_entities"] == [2, 0, 3]
    assert columns["num_predicted"] == columns["num_right"] == [2, 0, 1]
    assert columns["num_lost_words"] == [0, 0, 4]
    assert columns["sentence_token_f1"] == scores.scores.tolist()
    assert scores.metrics["entity_f1"] == pytest.approx(2 * 3 / (5 + 3))
    # PER: Anna and Anna Anna of three; LOC: Paris of two.
    assert scores.by_type == {
        "LOC": {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "support": 2},
        "PER": {"precision": 1.0, "recall": pytest.approx(2 / 3), "f1": 0.8, "support": 3},
    }
