"""EuroBERT's last layer, whose MLP reads predicted tokens only: no other final state is used."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.eurobert.modeling_eurobert import EuroBertDecoderLayer, EuroBertModel


def narrow_last_layer(model: PreTrainedModel) -> None:
    """Let the body of a EuroBERT model take `predicted`; other models do not change."""
    # `predicted` is int64 [num_predicted], ascending positions in the flattened rows. With it, the
    # body returns their final states only, [1, num_predicted, hidden_size].
    if isinstance(body := model.base_model, EuroBertModel):
        body.layers[-1].__class__ = _NarrowLayer


def is_narrow(model: PreTrainedModel) -> bool:
    """Return whether a model's body takes `predicted`."""
    body = model.base_model
    return isinstance(body, EuroBertModel) and isinstance(body.layers[-1], _NarrowLayer)


class _NarrowLayer(EuroBertDecoderLayer):
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, hidden_states: Tensor, *, predicted: Tensor | None = None, **options: Any
    ) -> Tensor:
        if predicted is None:
            return super().forward(hidden_states, **options)
        attended, *_ = self.self_attn(self.input_layernorm(hidden_states), **options)
        read = (hidden_states + attended).flatten(0, -2).index_select(0, predicted)[None]
        return read + self.mlp(self.post_attention_layernorm(read))
