"""How texts, words, answers and documents become token sequences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from biphasic.errors import ConfigError
from biphasic.model.loading.build import load_encoder
from biphasic.tasks import encoding
from biphasic.tasks.encoding import Encoder
from biphasic.tasks.finetune import encode_task
from biphasic.tasks.kinds.qa import Window, best_span
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import (
    SPLITS,
    Answer,
    ClassificationTask,
    LabelledText,
    Question,
    QuestionTask,
    TaggedSentence,
    TaggingTask,
    TaskInfo,
)

ODD_WORDS = [
    "naïve",
    "東京",
    "😀",
    "👩‍💻",
    "don't",
    "x²",
    "a\u00a0b",
    "...",
    "1999",
    "é",
    "e\u0301",
]


def info(kind):
    return TaskInfo("t", kind, "T", "m", "0" * 64)


def tagging_task(words, tags=None):
    record = TaggedSentence("1", tuple(words), tuple(tags or [0] * len(words)))
    return TaggingTask(info("tc"), ("O", "B-X", "I-X"), dict.fromkeys(SPLITS, (record,)))


def question_task(context, *answers, question="who sat"):
    record = Question("1", question, context, tuple(answers))
    return QuestionTask(info("qa"), dict.fromkeys(SPLITS, (record,)))


def protocol(**settings):
    return FinetuneProtocol(**{"max_question_tokens": 8, "window_overlap": 4, **settings})


def test_texts_stand_between_bos_and_eos_and_are_cut(tokenizer):
    record = LabelledText("1", "the cat sat on the mat and the dog ran to Paris", 0)
    task = ClassificationTask(info("sc"), ("a", "b"), dict.fromkeys(SPLITS, (record,)))
    full = encode_task(task, tokenizer, protocol=protocol())
    ids = tokenizer.encode(record.text)
    assert full.splits["test"].sequences[0].tolist() == [tokenizer.bos_id, *ids, tokenizer.eos_id]
    assert full.num_truncated["test"] == 0
    assert len(ids) == 12
    cut = encode_task(task, tokenizer, protocol=protocol(max_seqlen=8))
    kept = [tokenizer.bos_id, *ids[:6], tokenizer.eos_id]
    assert cut.splits["test"].sequences[0].tolist() == kept
    assert cut.num_truncated["test"] == 1


@settings(max_examples=60, deadline=None)
@given(words=st.lists(st.sampled_from(["the", "cat", "Paris", *ODD_WORDS]), min_size=1))
def test_every_word_is_aligned_to_its_first_token(tokenizer, words):
    sentences = encode_task(tagging_task(words), tokenizer, protocol=protocol()).splits["test"]
    ids, positions = sentences.sequences[0].tolist(), sentences.positions[0].tolist()
    borders = [*positions, len(ids) - 1]
    assert positions[0] == 1
    # The tokens from one word's first to the next word's spell exactly that word.
    for word, start, end in zip(words, borders, borders[1:], strict=False):
        assert tokenizer.decode(ids[start:end]).strip(" ") == word


def test_words_beyond_the_cut_have_no_token(tokenizer):
    words = ["the", "cat", "sat", "unbelievably", "Paris"]
    encoded = encode_task(tagging_task(words), tokenizer, protocol=protocol(max_seqlen=8))
    positions = encoded.splits["test"].positions[0].tolist()
    # A space that is a token of its own is not the word's first: "un..." begins at 5, not at 4.
    assert positions == [1, 2, 3, 5, -1]
    assert encoded.num_truncated["test"] == 1
    assert len(encoded.splits["test"].sequences[0]) == 8


def test_windows_cover_the_context_and_overlap(tokenizer):
    context = "the cat sat on the mat and the dog ran to Paris with Anna " * 3
    task = question_task(context, Answer("Paris", context.index("Paris")))
    encoded = encode_task(task, tokenizer, protocol=protocol(max_seqlen=24))
    windows = encoded.windows["train"]
    ids, offsets = tokenizer.encode_offsets(context)
    assert len(windows) > 2
    covered = np.zeros(len(ids), dtype=int)
    for window in windows:
        part = window.sequence[window.prefix : -1].tolist()
        start = offsets.index(tuple(window.offsets[0]))
        assert part == ids[start : start + len(part)]
        assert window.sequence[0] == tokenizer.bos_id
        assert window.sequence[-1] == tokenizer.eos_id
        assert len(window.sequence) <= 24
        covered[start : start + len(part)] += 1
    assert covered.min() == 1
    # Neighbours share exactly the overlap, each of whose tokens stands in two windows.
    assert (covered == 2).sum() == 4 * (len(windows) - 1)


@pytest.mark.parametrize("text", ["Paris", "😀", "東京", "naïve", "Anna", "the cat"])
def test_answers_map_to_tokens_and_back(tokenizer, text):
    context = "naïve the cat 東京 sat 😀 on Paris with Anna"
    task = question_task(context, Answer(text, context.index(text)))
    encoded = encode_task(task, tokenizer, protocol=protocol(max_seqlen=128))
    [window] = encoded.windows["train"]
    logits = np.zeros((len(window.sequence), 2))
    logits[window.target[0], 0] = logits[window.target[1], 1] = 5.0
    span = best_span(logits, window, max_answer_tokens=encoded.max_answer_tokens)
    assert span.text(context, may_abstain=True) == text


def test_a_window_without_the_whole_answer_points_to_bos(tokenizer):
    context = "the cat sat on the mat and the dog ran to Paris with Anna " * 3
    task = question_task(context, Answer("Paris", context.rindex("Paris")))
    windows = encode_task(task, tokenizer, protocol=protocol(max_seqlen=24)).windows["train"]
    held = [window for window in windows if window.target != (0, 0)]
    assert 0 < len(held) < len(windows)
    for window in held:
        first, last = (place - window.prefix for place in window.target)
        assert context[window.offsets[first, 0] : window.offsets[last, 1]].strip() == "Paris"


def test_an_answer_that_a_window_cuts_points_to_bos(tokenizer):
    words = ["the cat sat on the mat", "and the dog ran to Paris", "with Anna on the mat"]
    context = " ".join(words * 2)
    for start in range(0, len(context) - 24, 4):
        start = context.index(" ", start) + 1  # noqa: PLW2901
        text = context[start : start + 20].strip()
        task = question_task(context, Answer(text, start))
        for part in encode_task(task, tokenizer, protocol=protocol(max_seqlen=24)).windows["test"]:
            if part.target != (0, 0):
                first, last = (place - part.prefix for place in part.target)
                assert 0 <= first <= last < len(part.offsets)


def test_no_room_for_a_context_is_refused(tokenizer):
    task = question_task("the cat")
    with pytest.raises(ConfigError, match="max_seqlen: 15 tokens leave no room"):
        encode_task(task, tokenizer, protocol=protocol(max_seqlen=15))
    encode_task(task, tokenizer, protocol=protocol(max_seqlen=16))


def window(num_tokens, prefix=3):
    offsets = np.array([(2 * place, 2 * place + 1) for place in range(num_tokens)])
    sequence = np.zeros(prefix + num_tokens + 1, dtype=np.int64)
    return Window(0, sequence, prefix, offsets.reshape(-1, 2), (0, 0))


@given(st.integers(1, 12), st.integers(1, 15), st.integers(0, 2**32 - 1))
def test_best_span_equals_a_search_over_all_spans(num_tokens, max_answer_tokens, seed):
    rng = np.random.default_rng(seed)
    part = window(num_tokens)
    logits = rng.integers(0, 4, (num_tokens + 4, 2)).astype(np.float32)  # many ties
    spans = [
        (logits[3 + start, 0] + logits[3 + end, 1], -start, start - end)
        for start in range(num_tokens)
        for end in range(start, min(num_tokens, start + max_answer_tokens))
    ]
    score, minus_start, minus_width = max(spans)
    found = best_span(logits, part, max_answer_tokens=max_answer_tokens)
    start = -int(minus_start)
    assert (found.score, found.start) == (score, 2 * start)
    assert found.end == 2 * (start - int(minus_width)) + 1
    assert found.no_answer == logits[0].sum()


def test_the_best_span_across_windows_and_the_least_no_answer_score_decide():
    first = best_span(
        np.array([[4, 4], [0, 0], [0, 0], [2, 2], [0, 0.0]]), window(1), max_answer_tokens=3
    )
    second = best_span(
        np.array([[1, 1], [0, 0], [0, 0], [3, 3], [0, 0.0]]), window(1), max_answer_tokens=3
    )
    assert first.text("ab", may_abstain=True) == ""
    assert first.text("ab", may_abstain=False) == "a"
    merged = first.merge(second)
    assert (merged.score, merged.no_answer) == (6.0, 2.0)
    assert merged.text("ab", may_abstain=True) == "a"
    nothing = best_span(np.zeros((4, 2)), window(0), max_answer_tokens=3)
    assert nothing.text("", may_abstain=False) == ""


def sequences_of(*lengths):
    return [np.arange(4, 4 + length) for length in lengths]


def test_packed_rows_hold_the_longest_sequence(model, tokenizer, monkeypatch):
    rows = []
    pack = encoding.pack_sequences
    monkeypatch.setattr(
        encoding,
        "pack_sequences",
        lambda *given, **options: rows.append(pack(*given, **options)) or pack(*given, **options),
    )
    encoder = Encoder(model.eval(), pad_id=tokenizer.pad_id)
    with torch.inference_mode():
        encoder.states(sequences_of(17, 3, 9))
        list(encoder.batches(sequences_of(17, 16, 17)))
    # In training rounded up to 16, where short ones fill the row; in evaluation all are alike.
    assert [batch.input_ids.shape for batch in rows] == [(1, 32), (3, 17)]


@pytest.mark.parametrize("batching", ["packed", "padded"])
def test_states_stand_where_spans_say(model, tokenizer, batching, tmp_path):
    model.save_pretrained(tmp_path)
    encoder = Encoder(load_encoder(tmp_path, batching=batching).eval(), pad_id=tokenizer.pad_id)
    sequences = sequences_of(5, 30, 1, 12)
    with torch.inference_mode():
        hidden, spans = encoder.states(sequences)
        assert hidden.dtype == torch.float32
        for sequence, (start, end) in zip(sequences, spans.tolist(), strict=True):
            alone, [(first, last)] = encoder.states([sequence])
            assert end - start == last - first == len(sequence)
            torch.testing.assert_close(hidden[start:end], alone[first:last], atol=1e-5, rtol=0)


@pytest.mark.parametrize("batching", ["packed", "padded"])
def test_every_sequence_comes_once_and_longest_first(
    model, tokenizer, batching, tmp_path, monkeypatch
):
    monkeypatch.setattr(encoding, "_EVALUATION_TOKENS", 40)
    model.save_pretrained(tmp_path)
    encoder = Encoder(load_encoder(tmp_path, batching=batching).eval(), pad_id=tokenizer.pad_id)
    lengths = np.array([3, 20, 7, 20, 1, 50])
    with torch.inference_mode():
        batches = list(encoder.batches(sequences_of(*lengths)))
    order = np.concatenate([indices for indices, _, _ in batches])
    assert order.tolist() == [5, 1, 3, 2, 0, 4]
    # 50 tokens are more than 40, but a sequence is never cut; then two of 20, and the rest.
    assert [len(indices) for indices, _, _ in batches] == [1, 2, 3]
    for indices, _, spans in batches:
        assert (spans[:, 1] - spans[:, 0]).tolist() == lengths[indices].tolist()
