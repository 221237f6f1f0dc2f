"""Question answering: windows of odd texts, the answer's place in the original, the loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from biphasic.tasks.encoding import Encoder, new_head
from biphasic.tasks.finetune import encode_task
from biphasic.tasks.kinds.questions import Answer, AnswerLearner, Question
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, ExampleTask, TaskInfo

INFO = TaskInfo("t", "qa", "T", "f1", "0" * 64)
# Words that both tokenizers begin and end tokens with; the WordPiece drops marks and joiners.
WORDS = st.lists(
    st.sampled_from(
        [
            *"abcxyzTA7.,()-é東京각½ﬁ²ß",
            "e\N{COMBINING ACUTE ACCENT}",
            "o\N{COMBINING DOT BELOW}\N{COMBINING ACUTE ACCENT}",
            "a\N{ZERO WIDTH JOINER}",
            "\N{SOFT HYPHEN}b",
            "\N{RIGHT-TO-LEFT MARK}x",
            "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}",
            "\N{GRINNING FACE}",
        ]
    ),
    min_size=1,
    max_size=5,
).map("".join)
SPACES = st.sampled_from(
    [" ", " ", "  ", "\n", "\t", "\N{NO-BREAK SPACE}", "\N{IDEOGRAPHIC SPACE}"]
)


class Perfect(nn.Module):
    """Stands for encoder and head: puts all logits on the targets of each window."""

    def __init__(self, encoded):
        super().__init__()
        self.windows = encoded.parts["test"].windows

    def batches(self, sequences):
        for number, sequence in reversed([*enumerate(sequences)]):
            logits = torch.zeros(len(sequence), 2)
            start, end = self.windows[number].target
            logits[start, 0] = logits[end, 1] = 5.0
            yield np.array([number]), logits, np.array([[0, len(sequence)]])

    def forward(self, states):
        return states


def encode(tokenizer, *questions, max_seqlen=64, overlap=4, train=None, tokens=None):
    splits = dict.fromkeys(SPLITS, questions)
    if train is not None:
        splits["train"] = train
    protocol = FinetuneProtocol(
        max_seqlen=max_seqlen, max_question_tokens=4, window_overlap=overlap
    )
    return AnswerLearner(ExampleTask(INFO, splits, tokens=tokens), tokenizer, protocol=protocol)


def perfect_scores(encoded):
    perfect = Perfect(encoded)
    return encoded.evaluate(perfect, perfect)["test"]


@st.composite
def questions(draw):
    """A context of odd words, and an answer of some of them."""
    words = draw(st.lists(WORDS, min_size=1, max_size=25))
    spaces = draw(st.lists(SPACES, min_size=len(words), max_size=len(words)))
    context = "".join(part for both in zip(words, spaces, strict=True) for part in both)
    first = draw(st.integers(0, len(words) - 1))
    last = draw(st.integers(first, min(len(words) - 1, first + 4)))
    start = sum(map(len, words[:first])) + sum(map(len, spaces[:first]))
    end = sum(map(len, words[: last + 1])) + sum(map(len, spaces[:last]))
    return Question("q", "who sat", context, (Answer(context[start:end], start),))


@pytest.mark.parametrize("kind", ["tokenizer", "wordpiece", "nfkc"])
@settings(max_examples=60, deadline=None)
@given(question=questions(), room=st.integers(1, 30), overlap=st.integers(0, 8))
def test_a_perfect_model_finds_every_answer_that_a_window_holds(
    request, kind, question, room, overlap
):
    tokenizer = request.getfixturevalue(kind)
    unanswerable = Question("n", "who sat", question.context, ())
    max_seqlen = 2 + len(tokenizer.separator_ids) + 4 + overlap + room  # BOS, EOS, and question
    encoded = encode(tokenizer, question, unanswerable, max_seqlen=max_seqlen, overlap=overlap)
    scores = perfect_scores(encoded)
    predicted, abstained = scores.columns["predicted"]
    assert predicted in question.context
    assert abstained == ""
    is_held = any(window.target != (0, 0) for window in encoded.parts["test"].windows)
    assert encoded.num_truncated["test_lost_answers"] == (not is_held)
    if is_held:
        assert predicted == question.answers[0].text
        assert scores.metrics["exact_match"] == 1.0
    else:
        assert predicted == ""


@pytest.mark.parametrize("text", ["㎏", "x²½ﬁ", "Ｐａｒｉｓ", "e\N{COMBINING ACUTE ACCENT}", "①2"])
def test_an_answer_is_cut_from_the_text_as_it_was_before_nfkc(nfkc, text):
    context = f"½ ﬁ {text} ㎏ {text} sat"
    for start in (4, context.rindex(text)):
        encoded = encode(nfkc, Question("1", "who", context, (Answer(text, start),)))
        assert perfect_scores(encoded).columns["predicted"] == [text]


def test_an_answer_longer_than_all_windows_is_lost_and_counted(tokenizer):
    words = "the cat sat on the mat and the dog ran to Paris with Anna"
    text = words[4:-5]
    long = Question("1", "who", words, (Answer(text, words.index(text)),))
    short = Question("2", "who", words, (Answer("Paris", words.index("Paris")),))
    without = Question("3", "who", words, ())
    encoded = encode(tokenizer, long, short, without, max_seqlen=16)
    lost = {split: encoded.num_truncated[f"{split}_lost_answers"] for split in SPLITS}
    assert lost == dict.fromkeys(SPLITS, 1)
    assert perfect_scores(encoded).columns["predicted"] == ["", "Paris", ""]


def test_characters_that_the_tokenizer_drops_belong_to_the_word_they_touch(wordpiece):
    accent, joiner, mark = "e\N{COMBINING ACUTE ACCENT}", "\N{ZERO WIDTH JOINER}", "\u200f"
    ends = (f"caf{accent}", f"cat{joiner}", f"caf{accent}{joiner}")
    begins = (f"{mark}cat", f"{joiner}{mark}cat")
    for text in (*ends, *begins, f"{mark}cat{joiner}", f"c{accent}t"):
        context = f"the {text} sat"
        encoded = encode(wordpiece, Question("1", "who", context, (Answer(text, 4),)))
        assert perfect_scores(encoded).columns["predicted"] == [text]


def test_an_answer_of_nothing_but_dropped_characters_is_lost(wordpiece):
    context = "the \N{ZERO WIDTH SPACE} cat"
    encoded = encode(wordpiece, Question("1", "who", context, (Answer(context[4], 4),)))
    assert encoded.num_truncated["test_lost_answers"] == 1


def test_the_first_of_several_answers_is_the_target_and_any_counts(tokenizer):
    context = "the cat sat on the mat"
    answers = (Answer("the mat", 15), Answer("cat", 4))
    encoded = encode(tokenizer, Question("1", "where", context, answers))
    [window] = encoded.parts["train"].windows
    first, last = (place - window.prefix for place in window.target)
    found = context[window.offsets[first, 0] : window.offsets[last, 1]]
    assert found.strip() == "the mat"
    only_second = encode(
        tokenizer,
        Question("1", "where", context, answers[::-1]),
        train=(Question("1", "where", context, answers),),
    )
    scores = perfect_scores(only_second)
    assert scores.columns["predicted"] == ["cat"]
    assert scores.metrics == {"f1": 1.0, "exact_match": 1.0}


def test_a_model_is_scored_by_characters_where_the_task_says_so(tokenizer):
    context = "cat 서울 sat"
    both = [(Question("1", "who", context, (Answer(text, 4),)),) for text in ("서울", "서")]
    for tokens, f1 in ((None, 0.0), ("characters", 2 / 3)):
        encoded = encode(tokenizer, *both[1], train=both[0], tokens=tokens)
        perfect = Perfect(encoded)
        perfect.windows = encoded.parts["train"].windows  # it finds one character too many
        assert encoded.evaluate(perfect, perfect)["test"].metrics["f1"] == pytest.approx(f1)


def test_parts_with_and_without_answer_are_scored_where_there_are_both(tokenizer):
    context = "cat sat"
    with_answer = Question("1", "who", context, (Answer("sat", 4),))
    without = Question("2", "who", context, ())
    metrics = perfect_scores(encode(tokenizer, with_answer, without)).metrics
    assert metrics["has_answer_f1"] == metrics["no_answer_accuracy"] == 1.0
    # Trained without unanswerable questions the model always answers.
    always = perfect_scores(encode(tokenizer, with_answer, without, train=(with_answer,)))
    assert always.metrics["no_answer_accuracy"] == 0.0
    assert always.metrics["f1"] == 0.5
    assert always.columns["is_answerable"].tolist() == [True, False]


def test_the_loss_of_questions_is_that_of_each_window_alone(
    model, tokenizer, tiny_tasks, tiny_protocol
):
    encoded = encode_task(tiny_tasks["qa"](), tokenizer, protocol=tiny_protocol)
    head = new_head(32, 2, generator=torch.Generator().manual_seed(0))
    nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(1))
    encoder = Encoder(model.eval(), pad_id=tokenizer.pad_id)
    expected = []
    for window in encoded.parts["train"].windows[:6]:
        logits = head(encoder.states([window.sequence])[0])[: len(window.sequence)].double()
        chosen = logits.log_softmax(0)[list(window.target), [0, 1]]
        expected.append(-chosen.mean().item())
    loss = encoded.loss(encoder, head, np.arange(6))
    assert loss.item() == pytest.approx(sum(expected) / 6, rel=1e-5)


def test_questions_of_a_context_are_a_cluster(tokenizer):
    first, other = "the cat sat on the mat", "the dog ran to Paris"
    questions = [
        Question(str(number), "who", context, (Answer(context[4:7], 4),))
        for number, context in enumerate([first, other, first])
    ]
    assert perfect_scores(encode(tokenizer, *questions)).columns["cluster"] == ["0", "1", "0"]
