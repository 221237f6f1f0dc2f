"""Sequence classification: one label for a text, or for a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from biphasic.facts import FIRST_KINDS
from biphasic.tasks.kinds.examples import LABELS
from biphasic.tasks.kinds.kind import Predictions
from biphasic.tasks.kinds.text import TEMPLATE, TextKind
from biphasic.tasks.records import ExampleTask, LabelledText
from biphasic.tasks.rows.labels import Labels, found_labels
from biphasic.tasks.rows.row import Row

if TYPE_CHECKING:
    import pyarrow as pa

    from biphasic.tasks.encoded.text import Answers
    from biphasic.tasks.finetuned import FinetunedModel, HeadRecord


class Classification(TextKind):
    """One label per text; cross-entropy, accuracy."""

    name = "sc"
    facts = FIRST_KINDS["sc"]
    settings: ClassVar[tuple[str, ...]] = (TEMPLATE, LABELS)
    columns = ("id", "text", "label")
    answer = "label"
    usual_answers = (("label",),)
    does = "assigns one of {number} labels to a text"
    problem_type = "single_label_classification"

    def parse(self, row: Row, *, labels: Sequence[str], template: str | None) -> LabelledText:
        """Return a text and the number of its label."""
        label = row.value.get("label")
        if type(label) is not int or not 0 <= label < len(labels):
            raise row.error(f"unknown label {label!r}; labels.json has 0 to {len(labels) - 1}")
        return LabelledText(row.id(), self.text(row, template), label)

    def found_labels(self, rows: Sequence[Row], *, source: str) -> Labels:
        """Return the labels, sorted."""
        return found_labels(rows, "label", source=source)

    def canonical(self, row: Row, labels: Labels | None) -> dict[str, Any]:
        """Return the label as a number."""
        return {"label": labels.number(row, "label")} if labels else {}

    def answers(self, task: ExampleTask) -> Answers:
        """Return the labels."""
        from biphasic.tasks.encoded.text import label_answers  # noqa: PLC0415

        return label_answers(task.labels)

    def prediction_columns(self, record: HeadRecord) -> dict[str, pa.DataType]:
        """Return a label, and probabilities by label."""
        import pyarrow as pa  # noqa: PLC0415

        return {"label": pa.string(), "probabilities": probabilities(record)}

    def predict(self, finetuned: FinetunedModel, examples: Sequence[str]) -> Predictions:
        """Return the most probable label."""
        from scipy.special import softmax  # noqa: PLC0415

        from biphasic.tasks.encoded.text import pooled_outputs  # noqa: PLC0415

        logits, num_cut = pooled_outputs(finetuned, examples)
        labels = finetuned.record.labels
        best = logits.argmax(axis=1).tolist()
        rows = [
            {"label": labels[number], "probabilities": dict(zip(labels, shares, strict=True))}
            for number, shares in zip(best, softmax(logits, axis=1).tolist(), strict=True)
        ]
        return rows, num_cut


def probabilities(record: HeadRecord) -> pa.DataType:
    """Return the type of probabilities by label."""
    import pyarrow as pa  # noqa: PLC0415

    return pa.struct([(label, pa.float64()) for label in record.labels])
