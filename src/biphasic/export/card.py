"""Model cards, by `card.md.j2`: every number comes from records or from the files."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
)

from biphasic.amounts import amount, points, rate
from biphasic.analysis.statistics.doubts import baseline_sentences
from biphasic.analysis.tables.markup import markdown_text
from biphasic.analysis.text import flat, listing
from biphasic.export.check import TOLERANCE, Reloaded
from biphasic.export.hf import WrittenModel
from biphasic.export.output import FILL_IN
from biphasic.export.source import Source
from biphasic.export.training_facts import TaskScore, scores_of_state, training_facts
from biphasic.facts import KindFacts
from biphasic.files import read_json, write_text
from biphasic.model.loading.directions import is_open
from biphasic.records import objectives_of
from biphasic.store import CARD, RESULT
from biphasic.tasks.kinds.kind import Facts
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.records import HeadRecord
from biphasic.tasks.rows.templates import PAIR_TEMPLATE
from biphasic.tasks.trained_vectors import TrainedVectors

_TEMPLATE = Path(__file__).with_name("card.md.j2")
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
# Hub ids of our metrics, where they differ.
_METRIC_IDS = {"matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
# The objective whose head predicts a token at its own position; others predict the next one.
_MASKED = "mlm"
_CLASSES = {
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
}


@dataclass(frozen=True)
class Export:
    """Facts about an export for its card."""

    source: Source
    name: str
    format: str  # `hf`, `sentence-transformers` or `onnx`
    dtype: str
    vectors: TrainedVectors  # how the folder makes vectors of texts
    written: WrittenModel  # files that were written
    reloaded: Reloaded  # result of the check against the source model
    # Largest difference between graph and exported model, relative to the largest state; None
    # without a graph.
    onnx: float | None = None

    @property
    def config(self) -> PretrainedConfig:
        """Configuration of the exported model."""
        return self.written.config

    @property
    def fills_masks(self) -> bool:
        """Return whether `pipeline("fill-mask")` works and the head was trained to fill masks."""
        state = self.source.state
        if self.written.logits is None or type(self.config) not in MODEL_FOR_MASKED_LM_MAPPING:
            return False
        if state is None:
            return not self.written.was_decoder
        return bool(state.ledger) and _MASKED in objectives_of(state.recipe, state.ledger[-1])


def write_export_card(folder: Path, export: Export) -> None:
    """Write the card of an export into its folder."""
    source, is_hf = export.source, export.format == "hf"
    has_pooling = export.format == "sentence-transformers"
    # A model that was trained to read from left to right gives other vectors in both directions.
    as_trained = TrainedVectors.of(source.state)
    facts: dict[str, Any] = {"state": source.state, "base_model": source.name}
    scores = []
    if source.state is not None:
        store = source.folder.resolve().parent.parent
        of_state, left_out = scores_of_state(store / RESULT.place, source.state.identity)
        scores = [_mean_score(score) for score in of_state]
        trained = training_facts(source.state, of_state, store=store, tokenizer=source.tokenizer)
        is_tuned = any(score.results[0].facts.is_trained for score in of_state)
        facts |= {**trained, "left_out": left_out, "is_tuned": is_tuned}
    _write_card(
        folder,
        name=export.name,
        scores=scores,
        metadata={
            "library_name": "sentence-transformers" if has_pooling else "transformers",
            "pipeline_tag": "fill-mask" if export.fills_masks and is_hf else "feature-extraction",
            "tags": [
                "encoder",
                *([] if export.vectors.causal else ["bidirectional"]),
                "biphasic",
                *([] if is_hf else [export.format]),
            ],
        },
        export=export,
        vectors=as_trained if as_trained.causal == export.vectors.causal else export.vectors,
        dimensions=_dimensions(export),
        auto_classes=_auto_classes(export),
        # Old releases run these models causally without a warning.
        has_direction=export.format != "onnx" and is_open(export.config),
        special_tokens=source.tokenizer.special_tokens,
        differences=listing([f"{k} {v:.0e}" for k, v in export.reloaded.differences.items()]),
        tolerance=TOLERANCE,
        **facts,
    )


def _mean_score(score: TaskScore) -> EvalResult:
    """Return the mean on test for the hub, with a note on what it averages."""
    seeds, result = score.estimate.num_seeds, score.results[0]
    is_mean = result.facts.is_trained and seeds > 1
    return _eval_result(
        kind=result.kind,
        facts=result.facts,
        task=result.task,
        title=result.task,
        metric=result.metric,
        value=score.estimate.mean,
        split="test",
        note=(f" after fine-tuning on {result.trained_on}" if result.trained_on else "")
        + (f", mean over {seeds} seeds" if is_mean else ""),
    )


def _dimensions(export: Export) -> str:
    words = {
        "num_hidden_layers": "layers",
        "hidden_size": "wide",
        "vocab_size": "tokens in the vocabulary",
    }
    sizes = {name: getattr(export.config, name, None) for name in words}
    return listing(
        [
            f"{amount(export.written.num_parameters)} parameters ({export.dtype})",
            *(f"{size:,} {words[name]}" for name, size in sizes.items() if size is not None),
        ]
    )


def _auto_classes(export: Export) -> list[str]:
    """Return the transformers classes that can fine-tune the model."""
    classes = {
        "AutoModelForMaskedLM": MODEL_FOR_MASKED_LM_MAPPING if export.fills_masks else {},
        "AutoModelForSequenceClassification": MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
        "AutoModelForTokenClassification": MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    }
    return [name for name, mapping in classes.items() if type(export.config) in mapping]


def write_fitted_card(folder: Path, record: HeadRecord, *, name: str, difference: float) -> None:
    """Write the card; `difference` is between transformers' outputs and ours, as a share."""
    splits = {"validation": record.validation, "test": record.test}
    held = {split: metrics for split, metrics in splits.items() if metrics}
    metrics = [record.metric, *sorted({n for m in held.values() for n in m} - {record.metric})]
    kind = KINDS[record.kind]
    baselines: Iterable[str] = ()
    if record.baselines and record.test:
        in_points = {name: 100 * share for name, share in record.baselines.items()}
        baselines = baseline_sentences(in_points, 100 * record.test[record.metric])
    template = record.template
    if kind.facts.is_pooled and not template and len(record.fields) > 1:
        template = PAIR_TEMPLATE
    has_pooling = record.form == "sentence-transformers"
    _write_card(
        folder,
        name=name,
        scores=[
            _eval_result(
                kind=kind.name,
                facts=kind.facts,
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
            "pipeline_tag": kind.facts.pipeline,
            "tags": ["custom_code"] if record.needs_code else None,
        },
        record=record,
        kind=kind,
        does=kind.facts.does.format(number=len(record.labels)),
        auto_class=_CLASSES.get(record.form),
        template=json.dumps(template, ensure_ascii=False)
        if kind.facts.is_pooled and template
        else "",
        reads_pairs=kind.facts.is_pooled and len(record.fields) > 1,
        splits=[*held],
        score_rows=[
            [
                kind.facts.metric(name).title,
                *(points(m[name]) if name in m else "" for m in held.values()),
            ]
            for name in metrics
        ],
        baselines="; ".join(baselines),
        learning_rate=rate(record.learning_rate),
        difference=difference,
        # Old releases run these models causally without a warning.
        has_direction=read_json(folder / "config.json").get("is_causal") is False,
    )


def _write_card(
    folder: Path,
    *,
    name: str,
    scores: Sequence[EvalResult],
    base_model: str | None,
    metadata: Mapping[str, Any],
    **facts: Any,
) -> None:
    """Fill the template with `facts` and write `README.md`."""
    data = ModelCardData(
        base_model=base_model if base_model and _HUB_ID.fullmatch(base_model) else None,
        model_name=flat(name) if scores else None,
        eval_results=[*scores] or None,
        **metadata,
    )
    card = ModelCard.from_template(
        data, template_path=str(_TEMPLATE), name=name, **_WRITERS, **facts
    )
    card.text = re.sub(r"\n{3,}", "\n\n", card.text).rstrip() + "\n"
    # YAML libraries write no comments; the owner fills in these fields.
    blank = f"language:  {FILL_IN}, e.g. en\nlicense:  {FILL_IN}, e.g. apache-2.0"
    write_text(folder / CARD, card.content.replace("\n---\n", f"\n{blank}\n---\n", 1))


def _eval_result(
    *,
    kind: str,
    facts: KindFacts,
    task: str,
    title: str,
    metric: str,
    value: float,
    split: str,
    note: str = "",
) -> EvalResult:
    """Return a score in the hub's format: a share from 0 to 1, as `evaluate` reports metrics."""
    # Results may be of a kind that is not installed here.
    known = KINDS[kind].facts if kind in KINDS else Facts("", ())
    return EvalResult(
        task_type=known.hub_task or known.pipeline,
        task_name=facts.title,
        dataset_type=flat(task),
        dataset_name=flat(title),
        dataset_split=split,
        metric_type=_METRIC_IDS.get(metric, flat(metric)),
        metric_name=flat(f"{facts.metric(metric).title}{note}"),
        metric_value=round(value, 6),
    )


def code(text: str) -> str:
    """Return text in backticks, using more of them than its longest run."""
    text = flat(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int) -> str:
    """Return a Markdown table whose last `numbers` columns hold numbers."""
    rules = ["---"] * (len(header) - numbers) + ["---:"] * numbers
    texts = [[markdown_text(cell) for cell in row] for row in (header, *rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (texts[0], rules, *texts[1:]))


_WRITERS = {
    "text": markdown_text,
    "code": code,
    "string": repr,
    "shell": lambda word: shlex.quote(flat(word)),
    "table": table,
}
