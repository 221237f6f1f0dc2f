"""An encoder with its trained head, for transformers with `trust_remote_code=True`.

biphasic writes this file beside a fine-tuned model whose function no class of transformers has. It
needs only torch and transformers. The type of model is its own, so without `trust_remote_code`
transformers refuses the folder; for a type that it knows it would make a new, random head.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils.versions import require_version

# Earlier releases run decoders causally, whatever their configuration says.
require_version("transformers>=5.2")


class EncoderWithHeadConfig(PretrainedConfig):
    """Configuration of an encoder and its head.

    `has_dense` puts a layer with a GELU before the linear one. An output of the head becomes
    `mean + deviation * output`. Other settings, such as `id2label`, are those of every
    configuration.
    """

    model_type = "biphasic_encoder_with_head"
    sub_configs = {"encoder": AutoConfig}  # noqa: RUF012  # pyright: ignore

    def __init__(
        self,
        encoder: PretrainedConfig | dict[str, Any] | None = None,
        *,
        has_dense: bool = False,
        mean: float = 0.0,
        deviation: float = 1.0,
        **settings: Any,
    ) -> None:
        """Take an encoder's configuration, also as a dictionary with its `model_type`."""
        if isinstance(encoder, dict):
            encoder = AutoConfig.for_model(**encoder)
        self.encoder = encoder
        self.has_dense = has_dense
        self.mean = mean
        self.deviation = deviation
        super().__init__(**settings)


class EncoderWithHead(PreTrainedModel):
    """An encoder, under the name that its family gives it in other classes, and its head."""

    config_class = EncoderWithHeadConfig
    # What the encoder cannot do, it refuses itself.
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: Any) -> None:
        """Build encoder and head."""
        super().__init__(config)
        body: Any = MODEL_MAPPING[type(config.encoder)]
        has_pooler = "add_pooling_layer" in inspect.signature(body).parameters
        options = {"add_pooling_layer": False} if has_pooler else {}
        self.base_model_prefix = body.base_model_prefix
        setattr(self, body.base_model_prefix, body._from_config(config.encoder, **options))
        width = config.encoder.hidden_size
        self.dense = nn.Linear(width, width) if config.has_dense else None
        self.classifier = nn.Linear(width, config.num_labels)
        self.post_init()

    def states(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, inputs: dict[str, Any]
    ) -> Tensor:
        """Return the last hidden states, [batch, length, hidden_size]."""
        body = getattr(self, self.base_model_prefix)
        return body(input_ids, attention_mask=attention_mask, **inputs).last_hidden_state

    def outputs(self, states: Tensor) -> Tensor:
        """Return the head's outputs for states."""
        if self.dense is not None:
            states = nn.functional.gelu(self.dense(states))
        return self.classifier(states) * self.config.deviation + self.config.mean


class EncoderForSequenceClassification(EncoderWithHead):
    """The head reads the mean of a text's states, special tokens included."""

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **inputs: Any
    ) -> SequenceClassifierOutput:
        """Return logits, [batch, num_labels]."""
        states = self.states(input_ids, attention_mask, inputs)
        if attention_mask is None:
            return SequenceClassifierOutput(logits=self.outputs(states.mean(1)))
        mask = attention_mask.to(states.device).unsqueeze(-1)
        return SequenceClassifierOutput(logits=self.outputs((states * mask).sum(1) / mask.sum(1)))


class EncoderForTokenClassification(EncoderWithHead):
    """The head reads each state."""

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **inputs: Any
    ) -> TokenClassifierOutput:
        """Return logits, [batch, length, num_labels]."""
        states = self.states(input_ids, attention_mask, inputs)
        return TokenClassifierOutput(logits=self.outputs(states))


class EncoderForQuestionAnswering(EncoderWithHead):
    """The head reads each state; its two outputs are the logits of an answer's start and end."""

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **inputs: Any
    ) -> QuestionAnsweringModelOutput:
        """Return logits of start and end, [batch, length] each."""
        start, end = self.outputs(self.states(input_ids, attention_mask, inputs)).unbind(-1)
        return QuestionAnsweringModelOutput(start_logits=start, end_logits=end)
