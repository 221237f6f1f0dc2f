"""Extractive question answering: the span of a context that answers a question."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.facts import FIRST_KINDS
from biphasic.tasks.kinds.examples import ExampleKind
from biphasic.tasks.kinds.kind import Predictions
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import Answer, ExampleTask, Question
from biphasic.tasks.rows.readers import joined_answers, read_squad
from biphasic.tasks.rows.row import Row

if TYPE_CHECKING:
    import pyarrow as pa

    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.tasks.custom.task_file import TaskFile
    from biphasic.tasks.encoded.qa import EncodedQuestions
    from biphasic.tasks.finetuned import FinetunedModel, HeadRecord
    from biphasic.tasks.formats.folder import TaskDescription


class QuestionAnswering(ExampleKind):
    """Start and end of an answer in windows of a context; SQuAD's scores."""

    name = "qa"
    facts = FIRST_KINDS["qa"]
    columns = ("id", "question", "context", "answers")
    suffixes = (".json", ".jsonl")
    input_fields = ("question", "context")
    does = "finds the answer to a question in a context"
    pipeline = "question-answering"
    form = "question-answering"
    output_names = ("start", "end")

    def parse(self, row: Row, *, labels: Sequence[str], template: str | None) -> Question:
        """Return a question with answers that are in its context."""
        del labels, template
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

    def input_of(self, example: Question) -> tuple[str, str]:
        """Return question and context."""
        return example.question, example.context

    def reader(self, path: Path, file: TaskFile) -> Callable[[Path], Any]:
        """Return the reader of SQuAD's files."""
        del path, file
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
        from biphasic.tasks.encoded.windows import check_room  # noqa: PLC0415

        check_room(tokenizer, protocol=protocol)

    def encode(
        self, task: ExampleTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> EncodedQuestions:
        """Cut contexts into windows."""
        from biphasic.tasks.encoded.qa import encode_questions  # noqa: PLC0415

        return encode_questions(task, tokenizer, protocol=protocol)

    def head_fields(
        self,
        task: ExampleTask,
        folder: Path,
        description: TaskDescription,
        tokenizer: TextTokenizer,
        protocol: FinetuneProtocol,
    ) -> dict[str, Any]:
        """Return how answers are found."""
        del folder, description
        encoded = self.encode(task, tokenizer, protocol=protocol)
        return {
            "may_abstain": encoded.has_unanswerable,
            "max_answer_tokens": encoded.max_answer_tokens,
        }

    def example(self, row: Row, record: HeadRecord) -> Question:
        """Return a question without answers."""
        del record
        return Question(str(row.number), row.text("question"), row.text("context"), ())

    def prediction_columns(self, record: HeadRecord) -> dict[str, pa.DataType]:
        """Return the answer, its borders in characters, and scores: sums of logits."""
        import pyarrow as pa  # noqa: PLC0415

        del record
        return {
            "answer": pa.string(),
            "start": pa.int64(),
            "end": pa.int64(),
            "score": pa.float64(),
            "no_answer_score": pa.float64(),
        }

    def predict(self, finetuned: FinetunedModel, examples: Sequence[Question]) -> Predictions:
        """Answer questions."""
        from biphasic.tasks.encoded.qa import predict_answers  # noqa: PLC0415

        return predict_answers(finetuned, examples)


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
