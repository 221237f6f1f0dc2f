"""Words in scripts with and without spaces: the former as ever, the latter by characters."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from biphasic.data.text.near_duplicates import Shingler
from biphasic.data.text.source import SourceDocument
from biphasic.data.text.words import (
    are_unspaced,
    is_unspaced,
    joined,
    searched_words,
    words_in,
)
from biphasic.tasks.baselines import Setting
from biphasic.tasks.folder import load_task
from biphasic.tasks.kinds.questions import Answer, Question
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.kinds.tagging import TaggedSentence, split_words
from biphasic.tasks.metrics import answer_scores
from biphasic.tasks.pairs import document_pairs
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, ExampleTask, RetrievalTask
from custom_tasks import task_info, write_yaml
from hub_copies import write_dataset

NAMES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "KHMER", "LAO", "MYANMAR")
SPACED = st.characters(codec="utf-8").filter(lambda sign: not is_unspaced(sign))
HAN = "北京大学位于中国首都的西北部历史悠久"
UNSPACED = st.sampled_from(HAN + "東京タワーにいるประเทศไทยສະບາຍဗမာភាសា")


def test_the_scripts_without_spaces_are_those_of_unicode():
    for code in range(sys.maxunicode + 1):
        sign = chr(code)
        if unicodedata.category(sign)[0] in "LNM":
            named = unicodedata.name(sign, "").startswith(NAMES)
            assert is_unspaced(sign) == named, hex(code)


@given(st.text(SPACED))
def test_words_between_spaces_are_what_they_always_were(text):
    plain = "".join(sign for sign in text if unicodedata.category(sign)[0] != "M")
    assert words_in(plain) == re.findall(r"\w+", plain)
    lower = "".join(sign for sign in plain.lower() if unicodedata.category(sign)[0] != "M")
    assert searched_words(lower) == re.findall(r"(?u)\b\w\w+\b", lower.lower())
    runs = groupby(text, lambda s: unicodedata.category(s).startswith(("L", "M", "N", "Pc", "Cf")))
    parts = [part for is_word, run in runs for part in (["".join(run)] if is_word else run)]
    assert list(split_words(text).words) == [part for part in parts if not part.isspace()]
    assert joined(text.split()) == " ".join(text.split())
    assert not are_unspaced([text])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("हिन्दी भाषा में, किताब।", ["हिन्दी", "भाषा", "में", "किताब"]),
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("كِتَابٌ جَدِيدٌ!", ["كِتَابٌ", "جَدِيدٌ"]),
        (unicodedata.normalize("NFD", "naïve café"), ["nai\u0308ve", "cafe\u0301"]),
        ("snake_case, 4th x", ["snake_case", "4th", "x"]),
        ("I \u2764\ufe0fNY \u2714\ufe0f", ["I", "NY"]),
    ],
)
def test_marks_do_not_end_a_word(text, words):
    assert words_in(text) == words
    assert searched_words(text.upper()) == [word.lower() for word in words if len(word) > 1]


@given(st.text(UNSPACED, min_size=1), st.data())
def test_spaces_change_nothing_where_a_script_has_none(text, data):
    apart = "".join(sign + data.draw(st.sampled_from(["", " "])) for sign in text)
    assert words_in(text) == words_in(apart) == list(text)
    shingler = Shingler()
    assert np.array_equal(shingler(text), shingler(apart))
    assert joined(list(text)) == text
    assert are_unspaced([text, "12 !"]) == any(unicodedata.category(s)[0] == "L" for s in text)
    found = split_words(text)
    assert "".join(found.words) == text
    assert [text[start] for start in found.starts] == [word[0] for word in found.words]
    assert not [word for word in found.words[1:] if unicodedata.category(word[0])[0] == "M"]


def questions(*answers: str) -> ExampleTask:
    every = [
        Question(str(n), "?", f"x{text}", (Answer(text, 1),)) for n, text in enumerate(answers)
    ]
    return ExampleTask(task_info("qa"), {"test": tuple(every)})


@pytest.mark.parametrize(
    ("answers", "predicted", "f1"),
    [
        (["北京"], ["北京大学"], 2 * (2 / 4) / (2 / 4 + 1)),
        (["東京タワー"], ["タワー。"], 2 * (3 / 5) / (3 / 5 + 1)),
        (["ไทย"], ["ไท"], 2 * (2 / 3) / (2 / 3 + 1)),
        # A number is compared by characters where the other answers are Chinese.
        (["1868年", "北京"], ["1868", "北京"], (2 / 3 + 1) / 2),
        # Official SQuAD where they are not, whatever stands in brackets.
        (["the city of Beijing (北)"], ["Beijing (北)"], 2 * (2 / 4) / (2 / 4 + 1)),
        (["서울"], ["서울에서"], 0.0),  # Korean has spaces; 'tokens: characters' is a choice
    ],
)  # fmt: skip
def test_answers_are_compared_by_words_of_their_script(answers, predicted, f1):
    task = questions(*answers)
    scores = KINDS["qa"].learner.score(task, "test", predicted)
    assert scores.metrics["f1"] == pytest.approx(f1)


def test_characters_on_request_are_those_of_korean_too():
    assert answer_scores("서울에서", ["서울"], tokens="characters")[1] == pytest.approx(2 / 3)


def test_bm25_finds_the_text_that_shares_characters():
    corpus = {"a": "北京大学在北京", "b": "東京タワーは東京にある", "c": "上海在海边"}
    queries = {"1": "北京的大学", "2": "タワーの高さ", "3": "海边的城市"}
    right = dict(zip(queries, corpus, strict=True))
    qrels = {split: {q: {d: 1} for q, d in right.items()} for split in SPLITS}
    task = RetrievalTask(task_info("zs", "ndcg_at_10"), corpus, queries, qrels, "{text}", "{text}")
    ranked = KINDS["zs"].baselines["reference:bm25"](task, Setting())["test"]
    assert {query: documents[0] for query, documents in ranked.items()} == right


def test_the_sentence_that_shares_most_characters_is_the_answer():
    context = "上海在海边。北京大学位于北京！東京は大きい。"
    asked = Question("1", "北京大学在哪里", context, (Answer("北京", 6),))
    task = ExampleTask(task_info("qa"), {"test": (asked,)})
    [answer] = KINDS["qa"].baselines["reference:shared-words"](task, Setting())["test"]
    assert answer == "北京大学位于北京！"


def test_paragraphs_without_spaces_make_pairs():
    text = "\n\n".join(["第一章", HAN * 3, HAN[::-1] * 3])
    pairs = document_pairs([SourceDocument("1", text)], seed=0, per_document=9, most=None)
    assert [pair.source for pair in pairs] == ["heading and paragraph", "paragraph and next"]
    # A sentence is no heading.
    text = "\n\n".join(["这是第一章。", HAN * 3])
    assert not document_pairs([SourceDocument("1", text)], seed=0, per_document=9, most=None)


def test_tagged_characters_are_encoded_as_running_text(tokenizer):
    words, tags = ("我", "在", "北", "京", "ok", "!"), (0, 0, 1, 2, 0, 0)
    sentence = TaggedSentence("1", words, tags)
    assert sentence.text == "我在北京 ok !"
    learner = KINDS["tc"].learner
    task = ExampleTask(task_info("tc"), {"test": (sentence,)}, ("O", "B-LOC", "I-LOC"))
    encoded = learner(task, tokenizer, protocol=FinetuneProtocol(max_seqlen=64))
    [aligned] = encoded.sentences["test"]
    assert aligned.sequence.tolist()[1:-1] == list(tokenizer.encode_offsets(sentence.text)[0])
    assert (aligned.positions > 0).all()
    assert split_words(sentence.text).words == words


GERMAN = [("Der Film war großartig", "gut"), ("Das Essen schmeckte scheußlich", "schlecht")]
JAPANESE = [("誰が住んでいるか", "東京に田中さんが住んでいる", "田中さん")]


def test_tasks_of_other_languages_come_from_tables_with_columns_of_their_own(store, custom):
    rows = [{"satz": f"{text} {n}", "urteil": label} for n in range(12) for text, label in GERMAN]
    asked = [
        {"質問": q, "文脈": f"{c}{n}", "答え": {"text": [a], "answer_start": [c.index(a)]}}
        for n in range(12)
        for q, c, a in JAPANESE
    ]

    def task_of(name, table, **settings):
        copies = custom / "copies"
        splits = {("default", split): table for split in ("train", "test")}
        write_dataset(copies / "owner" / name, splits, None)
        hub = {split: {"dataset": f"owner/{name}", "split": split} for split in ("train", "test")}
        file = write_yaml(custom, json.dumps({**settings, "name": name, "hub": hub}))
        return load_task(store.folder_of(file, copies=copies))

    columns = {"text": "satz", "label": "urteil"}
    task = task_of("urteile", rows, kind="sc", columns=columns, labels=["gut", "schlecht"])
    assert {example.text for example in task.splits["test"]} == {row["satz"] for row in rows}
    floor = KINDS["sc"].baselines["reference:bag-of-words"](task, Setting())["test"]
    assert list(floor) == [example.answer for example in task.splits["test"]]
    columns = {"question": "質問", "context": "文脈", "answers": "答え"}
    task = task_of("shitsumon", asked, kind="qa", columns=columns)
    scores = KINDS["qa"].learner.score(task, "test", ["田中"] * task.num_examples("test"))
    assert scores.metrics == {"f1": pytest.approx(2 / 3), "exact_match": 0.0}
