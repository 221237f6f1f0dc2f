"""Sizes of a model's matrices; with the rows, they determine the FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from biphasic.config import Config
from biphasic.data.packing import PackedBatch

PresetName = Literal["pico", "nano", "micro", "210m", "610m", "1b"]


class Architecture(Config):
    """Dimensions of a model; everything else is shared (`build.architecture_config`)."""

    num_layers: PositiveInt
    """Transformer layers."""
    hidden_size: PositiveInt
    """Width of the residual stream."""
    intermediate_size: PositiveInt
    """Width of the SwiGLU layer."""
    num_heads: PositiveInt
    """Query heads; the head dimension is `hidden_size / num_heads`."""
    num_key_value_heads: PositiveInt
    """Key and value heads, shared by groups of query heads."""

    @model_validator(mode="after")
    def _divides(self) -> Architecture:
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(
                f"hidden_size {self.hidden_size} must be a multiple of 2 x num_heads "
                f"{self.num_heads}: rotary embeddings need an even head dimension"
            )
        if self.num_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_heads {self.num_heads} must be a multiple of num_key_value_heads "
                f"{self.num_key_value_heads}"
            )
        return self


class Lora(Config):
    """Low-rank additions to a model's matrices, which train in place of its weights."""

    rank: Annotated[int, Field(gt=0, le=4096)]
    """Rank of each addition."""
    alpha: PositiveFloat | None = None
    """Additions are scaled by alpha / rank; by default alpha is twice the rank."""
    targets: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Linear layers that get one, such as `q_proj`, by the end of their names; by default all in
    the model's layers, without the language-model head."""

    @property
    def scale(self) -> float:
        """Alpha, resolved."""
        return 2.0 * self.rank if self.alpha is None else self.alpha

    def determinants(self) -> dict[str, Any]:
        """Return what is hashed."""
        return {"rank": self.rank, "alpha": self.scale, "targets": sorted({*self.targets})}


# 210m, 610m and 1b: arXiv 2507.00994, Appendix A. They hold 211.8, 607.9 and 1,187.9 million
# parameters without the language-model head. The numbers are the fields of `Architecture`.
_SIZES: dict[str, tuple[int, ...]] = {
    "pico": (2, 64, 160, 2, 1),
    "nano": (4, 192, 512, 3, 3),
    "micro": (6, 384, 1024, 6, 2),
    "210m": (12, 768, 3072, 12, 12),
    "610m": (26, 1152, 4096, 18, 6),
    "1b": (28, 1728, 5120, 18, 6),
}
PRESETS = {
    name: Architecture(**dict(zip(Architecture.model_fields, sizes, strict=True)))
    for name, sizes in _SIZES.items()
}


# Logits that the head stores at once: 128 MiB in bf16. Matrix products over few tokens are slow,
# and each group adds to the weight's whole gradient: at 131,072 entries, four groups take a quarter
# of the time of groups of 16 tokens.
GROUP_LOGITS = 1 << 26
# Attention by document on a CPU keeps the fp32 weights of queries that read at most so many keys;
# bf16 rows that are not longer are read as a whole.
KEPT_KEYS = 256
# Modules whose weight holds several matrices, by type of model.
FUSED: Mapping[str, tuple[str, ...]] = {
    "modernbert": ("Wqkv", "Wi"),
    "modernbert-decoder": ("Wi",),
    "phi3": ("qkv_proj", "gate_up_proj"),
    "glm": ("gate_up_proj",),
    "glm4": ("gate_up_proj",),
    "gpt2": ("c_attn",),
    "gpt_bigcode": ("c_attn",),
    "gpt_neox": ("query_key_value",),
    "persimmon": ("query_key_value",),
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Weights and widths that determine the cost of an update."""

    # Weights that each token is multiplied with: only active experts count, and shared layers count
    # each time they run.
    body: int
    head: int  # Weights that each supervised token is multiplied with
    attention_width: int  # query heads times their dimension, in each layer
    # Pairs of a reach (how many tokens a layer attends to on each side, None for all) and the
    # number of such layers.
    reaches: tuple[tuple[int | None, int], ...]

    def update_flops(self, rows: PackedBatch, *, supervised_tokens: int, causal: bool) -> int:
        """Count the operations of one update, whose backward pass costs two forward passes."""
        # The optimizer is omitted, as is usual (Kaplan et al. 2020, arXiv:2001.08361, section 2.1),
        # and frozen parameters count like trained ones.
        return 3 * self.forward_flops(rows, supervised_tokens=supervised_tokens, causal=causal)

    def forward_flops(self, rows: PackedBatch, *, supervised_tokens: int, causal: bool) -> int:
        """Count the operations of matrix products in one forward pass, two per multiply-add."""
        # Attention uses the true lengths of the sequences and the windows of the layers; norms,
        # softmax and look-ups are omitted.
        lengths = (rows.spans[:, 1] - rows.spans[:, 0]).astype(np.int64)
        pairs = sum(count * _pairs(lengths, reach, causal=causal) for reach, count in self.reaches)
        weights = self.body * int(lengths.sum()) + self.head * supervised_tokens
        return 2 * weights + 2 * 2 * self.attention_width * pairs


def architecture_shape(architecture: Architecture, *, vocab_size: int) -> ModelShape:
    """Return the shape of a preset's model, without building it."""
    width = architecture.hidden_size
    key_value_width = width // architecture.num_heads * architecture.num_key_value_heads
    matrices = 2 * width * width + 2 * width * key_value_width
    matrices += 3 * width * architecture.intermediate_size
    return ModelShape(
        body=architecture.num_layers * matrices,
        head=width * vocab_size,
        attention_width=width,
        reaches=((None, architecture.num_layers),),
    )


def lora_parameters(architecture: Architecture, lora: Lora) -> int:
    """Count what LoRA adds to a preset's model."""
    width, inner = architecture.hidden_size, architecture.intermediate_size
    shared = width // architecture.num_heads * architecture.num_key_value_heads
    sizes = {  # inputs and outputs
        ".self_attn.q_proj": width + width,
        ".self_attn.k_proj": width + shared,
        ".self_attn.v_proj": width + shared,
        ".self_attn.o_proj": width + width,
        ".mlp.gate_proj": width + inner,
        ".mlp.up_proj": width + inner,
        ".mlp.down_proj": inner + width,
    }
    ends = tuple(f".{target}" for target in lora.targets) or ("",)
    total = sum(size for name, size in sizes.items() if name.endswith(ends))
    return architecture.num_layers * lora.rank * total


def fused_rows(config: Any) -> dict[str, tuple[int, ...]]:
    """Return the rows of the matrices in one weight, in order, by the name of its module.

    Weights with a multiple of these rows repeat them, head by head.
    """
    names = FUSED.get(config.model_type, ())
    if not names:
        return {}
    hidden, heads = config.hidden_size, config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    keys = head_dim * (getattr(config, "num_key_value_heads", None) or heads)
    halves = (getattr(config, "intermediate_size", 0),) * 2
    rows = {
        "Wqkv": (hidden, hidden, hidden),
        "c_attn": (hidden, hidden, hidden),  # of GPT-2
        "qkv_proj": (heads * head_dim, keys, keys),
        "query_key_value": (head_dim, head_dim, head_dim),
        "Wi": halves,
        "gate_up_proj": halves,
    }
    if config.model_type == "gpt_bigcode":
        rows["c_attn"] = (hidden if config.multi_query else head_dim, head_dim, head_dim)
    return {name: rows[name] for name in names}


def _pairs(lengths: np.ndarray, reach: int | None, *, causal: bool) -> int:
    """Count the pairs of tokens that attend to each other."""
    seen = lengths if reach is None else np.minimum(lengths, reach + 1)
    # The first tokens attend to ever more earlier ones and themselves, the others to `seen` each.
    before = int((seen * (seen + 1) // 2 + (lengths - seen) * seen).sum())
    return before if causal else 2 * before - int(lengths.sum())
