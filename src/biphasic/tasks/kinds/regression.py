"""Sequence regression: a number for a text, or for a pair of texts.

Targets are standardized with the mean and standard deviation of the training split, so one range of
learning rates suits every scale and the head starts at the mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.errors import DataError
from biphasic.facts import FIRST_KINDS
from biphasic.tasks.kinds.kind import Predictions
from biphasic.tasks.kinds.text import TextKind
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import ExampleTask, ScoredText
from biphasic.tasks.rows.labels import Labels
from biphasic.tasks.rows.row import Row

if TYPE_CHECKING:
    import pyarrow as pa

    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.tasks.encoded.text import Answers
    from biphasic.tasks.finetuned import FinetunedModel, HeadRecord
    from biphasic.tasks.formats.folder import TaskDescription

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Regression(TextKind):
    """A number per text; squared error, Spearman correlation."""

    name = "sr"
    facts = FIRST_KINDS["sr"]
    columns = ("id", "text", "value")
    answer = "value"
    usual_answers = (("value",), ("score",), ("label",))
    does = "predicts a number for a text"
    problem_type = "regression"
    output_names = ("LABEL_0",)

    def parse(self, row: Row, *, labels: Sequence[str], template: str | None) -> ScoredText:
        """Return a text and its number."""
        del labels
        return ScoredText(row.id(), self.text(row, template), row.real("value"))

    def check_train(self, values: Callable[[str], Iterable[Any]], *, where: str) -> None:
        """Check that the numbers differ."""
        if len(different := set(values("value"))) == 1:
            raise DataError(
                f"{where}: all values of the training split are {different.pop():g}; there is "
                "nothing to learn"
            )

    def canonical(self, row: Row, labels: Labels | None) -> dict[str, Any]:
        """Return the number of a text file as a number."""
        del labels
        if not isinstance(row.value["value"], str):
            return {}
        text = row.value["value"].strip()
        if not _NUMBER.fullmatch(text):
            raise row.error(f"'{text}' is not a number")
        return {"value": float(text)}

    def answers(self, task: ExampleTask) -> Answers:
        """Return the numbers."""
        from biphasic.tasks.encoded.text import number_answers, standardisation  # noqa: PLC0415

        return number_answers(*standardisation(task))

    def head_fields(
        self,
        task: ExampleTask,
        folder: Path,
        description: TaskDescription,
        tokenizer: TextTokenizer,
        protocol: FinetuneProtocol,
    ) -> dict[str, Any]:
        """Return the scale of the output as well."""
        from biphasic.tasks.encoded.text import standardisation  # noqa: PLC0415

        mean, deviation = standardisation(task)
        fields = super().head_fields(task, folder, description, tokenizer, protocol)
        return {**fields, "mean": mean, "deviation": deviation}

    def prediction_columns(self, record: HeadRecord) -> dict[str, pa.DataType]:
        """Return the number."""
        import pyarrow as pa  # noqa: PLC0415

        del record
        return {"score": pa.float64()}

    def predict(self, finetuned: FinetunedModel, examples: Sequence[str]) -> Predictions:
        """Return numbers on the scale of the training split."""
        from biphasic.tasks.encoded.text import pooled_outputs  # noqa: PLC0415

        outputs, num_cut = pooled_outputs(finetuned, examples)
        record = finetuned.record
        values = outputs[:, 0] * record.deviation + record.mean
        return [{"score": value} for value in values.tolist()], num_cut
