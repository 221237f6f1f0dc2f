"""The fine-tuning protocol: all of its constants, and its learning-rate schedule."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from biphasic.config import Config
from biphasic.data.packing import Attention, Batching
from biphasic.facts import KindFacts
from biphasic.model.shape import Lora
from biphasic.objectives.lr import LearningRateConfig
from biphasic.training.optimizers.adamw import AdamW
from biphasic.training.recipe import FinetunePrecision

# Fields added later; a fine-tuning's identity includes them only if they are not the default.
_ADDED = (
    "attention",
    "batching",
    "head",
    "reading",
    "train_examples",
    "pooling",
    "train",
    "layer",
    "lora",
)
_OPTIMIZER_NAMES = {
    "beta1": "adam_beta1",
    "beta2": "adam_beta2",
    "epsilon": "adam_epsilon",
    "weight_decay": "weight_decay",
    "max_gradient_norm": "max_gradient_norm",
}  # names of the optimizer's settings in identities: those of the first fine-tunings

Layer = NonNegativeInt | Literal["best"] | None
Reading = Literal["clm", "mlm", "mntp"]  # how a language model gives a sentence a probability

WINDOW_OVERLAP = 64  # tokens
SIMILARITY_SCALE = 20.0  # of cosines before the softmax of retrieval: 1 / temperature
PAPER_STEPS = 1000  # of a fine-tuning at most, in arXiv:2507.00994
FEW_STEPS = PAPER_STEPS // 10  # fewer steps than these are reported
FINETUNING_VERSION = 3  # increase by hand whenever the same fine-tuning would give different scores


def probe_title(layer: Layer) -> str:
    """Return what reports call a probe of a layer."""
    if layer is None:
        return "linear probe"
    return f"linear probe of {'the best layer' if layer == 'best' else f'layer {layer}'}"


class FinetuneProtocol(Config):
    """Fine-tuning as in the reference study, arXiv:2507.00994, section 2 and appendix A."""

    train: Literal["all", "head"] = "all"
    """all: train encoder and head by gradient steps; head: a probe. The encoder is frozen, and a
    linear model on its states (of sc, ml, sr, tc) is fitted, its strength chosen by validation."""
    layer: Layer = None
    """Probes: the layer whose states are read, 0 for the embeddings; best: the one with the best
    validation score. By default the last, after the final norm."""
    lora: Annotated[Lora | None, Field(exclude_if=lambda lora: lora is None)] = None
    """Train low-rank additions to the encoder's matrices in place of its weights, with the head."""
    max_steps: PositiveInt = PAPER_STEPS
    """Maximum optimizer steps of a run."""
    max_epochs: PositiveInt = 1
    """Maximum passes over the training data."""
    batch_size: PositiveInt = 32
    """Texts, sentences, windows or pairs per optimizer step."""
    train_examples: PositiveInt | None = None
    """Training examples that a run reads, chosen by its seed: all encoders read the same ones, and
    16 are among 64. By default all."""
    max_seqlen: int = Field(default=2048, ge=8)
    """Maximum sequence length in tokens, including special tokens; longer ones are cut. `biphasic
    evaluate` uses the model's own limit by default."""
    batching: Batching = "packed"
    """packed: rows hold several sequences, kept apart by our attention function; padded: one
    sequence per row, with the model's own attention. Scores are the same; encoders with another
    kind of attention (DeBERTa, MPNet) need padding."""
    attention: Attention = "bidirectional"
    """bidirectional: every token attends to the whole text, as in the study; causal: only to
    earlier tokens, for a decoder as it is. Causal needs packed batching."""
    head: Literal["linear", "dense"] = "linear"
    """Head of sc, ml and sr on the mean of a text's states: linear, or dense as in the study: a
    layer as wide as the model, GELU, then the linear layer. Other kinds are linear."""
    warmup_fraction: float = Field(default=0.1, ge=0, lt=1)
    """Share of the steps used for learning-rate warmup."""
    optimizer: AdamW = AdamW()
    """AdamW, with the study's constants. The study does not state the gradient norm; 1 is the
    default of the trainer that its public configurations are written for."""
    precision: FinetunePrecision = "fp32"
    """Compute precision. With fp32 and bf16, weights are kept in fp32; with paper, as in the study,
    weights, gradients and AdamW's moments are all bf16."""
    retrieval_corpus: Literal["full", "judged"] = "full"
    """Retrieval: search all documents or, as in the study, only those with judgements in validation
    or test."""
    pooling: Literal["mean", "first", "last"] = "mean"
    """Zero-shot retrieval and similarity: the state that stands for a text, the mean of all or that
    of the first or last token. Fine-tuning uses the mean."""
    max_question_tokens: PositiveInt = 64
    """Question answering: maximum question tokens; longer ones are cut."""
    window_overlap: NonNegativeInt = WINDOW_OVERLAP
    """Tokens shared by neighbouring windows: of a context in question answering, and of long texts
    in `biphasic predict`, where they are half a window at most."""
    max_answer_tokens: PositiveInt | None = None
    """Question answering: maximum answer length in tokens; by default that of the longest answer of
    the training split, also with `train_examples`: all runs have the same."""

    reading: Reading | None = None
    """Minimal pairs: clm predicts tokens from left to right; mlm hides each token and predicts it
    from the others; mntp predicts it from the position before. By default the model's last
    objective."""

    @model_validator(mode="after")
    def _check_attention(self) -> Self:
        if self.is_causal and self.batching == "padded":
            raise ValueError("attention: causal needs batching: packed")
        if self.is_causal and self.reading in {"mlm", "mntp"}:
            raise ValueError(f"reading: {self.reading} needs attention: bidirectional")
        if self.is_probe and (self.head == "dense" or self.precision == "paper"):
            raise ValueError("train: head needs head: linear and precision: fp32 or bf16")
        if self.lora is not None and (self.is_probe or self.precision == "paper"):
            raise ValueError("lora needs train: all and precision: fp32 or bf16")
        if self.layer is not None and not self.is_probe:
            raise ValueError(f"layer: {self.layer} needs train: head")
        return self

    @property
    def is_causal(self) -> bool:
        """True if tokens attend only to earlier ones."""
        return self.attention == "causal"

    @property
    def is_probe(self) -> bool:
        """True if the encoder is frozen and a linear model is fitted on its states."""
        return self.train == "head"

    def facts(self, kind: KindFacts) -> KindFacts:
        """Return the facts of a kind under this protocol: a probe on all examples has no seed."""
        if not (self.is_probe and kind.is_trained):
            return kind
        is_drawn = self.train_examples is not None
        return replace(kind, title=f"{kind.title}, {probe_title(self.layer)}", is_trained=is_drawn)

    @staticmethod
    def paper(max_positions: int) -> dict[str, Any]:
        """Return the settings in which the study's fine-tuning differs from our defaults."""
        return {
            "max_seqlen": round(0.99 * max_positions),
            "precision": "paper",
            "retrieval_corpus": "judged",
            "head": "dense",
        }

    def has_dense_head(self, *, is_pooled: bool) -> bool:
        """Return whether a head has a layer before its linear one: only one of pooled states."""
        return self.head == "dense" and is_pooled

    def num_steps(self, num_read: int) -> int:
        """Return the number of optimizer steps of a run that reads `num_read` training items."""
        if self.is_probe:
            return 0
        return min(self.max_steps, self.max_epochs * math.ceil(num_read / self.batch_size))

    def num_read(self, num_train: int) -> int:
        """Return how many of `num_train` training examples a run reads."""
        return self.train_examples or num_train

    def schedule(self, learning_rate: float, *, num_steps: int) -> LearningRateConfig:
        """Return a schedule of `num_steps`: linear warmup, then linear decay to zero."""
        # 0.07 * 100 is slightly more than 7 in floating point.
        warmup_steps = math.ceil(self.warmup_fraction * num_steps - 1e-9)
        return LearningRateConfig(
            peak=learning_rate, warmup_steps=warmup_steps, decay_steps=num_steps - warmup_steps
        )

    def determinants(self, *, is_pooled: bool) -> dict[str, Any]:
        """Return the constants that determine the identity of a fine-tuning."""
        # A field added later keeps old identities: it is omitted while it has its default, which
        # keeps the old behaviour. So is a head that only kinds with pooled states have.
        settings = {
            name: value
            for name, value in self.model_dump(exclude={"optimizer"}).items()
            if (name not in _ADDED or value != type(self).model_fields[name].default)
            and (name != "head" or self.has_dense_head(is_pooled=is_pooled))
        }
        if self.lora is not None:
            settings["lora"] = self.lora.determinants()
        optimizer = self.optimizer
        constants = {old: getattr(optimizer, new) for new, old in _OPTIMIZER_NAMES.items()}
        return {**settings, **constants, "similarity_scale": SIMILARITY_SCALE}

    def scoring_determinants(self, *, is_zero_shot: bool) -> dict[str, Any]:
        """Return what identifies the scores on a task that is not itself trained on."""
        # Only fields that affect how texts are encoded count. How the encoder computes is set by
        # the protocol of the task it was fine-tuned on, if any.
        names = {"max_seqlen", "retrieval_corpus"}
        if is_zero_shot:
            names |= {"precision", "batching", "attention", "reading", "pooling"}
        determinants = self.determinants(is_pooled=False)
        return {name: value for name, value in determinants.items() if name in names}
