"""The language-model head of any family, applied to chosen positions.

Decoders multiply by a matrix; encoders put a small transform before it and a bias after it; Gemma 2
caps the logits. A head that does anything else is detected by comparison with the model's own
logits, and refused: we would train another function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from biphasic.data.packing import pack_sequences
from biphasic.errors import ModelError
from biphasic.model.compute.forward import (
    activation_dtype,
    first_pass,
    hidden_states,
    packed_arguments,
    probing,
)
from biphasic.seeds import stream

_PROBE_TOKENS = 6
_TOLERANCE = 1e-4  # relative to the largest logit, in fp32


@dataclass(frozen=True, slots=True)
class LanguageModelHead:
    """Computes logits from final states: `cap(transform(states) @ weight.T + bias)`."""

    weight: Tensor  # [vocab_size, hidden_size]; the input embeddings if they are tied
    bias: Tensor | None  # [vocab_size], or None
    # Largest absolute logit, `softcap * tanh(logit / softcap)`; None without a cap.
    softcap: float | None
    # From and to [..., hidden_size]; None for the identity.
    transform: Callable[[Tensor], Tensor] | None
    dtype: torch.dtype  # of the transform; with mixed precision, tied weights have another

    def logits(self, states: Tensor) -> Tensor:
        """Return the capped logits in fp32, [..., vocab_size], of states [..., hidden_size]."""
        dtype = self.weight.dtype
        inputs = self.transformed(states.to(self.dtype)).to(dtype)
        bias = None if self.bias is None else self.bias.to(dtype)
        logits = functional.linear(inputs, self.weight, bias).float()
        return logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh()

    def transformed(self, states: Tensor) -> Tensor:
        """Return the input of the product with the weight."""
        return states if self.transform is None else self.transform(states)


def language_model_head(model: PreTrainedModel) -> LanguageModelHead:
    """Return the parts of a model's head."""
    output = model.get_output_embeddings()
    if output is None:
        raise ModelError(f"{type(model).__name__} has no language-model head")
    return LanguageModelHead(
        weight=output.weight,
        bias=getattr(output, "bias", None),
        softcap=getattr(model.config, "final_logit_softcapping", None),
        transform=_transform(model),
        dtype=activation_dtype(model),
    )


def has_head(model: PreTrainedModel) -> bool:
    """Return whether a model is more than a body."""
    return model.base_model is not model or model.get_output_embeddings() is not None


@probing
@torch.no_grad()
def check_head(model: PreTrainedModel) -> None:
    """Compare the logits of `language_model_head` with the model's own on a few tokens."""
    # The model is in fp32, as loaded; with mixed precision only our head works.
    if model.base_model is model:
        raise ModelError(
            f"{type(model).__name__}: transformers does not separate its body and its "
            "language-model head, so this family cannot be trained"
        )
    was_training = model.training
    model.eval()
    try:
        draws = stream("head", 0).random_raw(_PROBE_TOKENS) % np.uint64(model.config.vocab_size)
        tokens = [draws.astype(np.int64)]
        batch = pack_sequences(tokens, row_length=_PROBE_TOKENS, pad_id=0)
        with first_pass(model):
            theirs = model(**packed_arguments(model, batch, causal=True)).logits.flatten(0, 1)
            states, head = hidden_states(model, batch, causal=True), language_model_head(model)
            # The states of ELECTRA and ALBERT may be wider than the weights of their heads.
            fits = head.transform is not None or states.shape[-1] == head.weight.shape[-1]
            ours = head.logits(states) if fits else torch.full_like(theirs, torch.inf)
    finally:
        model.train(was_training)
    difference = float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-6))
    if not difference <= _TOLERANCE:
        how = f"logits differ by {difference:.1e} of the largest" if fits else "their widths differ"
        raise ModelError(
            f"{type(model).__name__}: its language-model head does more than a product with its "
            f"weights ({how}), so this family cannot be trained here"
        )


def _transform(model: PreTrainedModel) -> Callable[[Tensor], Tensor] | None:
    """Return a family's transform between its body and the product with the vocabulary."""
    output = model.get_output_embeddings()
    for name in ("cls.predictions.transform", "head", "lm_head"):  # BERT; ModernBERT; its decoder
        try:
            layer = model.get_submodule(name)
        except AttributeError:
            continue
        # UltraBERT's head contains the product.
        if all(part is not output for part in layer.modules()):
            return layer
    layer = getattr(model, "lm_head", None)
    # RoBERTa
    dense, norm = getattr(layer, "dense", None), getattr(layer, "layer_norm", None)
    if isinstance(dense, nn.Module) and isinstance(norm, nn.Module):
        return lambda states: norm(functional.gelu(dense(states)))
    return None
