"""The model card of an exported encoder: content, use and training.

Every number comes from records or from the files. Unknown facts are omitted or marked to be filled
in. The text is in `card.md.j2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
)

from biphasic.analysis.text import amount, listing
from biphasic.export.cards.file import write_card
from biphasic.export.cards.results import scores_of_state
from biphasic.export.cards.training import objectives_of, training_facts
from biphasic.export.check import TOLERANCE, Reloaded
from biphasic.export.formats.hf import WrittenModel
from biphasic.export.source import Source
from biphasic.model.loading.directions import is_open

_MASKED = "mlm"
"""The objective whose head predicts a token at its own position; others predict the next one."""


@dataclass(frozen=True)
class Export:
    """Facts about an export for its card.

    Attributes:
        format: `hf`, `sentence-transformers` or `onnx`.
        written: Files that were written.
        reloaded: Result of the check against the source model.
        onnx: Largest difference between graph and exported model, relative to the largest state;
            None without a graph.
    """

    source: Source
    name: str
    format: str
    dtype: str
    written: WrittenModel
    reloaded: Reloaded
    onnx: float | None = None

    @property
    def config(self) -> PretrainedConfig:
        """Configuration of the exported model."""
        return self.written.config

    @property
    def fills_masks(self) -> bool:
        """Return whether `pipeline("fill-mask")` works and the head was trained to fill masks."""
        has_class = type(self.config) in MODEL_FOR_MASKED_LM_MAPPING
        return self.written.logits is not None and has_class and self._has_learnt_masks

    @property
    def _has_learnt_masks(self) -> bool:
        if self.source.state is None:
            return not self.written.was_decoder
        ledger = self.source.state.ledger
        return bool(ledger) and _MASKED in objectives_of(self.source.state.recipe, ledger[-1])


def write_export_card(folder: Path, export: Export) -> None:
    """Write the card of an export into its folder."""
    source, is_onnx = export.source, export.format == "onnx"
    facts: dict[str, Any] = {"state": source.state, "base_model": source.name}
    scores = []
    if source.state is not None:
        store = source.folder.resolve().parent.parent
        of_state, left_out = scores_of_state(store / "finetunes", source.state.identity)
        scores = [score.for_hub for score in of_state]
        facts |= {**training_facts(source.state, of_state, store=store), "left_out": left_out}
    write_card(
        folder,
        name=export.name,
        scores=scores,
        metadata=_metadata(export),
        export=export,
        dimensions=_dimensions(export),
        auto_classes=_auto_classes(export),
        # Old releases run these models causally without a warning.
        has_direction=not is_onnx and is_open(export.config),
        special_tokens=source.tokenizer.special_tokens,
        differences=listing([f"{k} {v:.0e}" for k, v in export.reloaded.differences.items()]),
        tolerance=TOLERANCE,
        **facts,
    )


def _metadata(export: Export) -> dict[str, Any]:
    has_pooling = export.format == "sentence-transformers"
    fills_masks = export.fills_masks and export.format == "hf"
    kinds = [export.format] if export.format != "hf" else []
    return {
        "library_name": "sentence-transformers" if has_pooling else "transformers",
        "pipeline_tag": "fill-mask" if fills_masks else "feature-extraction",
        "tags": ["encoder", "bidirectional", "biphasic", *kinds],
    }


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
