"""Extractive question answering: start and end logits over windows, SQuAD's scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray
from torch import Tensor, nn

from biphasic.data.tokenizer import TextTokenizer
from biphasic.errors import ConfigError
from biphasic.tasks.encoding import Encoder, SplitScores, TokenIds
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, Question, QuestionTask, TaskInfo
from biphasic.tasks.squad import answer_scores

_NO_ANSWER = 0  # the position of BOS


@dataclass(frozen=True, slots=True)
class Window:
    """A question and part of its context as one sequence: BOS, question, line break, part, EOS.

    Attributes:
        question: Number of the question within its split.
        sequence: Token ids.
        prefix: Tokens before the context's.
        offsets: Start and end in the context of each token of the part, [num_tokens, 2].
        target: Positions in the sequence of the answer's first and last token; zeros (BOS) where
            the window does not hold all of it.
    """

    question: int
    sequence: TokenIds
    prefix: int
    offsets: NDArray[np.int64]
    target: tuple[int, int]


@dataclass(frozen=True, slots=True)
class EncodedQuestions:
    """A question-answering task as windows."""

    info: TaskInfo
    pad_id: int
    num_truncated: dict[str, int]
    max_answer_tokens: int
    has_unanswerable: bool
    questions: dict[str, tuple[Question, ...]]
    windows: dict[str, list[Window]]

    @property
    def num_outputs(self) -> int:
        """Two: start and end."""
        return 2

    @property
    def num_train(self) -> int:
        """Number of training windows."""
        return len(self.windows["train"])

    def loss(self, encoder: Encoder, head: nn.Module, indices: NDArray[np.int64]) -> Tensor:
        """Return the mean over windows of the mean cross-entropy of start and end."""
        windows = [self.windows["train"][index] for index in indices]
        hidden, spans = encoder.states([window.sequence for window in windows])
        lengths = spans[:, 1] - spans[:, 0]
        columns = np.arange(int(lengths.max()))
        outside = torch.from_numpy(columns >= lengths[:, None]).to(hidden.device)
        rows = torch.from_numpy(np.where(columns < lengths[:, None], spans[:, :1] + columns, 0))
        logits = head(hidden)[rows.to(hidden.device)]  # (windows, longest, 2)
        logits = logits.masked_fill(outside[:, :, None], -torch.inf).transpose(1, 2)
        targets = torch.tensor([window.target for window in windows], device=hidden.device)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score validation and test: for each question its F1."""
        return {split: self._evaluate(encoder, head, split) for split in SPLITS[1:]}

    def _evaluate(self, encoder: Encoder, head: nn.Module, split: str) -> SplitScores:
        questions = self.questions[split]
        predictions = self._predict(encoder, head, split)
        scores = np.array(
            [
                answer_scores(prediction, [answer.text for answer in question.answers])
                for prediction, question in zip(predictions, questions, strict=True)
            ]
        )
        metrics = {"f1": float(scores[:, 1].mean()), "exact_match": float(scores[:, 0].mean())}
        return SplitScores(metrics, tuple(question.id for question in questions), scores[:, 1])

    def _predict(self, encoder: Encoder, head: nn.Module, split: str) -> list[str]:
        windows = self.windows[split]
        found: list[_Span] = [_Span()] * len(windows)
        for indices, hidden, spans in encoder.batches([window.sequence for window in windows]):
            logits = head(hidden).cpu().numpy()
            for index, (start, end) in zip(indices, spans.tolist(), strict=True):
                found[index] = best_span(
                    logits[start:end], windows[index], max_answer_tokens=self.max_answer_tokens
                )
        answers = [_Span()] * len(self.questions[split])
        for window, span in zip(windows, found, strict=True):
            answers[window.question] = answers[window.question].merge(span)
        return [
            answer.text(question.context, may_abstain=self.has_unanswerable)
            for answer, question in zip(answers, self.questions[split], strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _Span:
    """The best span of one or more windows, in characters, and the least no-answer score."""

    score: float = -np.inf
    start: int = 0
    end: int = 0
    no_answer: float = np.inf

    def merge(self, other: _Span) -> _Span:
        """Return the better span; of equal ones the earlier."""
        best = other if other.score > self.score else self
        return _Span(best.score, best.start, best.end, min(self.no_answer, other.no_answer))

    def text(self, context: str, *, may_abstain: bool) -> str:
        """Return the answer, empty where having none scores higher."""
        if may_abstain and self.no_answer > self.score:
            return ""
        # Byte-level tokens may count a leading space as their own.
        return context[self.start : self.end].strip()


def best_span(logits: NDArray[np.floating], window: Window, *, max_answer_tokens: int) -> _Span:
    """Find the span with the highest sum of start and end logit.

    Ties go to the earlier start, then to the shorter span.

    Args:
        logits: Start and end logit of every token of the window, [num_tokens, 2].
        window: The window.
        max_answer_tokens: Longest span considered.
    """
    no_answer = float(logits[_NO_ANSWER].sum())
    length = len(window.offsets)
    if not length:
        return _Span(no_answer=no_answer)
    context = logits[window.prefix : window.prefix + length]
    widths = min(max_answer_tokens, length)
    ends = np.concatenate([context[:, 1], np.full(widths - 1, -np.inf, dtype=context.dtype)])
    sums = context[:, :1] + np.lib.stride_tricks.sliding_window_view(ends, widths)
    start, width = divmod(int(sums.argmax()), widths)
    return _Span(
        score=float(sums[start, width]),
        start=int(window.offsets[start, 0]),
        end=int(window.offsets[start + width, 1]),
        no_answer=no_answer,
    )


def check_room(tokenizer: TextTokenizer, *, protocol: FinetuneProtocol) -> None:
    """Refuse a protocol whose windows hold no context; known before any work.

    Raises:
        ConfigError: Sequences are too short for question and overlap.
    """
    framing = 2 + len(_separator(tokenizer))
    needed = framing + protocol.max_question_tokens + protocol.window_overlap + 1
    if protocol.max_seqlen < needed:
        raise ConfigError(
            f"max_seqlen: {protocol.max_seqlen} tokens leave no room for a context; with these "
            f"max_question_tokens and window_overlap question answering needs {needed}"
        )


def _separator(tokenizer: TextTokenizer) -> list[int]:
    """Return what stands between question and context."""
    # A tokenizer without line breaks separates as it ends sequences.
    return tokenizer.encode("\n") or [tokenizer.eos_id]


def encode_questions(
    task: QuestionTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
) -> EncodedQuestions:
    """Tokenise a question-answering task once, for every run on it.

    Raises:
        ConfigError: Sequences are too short for question and overlap.
    """
    check_room(tokenizer, protocol=protocol)
    separator = _separator(tokenizer)
    windows: dict[str, list[Window]] = {}
    num_truncated: dict[str, int] = {}
    longest_answer = 1
    for split, questions in task.splits.items():
        windows[split], num_truncated[split] = [], 0
        contexts = _encode_contexts(questions, tokenizer)
        for number, question in enumerate(questions):
            asked = tokenizer.encode(question.question)
            num_truncated[split] += len(asked) > protocol.max_question_tokens
            prefix = [tokenizer.bos_id, *asked[: protocol.max_question_tokens], *separator]
            ids, offsets = contexts[question.context]
            answer = _answer_tokens(question, offsets)
            if split == "train" and answer is not None:
                longest_answer = max(longest_answer, answer[1] - answer[0] + 1)
            for start, end in _window_borders(
                len(ids), protocol.max_seqlen - len(prefix) - 1, overlap=protocol.window_overlap
            ):
                sequence = np.concatenate([prefix, ids[start:end], [tokenizer.eos_id]])
                target = _target(answer, start, end, prefix=len(prefix))
                windows[split].append(
                    Window(number, sequence, len(prefix), offsets[start:end], target)
                )
    return EncodedQuestions(
        info=task.info,
        pad_id=tokenizer.pad_id,
        num_truncated=num_truncated,
        max_answer_tokens=protocol.max_answer_tokens or longest_answer,
        has_unanswerable=any(not question.answers for question in task.splits["train"]),
        questions=dict(task.splits),
        windows=windows,
    )


def _encode_contexts(
    questions: Sequence[Question], tokenizer: TextTokenizer
) -> dict[str, tuple[TokenIds, NDArray[np.int64]]]:
    """Tokenise every context once, however many questions share it."""
    encoded = {}
    for context in {question.context: None for question in questions}:
        ids, offsets = tokenizer.encode_offsets(context)
        offset_table = np.array(offsets, dtype=np.int64).reshape(-1, 2)
        encoded[context] = np.array(ids, dtype=np.int64), offset_table
    return encoded


def _answer_tokens(question: Question, offsets: NDArray[np.int64]) -> tuple[int, int] | None:
    """Return the first and last token of the first answer, or none."""
    if not question.answers or not len(offsets):
        return None
    answer = question.answers[0]
    first = int(np.searchsorted(offsets[:, 1], answer.start, side="right"))
    last = int(np.searchsorted(offsets[:, 0], answer.start + len(answer.text), side="left")) - 1
    return (first, last) if first <= last else None


def _window_borders(num_tokens: int, capacity: int, *, overlap: int) -> Sequence[tuple[int, int]]:
    """Cover a context by windows of at most `capacity` tokens, neighbours sharing `overlap`."""
    borders = [(0, min(capacity, num_tokens))]
    while borders[-1][1] < num_tokens:
        start = borders[-1][1] - overlap
        borders.append((start, min(start + capacity, num_tokens)))
    return borders


def _target(
    answer: tuple[int, int] | None, start: int, end: int, *, prefix: int
) -> tuple[int, int]:
    if answer is None or answer[0] < start or answer[1] >= end:
        return _NO_ANSWER, _NO_ANSWER
    return answer[0] - start + prefix, answer[1] - start + prefix
