"""The model card: what an export is, how to use it, and what its records say of its making.

Every number comes from records or from the files themselves; what they do not know is left out, or
marked to be filled in.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
)

from biphasic.analysis.text import amount, listing
from biphasic.export.card_training import (
    base_model,
    data_section,
    heldout_section,
    is_hub_id,
    objectives_of,
    scores_section,
    training_section,
)
from biphasic.export.check import TOLERANCE, Reloaded
from biphasic.export.direction import direction_section
from biphasic.export.hf import WrittenModel
from biphasic.export.markdown import escape, section
from biphasic.export.names import CARD, FILL_IN
from biphasic.export.provenance import corpora_of
from biphasic.export.results import scores_of_state
from biphasic.export.source import Source
from biphasic.files import write_text
from biphasic.model.directions import is_open

"""The first release of transformers that heeds `is_causal` in a configuration."""
_MASKED = "mlm"
"""The objective whose head says at a token what it is itself; others', what the next one is."""


@dataclass(frozen=True)
class Export:
    """What a card is about.

    Attributes:
        source: The model that was exported.
        name: Of the folder.
        format: `hf`, `sentence-transformers` or `onnx`.
        dtype: Precision of the weights.
        written: What was written.
        found: How it was found to agree with ours.
        onnx: Largest difference of the graph from it, as a share of the largest state; None
            where there is no graph.
    """

    source: Source
    name: str
    format: str
    dtype: str
    written: WrittenModel
    found: Reloaded
    onnx: float | None = None

    @property
    def config(self) -> PretrainedConfig:
        """Of the exported model."""
        return self.written.config

    @property
    def fills_masks(self) -> bool:
        """Tell whether `pipeline("fill-mask")` works, and the head has learnt to fill masks."""
        has_class = type(self.config) in MODEL_FOR_MASKED_LM_MAPPING
        return self.written.has_head and has_class and self._has_learnt_masks

    @property
    def _has_learnt_masks(self) -> bool:
        if self.source.state is None:
            return not self.written.was_decoder
        ledger = self.source.state.record.ledger
        return bool(ledger) and _MASKED in objectives_of(self.source.state.recipe, ledger[-1])


def write_card(folder: Path, export: Export) -> None:
    """Write `README.md`."""
    write_text(folder / CARD, card(export))


def card(export: Export) -> str:
    """Return a model card in Markdown, with the hub's front matter."""
    parts = [
        _front_matter(export),
        f"# {escape(export.name)}",
        _what(export),
        _use(export),
        _direction(export),
        *_training(export),
        _limits(export),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(export: Export) -> str:
    has_pooling = export.format == "sentence-transformers"
    fills_masks = export.fills_masks and export.format == "hf"
    task = "fill-mask" if fills_masks else "feature-extraction"
    tags = ["encoder", "bidirectional", "biphasic"]
    tags += ["sentence-transformers"] if has_pooling else []
    tags += ["onnx"] if export.format == "onnx" else []
    lines = [
        f"language:  {FILL_IN}, e.g. en",
        f"license:  {FILL_IN}, e.g. apache-2.0",
        f"library_name: {'sentence-transformers' if has_pooling else 'transformers'}",
        f"pipeline_tag: {task}",
    ]
    state = export.source.state
    if state is not None and is_hub_id(state.recipe):
        lines.append(f"base_model: {base_model(state.recipe)}")
    elif state is None and "/" in export.source.name:
        lines.append(f"base_model: {export.source.name}")
    return "\n".join(["---", *lines, "tags:", *(f"- {tag}" for tag in tags), "---"])


def _what(export: Export) -> str:
    config = export.config
    facts = [
        f"{amount(export.written.num_parameters)} parameters ({export.dtype})",
        *_dimension(config, "num_hidden_layers", "layers"),
        *_dimension(config, "hidden_size", "wide"),
        *_dimension(config, "vocab_size", "tokens in the vocabulary"),
    ]
    limit = export.source.max_seqlen
    reach = f" It reads up to {limit:,} tokens." if limit else ""
    return (
        f"A bidirectional text encoder: every token sees those before and after it. Architecture "
        f"`{config.model_type}` (`{export.written.architecture}`), {listing(facts)}.{reach}"
    )


def _dimension(config: PretrainedConfig, name: str, words: str) -> list[str]:
    value = getattr(config, name, None)
    return [] if value is None else [f"{value:,} {words}"]


def _use(export: Export) -> str:
    return _use_graph() if export.format == "onnx" else _use_weights(export)


def _use_graph() -> str:
    return section(
        "How to use",
        "With onnxruntime, in this folder; torch is not needed.",
        _python(
            "import onnxruntime",
            "from transformers import AutoTokenizer",
            "",
            'tokenizer = AutoTokenizer.from_pretrained(".")',
            'session = onnxruntime.InferenceSession("onnx/model.onnx")',
            'batch = tokenizer(["One text.", "Another, longer text."], padding=True, '
            'return_tensors="np")',
            'inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}',
            'states, embeddings = session.run(["last_hidden_state", "sentence_embedding"], inputs)',
        ),
    )


def _use_weights(export: Export) -> str:
    name = f"OWNER/{export.name}"
    classes = [
        f"`{auto}`"
        for auto, mapping in (
            (
                "AutoModelForMaskedLM",
                MODEL_FOR_MASKED_LM_MAPPING if export.fills_masks else {},
            ),
            ("AutoModelForSequenceClassification", MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING),
            ("AutoModelForTokenClassification", MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING),
        )
        if type(export.config) in mapping
    ]
    return section(
        "How to use",
        _python(
            "from transformers import AutoModel, AutoTokenizer",
            "",
            f'tokenizer = AutoTokenizer.from_pretrained("{name}")',
            f'model = AutoModel.from_pretrained("{name}")',
            'batch = tokenizer(["One text.", "Another, longer text."], padding=True, '
            'return_tensors="pt")',
            "states = model(**batch).last_hidden_state",
            "mask = batch.attention_mask.unsqueeze(-1)",
            "embeddings = (states * mask).sum(1) / mask.sum(1)",
        ),
        _python(
            "from sentence_transformers import SentenceTransformer",
            "",
            f'model = SentenceTransformer("{name}")',
            'embeddings = model.encode(["One text.", "Another, longer text."])',
        )
        if export.format != "hf"
        else "",
        _python(
            "from transformers import pipeline",
            "",
            f'fill = pipeline("fill-mask", model="{name}")',
            'fill(f"The encoder reads {fill.tokenizer.mask_token} text.")',
        )
        if export.fills_masks
        else "",
        f"To fine-tune, load it with {' or '.join(classes)}." if classes else "",
    )


def _python(*lines: str) -> str:
    return "\n".join(["```python", *lines, "```"])


def _direction(export: Export) -> str:
    """Warn of releases that run the model causally without a word, where that can happen."""
    if export.format == "onnx" or not is_open(export.config):
        return ""
    return direction_section()


def _training(export: Export) -> list[str]:
    state = export.source.state
    if state is None:
        return [section("Training", f"Exported from `{escape(export.source.name)}`. (To fill in.)")]
    store = export.source.folder.resolve().parent.parent
    return [
        training_section(state),
        data_section(corpora_of(state, store=store)),
        heldout_section(state),
        scores_section(scores_of_state(store / "finetunes", state.record.identity)),
        _versions(state.record.environment),
    ]


def _versions(environment: dict[str, object]) -> str:
    libraries = environment.get("libraries")
    if not isinstance(libraries, dict):
        return ""
    made = {"biphasic": environment.get("biphasic"), **libraries}
    told = [f"{name} {version}" for name, version in made.items() if version]
    return section("Software", f"Trained with {listing(told)}.")


def _limits(export: Export) -> str:
    found = export.found
    lines = [
        "Inputs are framed as in training: the tokenizer puts "
        f"`{export.source.tokenizer.special_tokens['bos']}` before and "
        f"`{export.source.tokenizer.special_tokens['eos']}` behind them; pairs are joined by a "
        "line break. In text, the spelling of a special token is read as that token; with "
        "`AutoTokenizer.from_pretrained(..., split_special_tokens=True)` it stays text, as it did "
        "in training.",
        "It was pretrained, not tuned to follow instructions or to embed sentences: for most uses "
        "fine-tune it. It has learnt the errors and biases of its text.",
    ]
    if export.dtype != "float32":
        lines.append(
            f"Weights were rounded to {export.dtype} from fp32; what is compared below is rounded."
        )
    told = listing([f"{what} {largest:.0e}" for what, largest in found.differences.items()])
    lines.append(
        f"Checked when it was exported: loaded by transformers {found.transformers} alone, in "
        f"{found.precision} on a CPU, the largest differences from the model that was trained are: "
        f"{told} (allowed: {TOLERANCE:.0e} of the largest value, or of 1)."
    )
    if export.onnx is not None:
        lines.append(
            f"The ONNX graph, run by onnxruntime, differs from that by {export.onnx:.0e} at most."
        )
    return section("Limits", "\n".join(f"- {line}" for line in lines))
