"""Multi-label classification: any labels for a text, or for a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from biphasic.facts import FIRST_KINDS
from biphasic.tasks.kinds.classification import probabilities
from biphasic.tasks.kinds.examples import LABELS
from biphasic.tasks.kinds.kind import Predictions
from biphasic.tasks.kinds.text import TEMPLATE, TextKind
from biphasic.tasks.records import ExampleTask, MultiLabelText
from biphasic.tasks.rows.labels import Labels, found_labels, single_labels
from biphasic.tasks.rows.row import Row

if TYPE_CHECKING:
    import pyarrow as pa

    from biphasic.tasks.encoded.text import Answers
    from biphasic.tasks.finetuned import FinetunedModel, HeadRecord


class MultiLabel(TextKind):
    """Any labels per text; a sigmoid each, and those above one half are predicted."""

    name = "ml"
    facts = FIRST_KINDS["ml"]
    settings: ClassVar[tuple[str, ...]] = (TEMPLATE, LABELS)
    columns = ("id", "text", "labels")
    answer = "labels"
    usual_answers = (("labels",), ("label",))
    does = "assigns any of {number} labels to a text"
    problem_type = "multi_label_classification"
    output_note = "A label applies if its output is above 0, a probability above one half."

    def parse(self, row: Row, *, labels: Sequence[str], template: str | None) -> MultiLabelText:
        """Return a text and the numbers of its labels."""
        numbers = row.items("labels", int)
        for number in numbers:
            if not 0 <= number < len(labels):
                raise row.error(f"unknown label {number}; labels.json has 0 to {len(labels) - 1}")
            if numbers.count(number) > 1:
                raise row.error(f"the label {number} ('{labels[number]}') is given twice")
        return MultiLabelText(row.id(), self.text(row, template), tuple(numbers))

    def found_labels(self, rows: Sequence[Row], *, source: str) -> Labels:
        """Return the labels, sorted."""
        singles = (single for row in rows for single in single_labels(row, "labels"))
        return found_labels(singles, "labels", source=source)

    def canonical(self, row: Row, labels: Labels | None) -> dict[str, Any]:
        """Return the labels as numbers."""
        if not labels:
            return {}
        singles = single_labels(row, "labels")
        return {"labels": [labels.number(single, "labels") for single in singles]}

    def answers(self, task: ExampleTask) -> Answers:
        """Return the sets of labels."""
        from biphasic.tasks.encoded.text import label_set_answers  # noqa: PLC0415

        return label_set_answers(task.labels)

    def prediction_columns(self, record: HeadRecord) -> dict[str, pa.DataType]:
        """Return labels, and probabilities by label, which do not add up to one."""
        import pyarrow as pa  # noqa: PLC0415

        return {"labels": pa.list_(pa.string()), "probabilities": probabilities(record)}

    def predict(self, finetuned: FinetunedModel, examples: Sequence[str]) -> Predictions:
        """Return the labels with a probability above one half."""
        from scipy.special import expit  # noqa: PLC0415

        from biphasic.tasks.encoded.text import pooled_outputs, predicted_labels  # noqa: PLC0415

        logits, num_cut = pooled_outputs(finetuned, examples)
        names = finetuned.record.labels
        rows = [
            {
                "labels": [name for name, holds in zip(names, row, strict=True) if holds],
                "probabilities": dict(zip(names, shares, strict=True)),
            }
            for row, shares in zip(
                predicted_labels(logits).tolist(), expit(logits).tolist(), strict=True
            )
        ]
        return rows, num_cut
