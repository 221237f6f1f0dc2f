"""Activations that are computed twice instead of being kept.

Reference: Chen et al. 2016, "Training deep nets with sublinear memory cost", arXiv:1604.06174.
"""

from __future__ import annotations

from transformers import PreTrainedModel

from biphasic.errors import ModelError


def recompute_activations(model: PreTrainedModel) -> None:
    """Let each layer keep its input alone, and compute the rest again in the backward pass.

    Results are the same to the last bit, dropout included. It holds while the model trains; in
    evaluation nothing is kept anyway.

    Raises:
        ModelError: The family's layers cannot.
    """
    if not model.supports_gradient_checkpointing:
        raise ModelError(
            f"{type(model).__name__} cannot compute activations twice; set "
            "activation_checkpointing: false, and max_tokens_per_pass to save memory"
        )
    # The name changed in transformers 5.2x; the older one warns there.
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})
