"""Question-answering windows: overlapping parts of a context, with answers as token positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from biphasic.data.packing import TokenIds
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import Question

NO_ANSWER = 0  # target start and end of a window that does not hold the answer: the BOS token


@dataclass(frozen=True, slots=True)
class Window:
    """A question and part of its context: BOS, question, line break, part, EOS."""

    question: int  # index within its split
    sequence: TokenIds
    prefix: int  # number of tokens before the context
    offsets: NDArray[np.int64]  # characters of each token of the part, [num_tokens, 2]
    target: tuple[int, int]  # first and last token of the answer; zeros (BOS) if it is not whole


@dataclass(frozen=True, slots=True)
class SplitWindows:
    """The windows of a split, in the order of its questions."""

    num_questions: int
    windows: list[Window]
    num_cut: int  # truncated questions
    num_lost_answers: int  # questions whose first answer fits in no window
    longest_answer: int  # longest first answer in tokens, at least 1


def check_room(tokenizer: TextTokenizer, *, protocol: FinetuneProtocol) -> None:
    """Raise an error before any work if the protocol leaves windows no room for context."""
    least = 2 + len(tokenizer.separator_ids) + 1
    needed = least + protocol.max_question_tokens + protocol.window_overlap
    if protocol.max_seqlen >= needed:
        return
    room = protocol.max_seqlen - least
    question = min(protocol.max_question_tokens, max(room // 4, 1))
    overlap = min(protocol.window_overlap, max(room // 8, 0))
    shorter = f"set max_question_tokens={question} and window_overlap={overlap}, or "
    raise ConfigError(
        f"max_seqlen: {protocol.max_seqlen} tokens leave no room for a context beside questions of "
        f"{protocol.max_question_tokens} and an overlap of {protocol.window_overlap}; "
        f"{shorter if room > 0 else 'set '}max_seqlen={needed} if the model supports it"
    )


def question_windows(
    questions: Sequence[Question], tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
) -> SplitWindows:
    """Split the contexts of a split into windows; each question's first answer is its target."""
    separator = tokenizer.separator_ids
    contexts = _encode_contexts(questions, tokenizer)
    windows: list[Window] = []
    num_cut, num_lost, longest_answer = 0, 0, 1
    for number, question in enumerate(questions):
        asked = tokenizer.encode(question.question)
        num_cut += len(asked) > protocol.max_question_tokens
        prefix = [tokenizer.bos_id, *asked[: protocol.max_question_tokens], *separator]
        ids, offsets = contexts[question.context]
        answer = _answer_tokens(question, offsets)
        if answer is not None:
            longest_answer = max(longest_answer, answer[1] - answer[0] + 1)
        is_held = not question.answers
        for start, end in _window_borders(
            len(ids), protocol.max_seqlen - len(prefix) - 1, overlap=protocol.window_overlap
        ):
            sequence = np.concatenate([prefix, ids[start:end], [tokenizer.eos_id]])
            target = NO_ANSWER, NO_ANSWER
            if answer is not None and start <= answer[0] and answer[1] < end:
                moved = len(prefix) - start
                target, is_held = (answer[0] + moved, answer[1] + moved), True
            windows.append(Window(number, sequence, len(prefix), offsets[start:end], target))
        num_lost += not is_held
    return SplitWindows(len(questions), windows, num_cut, num_lost, longest_answer)


def _encode_contexts(
    questions: Sequence[Question], tokenizer: TextTokenizer
) -> dict[str, tuple[TokenIds, NDArray[np.int64]]]:
    """Tokenize each distinct context once."""
    encoded = {}
    for context in {question.context: None for question in questions}:
        ids, offsets = tokenizer.encode_offsets(context)
        offset_table = np.array(offsets, dtype=np.int64).reshape(-1, 2)
        encoded[context] = np.array(ids, dtype=np.int64), _covering(context, offset_table)
    return encoded


def _covering(context: str, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Assign characters that the tokenizer drops, such as accents, to an adjacent token."""
    # Without this, an answer that ends in one could not be returned whole. Within a word, the token
    # before gets the character; at the start of a word, the one after. White space stays between.
    borders = np.zeros(len(context) + 1, dtype=np.int64)
    np.add.at(borders, offsets[:, 0], 1)
    np.add.at(borders, offsets[:, 1], -1)
    uncovered = np.flatnonzero(borders[:-1].cumsum() == 0).tolist()
    dropped = [place for place in uncovered if not context[place].isspace()]
    if not dropped:
        return offsets
    covering, left = offsets.copy(), []
    last_before = {end: token for token, end in enumerate(offsets[:, 1].tolist())}
    for place in dropped:
        token = last_before.pop(place, None)
        if token is None:
            left.append(place)
        else:
            covering[token, 1], last_before[place + 1] = place + 1, token
    first_after = {start: token for token, start in reversed([*enumerate(offsets[:, 0].tolist())])}
    for place in reversed(left):
        token = first_after.pop(place + 1, None)
        if token is not None:
            covering[token, 0], first_after[place] = place, token
    return covering


def _answer_tokens(question: Question, offsets: NDArray[np.int64]) -> tuple[int, int] | None:
    """Return the first and last token of the first answer, or None."""
    if not question.answers or not len(offsets):
        return None
    answer = question.answers[0]
    first = int(np.searchsorted(offsets[:, 1], answer.start, side="right"))
    last = int(np.searchsorted(offsets[:, 0], answer.start + len(answer.text), side="left")) - 1
    return (first, last) if first <= last else None


def _window_borders(num_tokens: int, capacity: int, *, overlap: int) -> Sequence[tuple[int, int]]:
    """Cover a context with windows of at most `capacity` tokens; neighbours share `overlap`."""
    borders = [(0, min(capacity, num_tokens))]
    while borders[-1][1] < num_tokens:
        start = borders[-1][1] - overlap
        borders.append((start, min(start + capacity, num_tokens)))
    return borders
