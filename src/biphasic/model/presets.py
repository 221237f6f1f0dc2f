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
# parameters without the language-model head.
PRESETS: dict[str, Architecture] = {
    "pico": Architecture(
        num_layers=2, hidden_size=64, intermediate_size=160, num_heads=2, num_key_value_heads=1
    ),
    "nano": Architecture(
        num_layers=4, hidden_size=192, intermediate_size=512, num_heads=3, num_key_value_heads=3
    ),
    "micro": Architecture(
        num_layers=6, hidden_size=384, intermediate_size=1024, num_heads=6, num_key_value_heads=2
    ),
    "210m": Architecture(
        num_layers=12, hidden_size=768, intermediate_size=3072, num_heads=12, num_key_value_heads=12
    ),
    "610m": Architecture(
        num_layers=26, hidden_size=1152, intermediate_size=4096, num_heads=18, num_key_value_heads=6
    ),
    "1b": Architecture(
        num_layers=28, hidden_size=1728, intermediate_size=5120, num_heads=18, num_key_value_heads=6
    ),
}
