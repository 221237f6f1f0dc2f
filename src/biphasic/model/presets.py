"""Sizes of the EuroBERT architecture: the study's three, and small ones for a CPU."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt, model_validator

from biphasic.config import Config

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
