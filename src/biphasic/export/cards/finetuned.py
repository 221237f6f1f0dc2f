"""The card of a fine-tuned model: its task, its scores and its use."""

from __future__ import annotations

import json
from pathlib import Path

from biphasic.analysis.text import metric_name, points, rate
from biphasic.export.cards.file import eval_result, pipeline_of, write_card
from biphasic.files import read_json
from biphasic.tasks.finetuned import HeadRecord
from biphasic.tasks.formats.templates import PAIR_TEMPLATE
from biphasic.tasks.records import TEXT_KINDS

_DOES = {
    "sc": "assigns one of {number} labels to a text",
    "ml": "assigns any of {number} labels to a text",
    "sr": "predicts a number for a text",
    "tc": "finds entities in a text",
    "qa": "finds the answer to a question in a context",
    "ir": "embeds queries and documents; related ones are close",
    "zs": "embeds queries and documents; related ones are close",
}
_CLASSES = {
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "separate-head": "AutoModel",
}


def write_fitted_card(folder: Path, record: HeadRecord, *, name: str, difference: float) -> None:
    """Write the card.

    `difference` is between transformers' outputs and ours, relative to the largest.
    """
    splits = {"validation": record.validation, "test": record.test}
    held = {split: metrics for split, metrics in splits.items() if metrics}
    metrics = [record.metric, *sorted({n for m in held.values() for n in m} - {record.metric})]
    is_pooled = record.kind in TEXT_KINDS
    template = record.template
    if is_pooled and not template and len(record.fields) > 1:
        template = PAIR_TEMPLATE
    has_pooling = record.form == "sentence-transformers"
    write_card(
        folder,
        name=name,
        scores=[
            eval_result(
                kind=record.kind,
                task=record.task,
                title=record.title,
                metric=metric,
                value=held[split][metric],
                split=split,
            )
            for split in held
            for metric in metrics
            if metric in held[split]
        ],
        base_model=record.model,
        metadata={
            "library_name": "sentence-transformers" if has_pooling else "transformers",
            "pipeline_tag": pipeline_of(record.kind),
        },
        record=record,
        does=_DOES[record.kind].format(number=len(record.labels)),
        auto_class=_CLASSES.get(record.form),
        is_pooled=is_pooled,
        template=json.dumps(template, ensure_ascii=False) if is_pooled and template else "",
        splits=[*held],
        score_rows=[
            [metric_name(name), *(points(m[name]) if name in m else "" for m in held.values())]
            for name in metrics
        ],
        learning_rate=rate(record.learning_rate),
        difference=difference,
        # Old releases run these models causally without a warning.
        has_direction=read_json(folder / "config.json").get("is_causal") is False,
    )
