"""Extractive question answering: start and end logits over windows, SQuAD's scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray
from torch import Tensor, nn

from biphasic.data.packing import TokenIds
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.tasks.encoded.encoding import Encoder
from biphasic.tasks.encoded.metrics import SplitScores, answer_scores, question_metrics
from biphasic.tasks.encoded.windows import NO_ANSWER, Window, check_room, question_windows
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, ExampleTask, Question, TaskInfo

if TYPE_CHECKING:
    from biphasic.tasks.finetuned import FinetunedModel


@dataclass(frozen=True, slots=True)
class EncodedQuestions:
    """A question-answering task as windows.

    Attributes:
        num_truncated: By split, the number of truncated questions, and as `SPLIT_lost_answers` the
            number of questions whose first answer fits in no window.
        max_answer_tokens: Longest answer decoded, in tokens.
        has_unanswerable: Whether any training question has no answer. Only then may the model
            abstain.
        questions: The questions of each split.
        windows: The windows of each split, in the order of its questions.
    """

    info: TaskInfo
    pad_id: int
    num_truncated: dict[str, int]
    max_answer_tokens: int
    has_unanswerable: bool
    questions: dict[str, tuple[Question, ...]]
    windows: dict[str, list[Window]]
    num_outputs: int = 2
    """Start and end."""

    @property
    def num_train(self) -> int:
        """Number of training windows."""
        return len(self.windows["train"])

    @property
    def trained_sequences(self) -> list[TokenIds]:
        """The sequences used in training."""
        return [window.sequence for window in self.windows["train"]]

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
        """Score validation and test; a question's score is its F1."""
        return {split: self._evaluate(encoder, head, split) for split in SPLITS[1:]}

    def _evaluate(self, encoder: Encoder, head: nn.Module, split: str) -> SplitScores:
        questions = self.questions[split]
        spans = best_spans(
            encoder,
            head,
            self.windows[split],
            num_questions=len(questions),
            max_answer_tokens=self.max_answer_tokens,
        )
        predictions = [
            span.text(question.context, may_abstain=self.has_unanswerable)
            for span, question in zip(spans, questions, strict=True)
        ]
        scores = np.array(
            [
                answer_scores(prediction, [answer.text for answer in question.answers])
                for prediction, question in zip(predictions, questions, strict=True)
            ]
        )
        is_answerable = np.array([bool(question.answers) for question in questions])
        columns = {
            "f1": scores[:, 1],
            "exact_match": scores[:, 0],
            "is_answerable": is_answerable,
            "predicted": predictions,
        }
        ids = tuple(question.id for question in questions)
        metrics = question_metrics(scores, is_answerable)
        return SplitScores(metrics, ids, scores[:, 1], columns)


def best_spans(
    encoder: Encoder,
    head: nn.Module,
    windows: Sequence[Window],
    *,
    num_questions: int,
    max_answer_tokens: int,
) -> list[Span]:
    """Find each question's best span over all of its windows."""
    best: list[Span] = [Span()] * len(windows)
    for indices, hidden, spans in encoder.batches([window.sequence for window in windows]):
        logits = head(hidden).cpu().numpy()
        for index, (start, end) in zip(indices, spans.tolist(), strict=True):
            best[index] = best_span(
                logits[start:end], windows[index], max_answer_tokens=max_answer_tokens
            )
    answers = [Span()] * num_questions
    for window, span in zip(windows, best, strict=True):
        answers[window.question] = answers[window.question].merge(span)
    return answers


@dataclass(frozen=True, slots=True)
class Span:
    """The best span of one or more windows, in characters, and the lowest no-answer score."""

    score: float = -np.inf
    start: int = 0
    end: int = 0
    no_answer: float = np.inf

    def merge(self, other: Span) -> Span:
        """Return the better span, or the earlier one if they are equal."""
        best = other if other.score > self.score else self
        return Span(best.score, best.start, best.end, min(self.no_answer, other.no_answer))

    def text(self, context: str, *, may_abstain: bool) -> str:
        """Return the answer; empty if the model may abstain and "no answer" scores higher."""
        if may_abstain and self.no_answer > self.score:
            return ""
        # Byte-level tokens may include a leading space.
        return context[self.start : self.end].strip()


def best_span(logits: NDArray[np.floating], window: Window, *, max_answer_tokens: int) -> Span:
    """Find the span with the highest sum of start and end logits.

    Ties go to the earlier start, then to the shorter span. `logits` are the start and end logits of
    the window's tokens, [num_tokens, 2].
    """
    no_answer = float(logits[NO_ANSWER].sum())
    length = len(window.offsets)
    if not length:
        return Span(no_answer=no_answer)
    context = logits[window.prefix : window.prefix + length]
    widths = min(max_answer_tokens, length)
    ends = np.concatenate([context[:, 1], np.full(widths - 1, -np.inf, dtype=context.dtype)])
    sums = context[:, :1] + np.lib.stride_tricks.sliding_window_view(ends, widths)
    start, width = divmod(int(sums.argmax()), widths)
    return Span(
        score=float(sums[start, width]),
        start=int(window.offsets[start, 0]),
        end=int(window.offsets[start + width, 1]),
        no_answer=no_answer,
    )


def encode_questions(
    task: ExampleTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
) -> EncodedQuestions:
    """Tokenise a question-answering task once, for every run on it."""
    check_room(tokenizer, protocol=protocol)
    parts = {
        split: question_windows(questions, tokenizer, protocol=protocol)
        for split, questions in task.splits.items()
    }
    num_truncated: dict[str, int] = {}
    for split, part in parts.items():
        num_truncated |= {split: part.num_cut, f"{split}_lost_answers": part.num_lost_answers}
    return EncodedQuestions(
        info=task.info,
        pad_id=tokenizer.pad_id,
        num_truncated=num_truncated,
        max_answer_tokens=protocol.max_answer_tokens or parts["train"].longest_answer,
        has_unanswerable=any(not question.answers for question in task.splits["train"]),
        questions=dict(task.splits),
        windows={split: part.windows for split, part in parts.items()},
    )


def predict_answers(
    finetuned: FinetunedModel, questions: Sequence[Question]
) -> tuple[list[dict[str, Any]], int]:
    """Answer questions; also return the number of truncated ones."""
    part = question_windows(questions, finetuned.tokenizer, protocol=finetuned.protocol)
    spans = best_spans(
        finetuned.encoder,
        finetuned.head,
        part.windows,
        num_questions=len(questions),
        max_answer_tokens=finetuned.record.max_answer_tokens,
    )
    rows = [
        _answer_row(span, question.context, may_abstain=finetuned.record.may_abstain)
        for span, question in zip(spans, questions, strict=True)
    ]
    return rows, part.num_cut


def _answer_row(span: Span, context: str, *, may_abstain: bool) -> dict[str, Any]:
    answer = span.text(context, may_abstain=may_abstain)
    # Without a context token there is nothing to score.
    row = {
        "answer": answer,
        "start": None,
        "end": None,
        "score": span.score if np.isfinite(span.score) else None,
        "no_answer_score": span.no_answer if may_abstain else None,
    }
    if not answer:
        return row
    start = context.index(answer, span.start)
    return {**row, "start": start, "end": start + len(answer)}
