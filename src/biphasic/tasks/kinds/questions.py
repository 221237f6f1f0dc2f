"""Extractive question answering: the span of a context that answers a question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from biphasic.data.text.words import are_unspaced
from biphasic.errors import ConfigError, DataError
from biphasic.facts import FIRST_KINDS
from biphasic.rows import Row, parse_json, read_lines
from biphasic.tasks.baselines import Baseline, no_answer, shared_words
from biphasic.tasks.kinds.examples import FIELDS, Example, RecordFiles, Text
from biphasic.tasks.kinds.kind import Facts, Learner, Predictions, SplitScores, TaskKind
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import ExampleTask, FileSettings, HeadRecord, TaskSettings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from biphasic.data.packing import TokenIds
    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.tasks.encoding import Encoder, FinetunedModel

_NO_ANSWER = 0  # target start and end of a window that does not hold the answer: the BOS token


@plain_dataclass(frozen=True, slots=True)
class Answer:
    """A text that occurs in the context at `start`, in characters."""

    text: str
    start: int


@dataclass(frozen=True, slots=True, config=FIELDS)
class Question(Example):
    """A question about a context; unanswerable if it has no answers."""

    settings: ClassVar[tuple[str, ...]] = ("tokens",)
    suffixes: ClassVar[tuple[str, ...]] = (".json", ".jsonl")
    inputs: ClassVar[tuple[str, ...]] = ("question", "context")
    question: Annotated[Text, Field(validation_alias=AliasChoices("question", "query"))]
    context: Annotated[Text, Field(validation_alias=AliasChoices("context", "passage"))]
    answers: tuple[Answer, ...]

    @field_validator("answers", mode="before")
    @classmethod
    def _in_context(cls, answers: Any, info: ValidationInfo) -> Any:
        if info.context is None:
            return answers
        row: Row = info.context.row
        if not isinstance(answers, dict):
            raise row.error("'answers' must be an object with 'text' and 'answer_start'")
        context, answered = row.text("context"), row.with_value(answers)
        texts, starts = answered.items("text", str), answered.items("answer_start", int)
        if len(texts) != len(starts):
            raise row.error(f"{len(texts)} answer texts but {len(starts)} values of answer_start")
        for text, start in zip(texts, starts, strict=True):
            # A wrong start would train the model on other words, without any error.
            if not text or start < 0 or context[start : start + len(text)] != text:
                raise row.error(
                    f"the answer {text!r} is not at {start} in the context"
                    f"{_other_unit(context, text, start)}"
                )
        return tuple(Answer(text, start) for text, start in zip(texts, starts, strict=True))

    @classmethod
    def details(cls, first: Row, description: TaskSettings) -> dict[str, Any]:
        return {"tokens": description.tokens}

    @classmethod
    def reader(cls, file: FileSettings) -> Callable[[Path], Iterable[Row]]:
        return read_squad

    @classmethod
    def written(cls, row: Row, labels: Any) -> dict[str, Any]:
        answers = row.value["answers"]
        if isinstance(answers, list) and all(isinstance(answer, dict) for answer in answers):
            return {"answers": _joined_answers(answers)}
        return {}

    @classmethod
    def asked(cls, row: Row, record: HeadRecord) -> Question:
        return cls(str(row.number), row.text("question"), row.text("context"), ())


class AnswerLearner(Learner):
    """Windows of contexts; outputs are the start and end of an answer."""

    # Borders are in characters, scores sums of logits.
    predicted: ClassVar[Mapping[str, Any]] = {
        "answer": str, "start": int, "end": int, "score": float, "no_answer_score": float
    }  # fmt: skip
    limited = "question"
    num_outputs = 2

    def encode(self, task: ExampleTask) -> None:
        self.check_protocol(self.tokenizer, protocol=self.protocol)
        self.parts = {
            split: question_windows(questions, self.tokenizer, protocol=self.protocol)
            for split, questions in task.splits.items()
        }
        for split, part in self.parts.items():
            self.num_truncated[split] = sum(part.cut)
            self.num_truncated[f"{split}_lost_answers"] = part.num_lost_answers
        longest = self.parts["train"].longest_answer
        # No answer of training is longer, so longer spans are not searched.
        self.max_answer_tokens = self.protocol.max_answer_tokens or longest
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
        # Places beyond a window read row 0 and are hidden below, so windows of any length share a
        # matrix.
        rows = torch.from_numpy(np.where(columns < lengths[:, None], spans[:, :1] + columns, 0))
        logits = head(hidden)[rows.to(hidden.device)]  # (windows, longest, 2)
        logits = logits.masked_fill(outside[:, :, None], -torch.inf).transpose(1, 2)
        targets = torch.tensor([window.target for window in windows], device=hidden.device)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def evaluate(self, encoder: Encoder, head: nn.Module) -> dict[str, SplitScores]:
        """Score validation and test; a question's score is its F1."""
        return {split: self._evaluate(encoder, head, split) for split in self.scored}

    def _evaluate(self, encoder: Encoder, head: nn.Module, split: str) -> SplitScores:
        spans = _best_spans(encoder, head, self.parts[split], self.max_answer_tokens)
        predictions = [
            span.text(question.context, may_abstain=self.has_unanswerable)
            for span, question in zip(spans, self.task.splits[split], strict=True)
        ]
        return self.score(self.task, split, predictions)

    @classmethod
    def score(cls, task: ExampleTask, split: str, predicted: Any) -> SplitScores:
        """Score answers as texts."""
        from biphasic.tasks.metrics import answer_scores, question_metrics

        questions = task.splits[split]
        answers = [[answer.text for answer in question.answers] for question in questions]
        tokens = task.tokens
        # Decided by the reference answers, so that all models are scored in one way.
        if tokens is None and are_unspaced([text for texts in answers for text in texts]):
            tokens = "characters"
        scores = np.array(
            [
                answer_scores(prediction, accepted, tokens=tokens)
                for prediction, accepted in zip(predicted, answers, strict=True)
            ]
        )
        is_answerable = np.array([bool(question.answers) for question in questions])
        # Questions about a context are not independent: it has the id of its first question.
        contexts = {question.context: question.id for question in reversed(questions)}
        columns = {
            "f1": scores[:, 1],
            "exact_match": scores[:, 0],
            "is_answerable": is_answerable,
            "predicted": predicted,
            "cluster": [contexts[question.context] for question in questions],
        }
        metrics = question_metrics(scores, is_answerable)
        return SplitScores(metrics, task.ids(split), scores[:, 1], columns)

    @classmethod
    def check_protocol(cls, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol) -> None:
        least = 2 + len(tokenizer.separator_ids) + 1
        needed = least + protocol.max_question_tokens + protocol.window_overlap
        if protocol.max_seqlen >= needed:
            return
        room = protocol.max_seqlen - least
        question = min(protocol.max_question_tokens, max(room // 4, 1))
        overlap = min(protocol.window_overlap, max(room // 8, 0))
        shorter = f"set max_question_tokens={question} and window_overlap={overlap}, or "
        raise ConfigError(
            f"max_seqlen: {protocol.max_seqlen} tokens leave no room for a context beside "
            f"questions of {protocol.max_question_tokens} and an overlap of "
            f"{protocol.window_overlap}; {shorter if room > 0 else 'set '}max_seqlen={needed} if "
            "the model supports it"
        )

    @classmethod
    def head_fields(
        cls, task: ExampleTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> dict[str, Any]:
        encoded = cls(task, tokenizer, protocol=protocol)
        return {
            "may_abstain": encoded.has_unanswerable,
            "max_answer_tokens": encoded.max_answer_tokens,
        }

    @classmethod
    def is_cut(cls, finetuned: FinetunedModel, examples: Sequence[Question]) -> list[bool]:
        from biphasic.tasks.encoding import are_long

        questions = [example.question for example in examples]
        encode, room = finetuned.tokenizer.encode_many, cls.limit(finetuned.protocol)
        return are_long(questions, encode, room=room)

    @classmethod
    def limit(cls, protocol: FinetuneProtocol) -> int:
        return protocol.max_question_tokens  # contexts are read in windows

    @classmethod
    def predict(cls, finetuned: FinetunedModel, examples: Sequence[Question]) -> Predictions:
        record = finetuned.record
        part = question_windows(examples, finetuned.tokenizer, protocol=finetuned.protocol)
        spans = _best_spans(finetuned.encoder, finetuned.head, part, record.max_answer_tokens)
        rows = [
            _answer_row(span, question.context, may_abstain=record.may_abstain)
            for span, question in zip(spans, examples, strict=True)
        ]
        return rows, part.cut


class QuestionAnswering(TaskKind):
    """Start and end of an answer in windows of a context; SQuAD's scores."""

    name = "qa"
    examples = RecordFiles(Question)
    learner = AnswerLearner
    facts = Facts(
        **vars(FIRST_KINDS["qa"]),
        has_windows=True,
        does="finds the answer to a question in a context",
        pipeline="question-answering",
        form="question-answering",
        output_names=("start", "end"),
    )
    baselines: ClassVar[Mapping[str, Baseline]] = {
        "floor:no-answer": no_answer,
        "reference:shared-words": shared_words,
    }


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


@plain_dataclass(frozen=True, slots=True)
class Span:
    """The best span of one or more windows, in characters, and the lowest no-answer score."""

    score: float = -np.inf
    start: int = 0
    end: int = 0
    no_answer: float = np.inf

    def merge(self, other: Span) -> Span:
        """Return the better span, or the earlier one if they are equal."""
        best = other if other.score > self.score else self
        # The lowest, as in BERT's code for SQuAD 2.0: one window that holds an answer is enough.
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
    no_answer = float(logits[_NO_ANSWER].sum())
    length = len(window.offsets)
    if not length:
        return Span(no_answer=no_answer)
    context = logits[window.prefix : window.prefix + length]
    widths = min(max_answer_tokens, length)
    # Row i of the view has the ends that a span from token i may have; -inf ends none.
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
    # `text` has stripped spaces, which moves the start.
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


def _question_row(row: Row, context: Any) -> Row:
    answers = row.value.get("answers", [])
    if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
        raise row.error("'answers' must be a list of objects")
    is_impossible = row.value.get("is_impossible")
    if is_impossible and answers:
        raise row.error("is_impossible is true, but there are answers")
    if not is_impossible and not answers:
        raise row.error('no answers; a question without any needs "is_impossible": true')
    value = {
        "question": row.value.get("question"),
        "context": context,
        "answers": _joined_answers(answers),
    }
    if "id" in row.value:
        value["id"] = row.value["id"]
    return Row(row.path, row.number, value, row.place)


def _joined_answers(answers: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Convert a list of `{"text", "answer_start"}` to one object with two lists."""
    return {
        "text": [answer.get("text") for answer in answers],
        "answer_start": [answer.get("answer_start") for answer in answers],
    }


@plain_dataclass(frozen=True, slots=True)
class Window:
    """A question and part of its context: BOS, question, line break, part, EOS."""

    question: int  # index within its split
    sequence: TokenIds
    prefix: int  # number of tokens before the context
    offsets: NDArray[np.int64]  # characters of each token of the part, [num_tokens, 2]
    target: tuple[int, int]  # first and last token of the answer; zeros (BOS) if it is not whole


@plain_dataclass(frozen=True, slots=True)
class SplitWindows:
    """The windows of a split, in the order of its questions."""

    num_questions: int
    windows: list[Window]
    cut: list[bool]  # whether each question is truncated
    num_lost_answers: int  # questions whose first answer fits in no window
    longest_answer: int  # longest first answer in tokens, at least 1


def question_windows(
    questions: Sequence[Question], tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
) -> SplitWindows:
    """Split the contexts of a split into windows; each question's first answer is its target."""
    from biphasic.tasks.encoding import window_borders

    separator = tokenizer.separator_ids
    contexts = _encode_contexts(questions, tokenizer)
    windows: list[Window] = []
    cut: list[bool] = []
    num_lost, longest_answer = 0, 1
    for number, question in enumerate(questions):
        question_ids = tokenizer.encode(question.question)
        cut.append(len(question_ids) > protocol.max_question_tokens)
        prefix = [tokenizer.bos_id, *question_ids[: protocol.max_question_tokens], *separator]
        ids, offsets = contexts[question.context]
        answer = _answer_tokens(question, offsets)
        if answer is not None:
            longest_answer = max(longest_answer, answer[1] - answer[0] + 1)
        is_held = not question.answers
        for start, end in window_borders(
            len(ids), protocol.max_seqlen - len(prefix) - 1, overlap=protocol.window_overlap
        ):
            sequence = np.concatenate([prefix, ids[start:end], [tokenizer.eos_id]])
            # A window without the whole answer points at BOS, as does a question without one.
            target = _NO_ANSWER, _NO_ANSWER
            if answer is not None and start <= answer[0] and answer[1] < end:
                moved = len(prefix) - start
                target, is_held = (answer[0] + moved, answer[1] + moved), True
            windows.append(Window(number, sequence, len(prefix), offsets[start:end], target))
        num_lost += not is_held
    return SplitWindows(len(questions), windows, cut, num_lost, longest_answer)


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
