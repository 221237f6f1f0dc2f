"""Kinds with one answer per text: a linear head on the mean of its states."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from biphasic.tasks.kinds.examples import ExampleKind, usual_columns
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import ExampleTask
from biphasic.tasks.rows.names import USUAL_TEXTS
from biphasic.tasks.rows.row import Row, read_jsonl
from biphasic.tasks.rows.templates import PAIR_TEMPLATE, fill, template_fields

if TYPE_CHECKING:
    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.tasks.custom.task_file import TaskFile
    from biphasic.tasks.encoded.text import Answers, EncodedTextTask
    from biphasic.tasks.finetuned import HeadRecord
    from biphasic.tasks.formats.folder import TaskDescription

TEMPLATE = "template"
"""Setting of kinds that join the fields of an example into one text."""
_PAIR = ("text_a", "text_b")


class TextKind(ExampleKind):
    """A kind with one answer per text, or per pair of texts joined by a template.

    Attributes:
        answer: Field of the answer.
        usual_answers: Usual names of its column.
    """

    settings: ClassVar[tuple[str, ...]] = (TEMPLATE,)
    paired_columns: ClassVar[Collection[str]] = ("text",)
    is_pooled: ClassVar[bool] = True
    form: ClassVar[Any] = "sequence-classification"
    answer: ClassVar[str]
    usual_answers: ClassVar[tuple[tuple[str, ...], ...]]

    @abstractmethod
    def answers(self, task: ExampleTask) -> Answers:
        """Return the expected answers of a task's examples, their loss and their scores."""

    def text(self, row: Row, template: str | None) -> str:
        """Return the text of a row, its fields joined."""
        if template is not None:
            return fill(template, row)
        return fill(PAIR_TEMPLATE, row) if "text_a" in row.value else row.text("text")

    def input_of(self, example: Any) -> str:
        """Return the text."""
        return example.text

    def choose_columns(self, there: Collection[str], path: Path, file: TaskFile) -> dict[str, str]:
        """Return the columns of the texts and of the answer."""
        chosen = _text_columns(there, path, file)
        given = file.columns.get(self.answer)
        chosen[self.answer] = (
            str(given) if given else usual_columns(self.usual_answers, there, path=path)[0]
        )
        return chosen

    def check_same_fields(self, splits: Mapping[str, Sequence[Row]]) -> None:
        """Check that either all splits have pairs or none do."""
        learnt = next(iter(splits.values()))[0]
        for split, (first, *_) in splits.items():
            if ("text_a" in first.value) != ("text_a" in learnt.value):
                units = ("pairs of texts", "single texts")
                here, there = units if "text_a" in first.value else reversed(units)
                raise first.error(f"the {split} split has {here}, but {learnt.path} has {there}")

    def encode(
        self, task: ExampleTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> EncodedTextTask:
        """Tokenise the texts."""
        from biphasic.tasks.encoded.text import encode_text_task  # noqa: PLC0415

        return encode_text_task(task, self.answers(task), tokenizer, protocol=protocol)

    def head_fields(
        self,
        task: ExampleTask,
        folder: Path,
        description: TaskDescription,
        tokenizer: TextTokenizer,
        protocol: FinetuneProtocol,
    ) -> dict[str, Any]:
        """Return labels, fields and template."""
        del tokenizer, protocol
        fields = ("text",)
        if description.template is not None:
            fields = template_fields(description.template)
        elif "text_a" in next(read_jsonl(folder / "train.jsonl")).value:
            fields = _PAIR
        return {"labels": task.labels, "fields": fields, "template": description.template}

    def example(self, row: Row, record: HeadRecord) -> str:
        """Return the text of a row."""
        if record.template is not None:
            return fill(record.template, row)
        return fill(PAIR_TEMPLATE, row) if record.fields == _PAIR else row.text("text")


def _text_columns(there: Collection[str], path: Path, file: TaskFile) -> dict[str, str]:
    fields = template_fields(file.template) if file.template is not None else ()
    given: Any = file.columns.get("text")
    if given is not None:
        chosen = _numbered((given,) if isinstance(given, str) else given)
    elif fields and all(field in there for field in fields):
        chosen = {}
    else:
        chosen = _numbered(usual_columns(USUAL_TEXTS, there, path=path))
    if not fields:
        return chosen
    # A template may name any column; columns that it omits are not part of the text.
    return {field: chosen.get(field, field) for field in fields}


def _numbered(names: Sequence[str]) -> dict[str, str]:
    return dict(zip(("text",) if len(names) == 1 else _PAIR, names, strict=True))
