"""Recomputes activations instead of storing them.

Reference: Chen et al. 2016, "Training deep nets with sublinear memory cost", arXiv:1604.06174.
"""

from __future__ import annotations

from transformers import PreTrainedModel

from biphasic.errors import ModelError


def recompute_activations(model: PreTrainedModel) -> None:
    """Make each layer store only its input and recompute the rest in the backward pass.

    Results are bitwise the same, including dropout. It applies to training only; evaluation stores
    no activations anyway.

    Raises:
        ModelError: The family's layers do not support it.
    """
    if not model.supports_gradient_checkpointing:
        raise ModelError(
            f"{type(model).__name__} does not support activation checkpointing; set "
            "activation_checkpointing: false, and max_tokens_per_pass to save memory"
        )
    # transformers 5.2x renamed this; the old name warns there.
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})
