"""Extractive question answering: the span of a context that answers a question."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from biphasic.errors import DataError
from biphasic.facts import FIRST_KINDS
from biphasic.rows import Row, parse_json, read_lines
from biphasic.tasks.baselines import Baseline, no_answer, shared_words
from biphasic.tasks.kinds.examples import ExampleKind
from biphasic.tasks.kinds.kind import EncodedTask, Predictions, SplitScores
from biphasic.tasks.kinds.question_windows import (
    NO_ANSWER,
    SplitWindows,
    Window,
    check_room,
    question_windows,
)
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, Answer, ExampleTask, Question, TaskInfo

if TYPE_CHECKING:
    from torch import Tensor, nn

    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.tasks.encoding import Encoder
    from biphasic.tasks.finetuned import FinetunedModel, HeadRecord
    from biphasic.tasks.folder import TaskDescription
    from biphasic.tasks.task_file import TaskFile


class EncodedQuestions(EncodedTask):
    """A question-answering task as windows; outputs are start and end."""

    num_outputs = 2

    def __init__(
        self, task: ExampleTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> None:
        check_room(tokenizer, protocol=protocol)
        self.info, self.pad_id, self.task = task.info, tokenizer.pad_id, task
        self.parts = {
            split: question_windows(questions, tokenizer, protocol=protocol)
            for split, questions in task.splits.items()
        }
        self.num_truncated = {}
        for split, part in self.parts.items():
            self.num_truncated[split] = part.num_cut
            self.num_truncated[f"{split}_lost_answers"] = part.num_lost_answers
        self.max_answer_tokens = protocol.max_answer_tokens or self.parts["train"].longest_answer
        # Only if some training question has no answer may the model abstain.
        self.has_unanswerable = not all(question.answers for question in task.splits["train"])
        self.trained_sequences = [window.sequence for window in self.parts["train"].windows]
        self.num_train = len(self.trained_sequences)

    @property
    def example_of_item(self) -> NDArray[np.int64]:
        """The question of each training window."""
        return np.array([window.question for window in self.parts["train"].windows])

    def loss(self, encoder: Encoder, head: nn.Module, indices: NDArray[np.int64]) -> Tensor:
        """Return the mean over windows of the mean cross-entropy of start and end."""
        import torch

        windows = [self.parts["train"].windows[index] for index in indices]
        hidden, spans = encoder.states([window.sequence for window in windows])
        lengths = spans[:, 1] - spans[:, 0]
        columns = np.arange(int(lengths.max()))
        outside = torch.from_numpy(columns >= lengths[:, None]).to(hidden.device)
        rows = torch.from_numpy(np.where(columns < lengths[:, None], spans[:, :1] + columns, 0))
        logits = head(hidden)[rows.to(hidden.device)]  # (windows, longest, 2)
        logits = logits.masked_fill(outside[:, :, None], -torch.inf).transpose(1, 2)
        targets = torch.tensor([window.target for window in windows], device=hidden.device)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score validation and test; a question's score is its F1."""
        return {split: self._evaluate(encoder, head, split) for split in SPLITS[1:]}

    def _evaluate(self, encoder: Encoder, head: nn.Module, split: str) -> SplitScores:
        questions = self.task.splits[split]
        spans = _best_spans(encoder, head, self.parts[split], self.max_answer_tokens)
        predictions = [
            span.text(question.context, may_abstain=self.has_unanswerable)
            for span, question in zip(spans, questions, strict=True)
        ]
        return _score_answers(self.task, split, predictions)


def _score_answers(task: ExampleTask, split: str, predictions: Sequence[str]) -> SplitScores:
    from biphasic.tasks.metrics import answer_scores, question_metrics

    questions = task.splits[split]
    scores = np.array(
        [
            answer_scores(
                prediction, [answer.text for answer in question.answers], tokens=task.tokens
            )
            for prediction, question in zip(predictions, questions, strict=True)
        ]
    )
    is_answerable = np.array([bool(question.answers) for question in questions])
    # Questions about a context are not independent: it has the id of its first question.
    contexts = {question.context: question.id for question in reversed(questions)}
    columns = {
        "f1": scores[:, 1],
        "exact_match": scores[:, 0],
        "is_answerable": is_answerable,
        "predicted": predictions,
        "cluster": [contexts[question.context] for question in questions],
    }
    ids = tuple(question.id for question in questions)
    metrics = question_metrics(scores, is_answerable)
    return SplitScores(metrics, ids, scores[:, 1], columns)


class QuestionAnswering(ExampleKind):
    """Start and end of an answer in windows of a context; SQuAD's scores."""

    name = "qa"
    facts = FIRST_KINDS["qa"]
    encoded = EncodedQuestions
    settings = ("tokens",)
    columns = ("id", "question", "context", "answers")
    suffixes = (".json", ".jsonl")
    has_windows = True
    input_fields = ("question", "context")
    # Borders are in characters, scores sums of logits.
    predicted: ClassVar[Mapping[str, Any]] = {
        "answer": str, "start": int, "end": int, "score": float, "no_answer_score": float
    }  # fmt: skip
    does = "finds the answer to a question in a context"
    pipeline = "question-answering"
    form = "question-answering"
    output_names = ("start", "end")
    baselines: ClassVar[Mapping[str, Baseline]] = {
        "floor:no-answer": no_answer,
        "reference:shared-words": shared_words,
    }

    def read(
        self, folder: Path, description: TaskDescription, info: TaskInfo, files: Collection[str]
    ) -> ExampleTask:
        """Read the examples of a task folder, and how answers are compared."""
        task = super().read(folder, description, info, files)
        return replace(task, tokens=description.tokens)

    def score_predictions(self, task: ExampleTask, split: str, predicted: Any) -> SplitScores:
        """Score answers as texts."""
        return _score_answers(task, split, predicted)

    def parse(self, row: Row, *, labels: Sequence[str], template: str | None) -> Question:
        """Return a question with answers that are in its context."""
        context = row.text("context")
        answers = row.value.get("answers")
        if not isinstance(answers, dict):
            raise row.error("'answers' must be an object with 'text' and 'answer_start'")
        given = Row(row.path, row.number, answers, row.place)
        texts, starts = given.items("text", str), given.items("answer_start", int)
        if len(texts) != len(starts):
            raise row.error(f"{len(texts)} answer texts but {len(starts)} values of answer_start")
        for text, start in zip(texts, starts, strict=True):
            if not text or start < 0 or context[start : start + len(text)] != text:
                raise row.error(
                    f"the answer {text!r} is not at {start} in the context"
                    f"{_other_unit(context, text, start)}"
                )
        paired = tuple(Answer(text, start) for text, start in zip(texts, starts, strict=True))
        return Question(row.id(), row.text("question"), context, paired)

    def reader(self, path: Path, file: TaskFile) -> Callable[[Path], Any]:
        """Return the reader of SQuAD's files."""
        return read_squad

    def renamed(self, row: Row, chosen: Mapping[str, str]) -> Row:
        """Return a row with answers in two lists, if they are a list of objects."""
        row = super().renamed(row, chosen)
        answers = row.value["answers"]
        if isinstance(answers, list) and all(isinstance(answer, dict) for answer in answers):
            return replace(row, value={**row.value, "answers": joined_answers(answers)})
        return row

    def check_protocol(self, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol) -> None:
        """Check that windows have room for question and context."""
        check_room(tokenizer, protocol=protocol)

    def head_fields(
        self, task: ExampleTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> dict[str, Any]:
        """Return how answers are found."""
        encoded = EncodedQuestions(task, tokenizer, protocol=protocol)
        return {
            "may_abstain": encoded.has_unanswerable,
            "max_answer_tokens": encoded.max_answer_tokens,
        }

    def example(self, row: Row, record: HeadRecord) -> Question:
        """Return a question without answers."""
        return Question(str(row.number), row.text("question"), row.text("context"), ())

    def predict(self, finetuned: FinetunedModel, examples: Sequence[Question]) -> Predictions:
        """Answer questions."""
        record = finetuned.record
        part = question_windows(examples, finetuned.tokenizer, protocol=finetuned.protocol)
        spans = _best_spans(finetuned.encoder, finetuned.head, part, record.max_answer_tokens)
        rows = [
            _answer_row(span, question.context, may_abstain=record.may_abstain)
            for span, question in zip(spans, examples, strict=True)
        ]
        return rows, part.num_cut


def _other_unit(context: str, text: str, start: int) -> str:
    """Return a hint if the answer's start was counted in another unit than characters."""
    if not text or start < 0:
        return ""
    units = {"bytes": ("utf-8", 1), "UTF-16 units": ("utf-16-le", 2)}
    for unit, (encoding, width) in units.items():
        whole, part = context.encode(encoding), text.encode(encoding)
        if whole[start * width :].startswith(part):
            characters = len(whole[: start * width].decode(encoding))
            return (
                f"; it is if counted in {unit}, and answer_start counts characters ({characters})"
            )
    return ""


def _best_spans(
    encoder: Encoder, head: nn.Module, part: SplitWindows, max_answer_tokens: int
) -> list[Span]:
    """Find each question's best span over all of its windows."""
    answers = [Span()] * part.num_questions
    best = [Span()] * len(part.windows)
    for indices, hidden, spans in encoder.batches([window.sequence for window in part.windows]):
        logits = head(hidden).cpu().numpy()
        for index, (start, end) in zip(indices, spans.tolist(), strict=True):
            window = part.windows[index]
            best[index] = best_span(logits[start:end], window, max_answer_tokens=max_answer_tokens)
    for window, span in zip(part.windows, best, strict=True):
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
    """Find the span with the highest sum of start and end logits, [num_tokens, 2]."""
    # Ties go to the earlier start, then to the shorter span.
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


def read_squad(path: Path) -> Iterator[Row]:
    """Yield the questions of a file of version 1.1 or 2.0, without plausible answers."""
    top = parse_json("".join(line for _, line in read_lines(path)), where=str(path))
    number = 0
    for article, at_article in _items(path, top, "data", place=""):
        for paragraph, at_paragraph in _items(path, article, "paragraphs", place=at_article):
            context = paragraph.get("context")
            for question, place in _items(path, paragraph, "qas", place=at_paragraph):
                number += 1
                yield _question_row(Row(path, number, question, place), context)


def _items(path: Path, parent: Any, key: str, *, place: str) -> Iterator[tuple[dict, str]]:
    """Yield the objects of a list, and their positions."""
    items = parent.get(key) if isinstance(parent, dict) else None
    where = f"{path}: {place}" if place else str(path)
    if not isinstance(items, list):
        raise DataError(f"{where}: not in SQuAD's format: no list '{key}'")
    for index, item in enumerate(items):
        at = f"{place}.{key}[{index}]" if place else f"{key}[{index}]"
        if not isinstance(item, dict):
            raise DataError(f"{path}: {at}: expected a JSON object")
        yield item, at


def _question_row(given: Row, context: Any) -> Row:
    answers = given.value.get("answers", [])
    if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
        raise given.error("'answers' must be a list of objects")
    is_impossible = given.value.get("is_impossible")
    if is_impossible and answers:
        raise given.error("is_impossible is true, but there are answers")
    if not is_impossible and not answers:
        raise given.error('no answers; a question without any needs "is_impossible": true')
    value = {
        "question": given.value.get("question"),
        "context": context,
        "answers": joined_answers(answers),
    }
    if "id" in given.value:
        value["id"] = given.value["id"]
    return Row(given.path, given.number, value, given.place)


def joined_answers(answers: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Convert a list of `{"text", "answer_start"}` to one object with two lists."""
    return {
        "text": [answer.get("text") for answer in answers],
        "answer_start": [answer.get("answer_start") for answer in answers],
    }
