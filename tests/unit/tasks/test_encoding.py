"""How texts, words, answers and documents become token sequences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from biphasic.errors import ConfigError
from biphasic.model.loading.build import load_encoder
from biphasic.tasks import encoding
from biphasic.tasks.encoding import Encoder
from biphasic.tasks.finetune import encode_task
from biphasic.tasks.kinds.questions import Answer, Question, Window, best_span
from biphasic.tasks.kinds.text import AnsweredText
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, ExampleTask
from custom_tasks import task_info


def question_task(context, *answers, question="who sat"):
    record = Question("1", question, context, tuple(answers))
    return ExampleTask(task_info("qa"), dict.fromkeys(SPLITS, (record,)))


def protocol(**settings):
    return FinetuneProtocol(**{"max_question_tokens": 8, "window_overlap": 4, **settings})


def test_texts_stand_between_bos_and_eos_and_are_cut(tokenizer):
    record = AnsweredText("1", "the cat sat on the mat and the dog ran to Paris", 0)
    task = ExampleTask(task_info("sc"), dict.fromkeys(SPLITS, (record,)), ("a", "b"))
    full = encode_task(task, tokenizer, protocol=protocol())
    ids = tokenizer.encode(record.text)
    assert full.sequences["test"][0].tolist() == [tokenizer.bos_id, *ids, tokenizer.eos_id]
    assert full.num_truncated["test"] == 0
    assert len(ids) == 12
    cut = encode_task(task, tokenizer, protocol=protocol(max_seqlen=8))
    kept = [tokenizer.bos_id, *ids[:6], tokenizer.eos_id]
    assert cut.sequences["test"][0].tolist() == kept
    assert cut.num_truncated["test"] == 1


def test_windows_cover_the_context_and_overlap(tokenizer):
    context = "the cat sat on the mat and the dog ran to Paris with Anna " * 3
    task = question_task(context, Answer("Paris", context.index("Paris")))
    encoded = encode_task(task, tokenizer, protocol=protocol(max_seqlen=24))
    windows = encoded.parts["train"].windows
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


@pytest.mark.parametrize("causal", [True, False])
def test_causal_states_depend_only_on_earlier_tokens(model, tokenizer, causal):
    encoder = Encoder(model.eval(), pad_id=tokenizer.pad_id, causal=causal)
    whole, start = sequences_of(9, 4)
    with torch.inference_mode():
        hidden, spans = encoder.states([whole, start])
    (first, _), (other, end) = spans.tolist()
    difference = (hidden[first : first + 4] - hidden[other:end]).abs().max().item()
    assert (difference < 1e-5) is causal


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
