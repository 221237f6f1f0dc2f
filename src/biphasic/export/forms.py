"""The forms in which a fine-tuned model can be written for other libraries.

Where transformers has a class with exactly the structure of body and head, it is written as that
class. EuroBERT's sequence classifier is our dense head; as gelu(z) - gelu(-z) = z for every z, a
hidden layer that holds each output and its negative computes a linear head exactly. ModernBERT
normalizes that layer, which is then the same but for rounding (`_FAR`). All others are written with
a class of their own (`encoder_with_head.py`).
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    EuroBertConfig,
    EuroBertForSequenceClassification,
    ModernBertConfig,
    ModernBertForQuestionAnswering,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
    PretrainedConfig,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
)

from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.export import encoder_with_head as own
from biphasic.export.hf import bidirectional_config, write_older_rope
from biphasic.model.loading.reading import body_class, read_config
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.records import Form, HeadRecord, HeadWeights
from biphasic.training.state import save_tensors

WEIGHTS = "model.safetensors"
_LINEAR: Mapping[Form, Any] = {
    "token-classification": MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    "question-answering": MODEL_FOR_QUESTION_ANSWERING_MAPPING,
}
# With the class of its own instead, a fine-tuned ModernBERT, the encoder that people deploy most,
# would need trust_remote_code, and transformers 5.2. As ModernBERT's own class, 4.57 loads it too,
# with the same outputs.
_NORMED: Mapping[Form, Any] = {
    "sequence-classification": ModernBertForSequenceClassification,
    "token-classification": ModernBertForTokenClassification,
    "question-answering": ModernBertForQuestionAnswering,
}
# A layer norm divides by nearly the same number if two constants outweigh all other values:
# outputs z are off by a share of about z^2 / _FAR^2. In fp16, 65,504 is the largest number.
_FAR = 1e4
_OWN: Mapping[Form, type[own.EncoderWithHead]] = {
    "sequence-classification": own.EncoderForSequenceClassification,
    "token-classification": own.EncoderForTokenClassification,
    "question-answering": own.EncoderForQuestionAnswering,
}
_OWN_FILE = Path(own.__file__)


@dataclass(frozen=True)
class WrittenForm:
    """A model as files."""

    form: Form  # how it can be loaded
    architecture: Any  # the class that loads it
    config: PretrainedConfig
    tensors: Mapping[str, Tensor]  # content of `model.safetensors`, by transformers' names
    head: HeadWeights | None  # names of the head's tensors; None without a head

    @property
    def needs_code(self) -> bool:
        """True if the class is a file of the folder."""
        return issubclass(self.architecture, own.EncoderWithHead)

    def save(self, folder: Path) -> None:
        """Write configuration and weights into an existing folder."""
        config = deepcopy(self.config)
        config.architectures = [self.architecture.__name__]
        config.save_pretrained(folder)
        write_older_rope(folder / "config.json")
        # safetensors marks the framework; transformers refuses files without it.
        save_tensors(self.tensors, folder / WEIGHTS, {"format": "pt"})
        if self.needs_code:
            shutil.copyfile(_OWN_FILE, folder / _OWN_FILE.name)


@dataclass(frozen=True)
class _Finetuned:
    """A fine-tuned model, its tensors in fp32 on the CPU."""

    config: PretrainedConfig  # with which transformers runs its body in both directions
    body: Mapping[str, Tensor]
    head: Mapping[str, Tensor]
    record: HeadRecord

    @property
    def is_dense(self) -> bool:
        """True if the head has a hidden layer."""
        return "dense.weight" in self.head

    def labelled(self, config: Any) -> Any:
        """Return a configuration with output names for transformers' pipelines."""
        config, kind = deepcopy(config), KINDS[self.record.kind]
        names: Sequence[str] = self.record.labels or kind.facts.output_names
        config.num_labels = len(names)
        config.id2label = dict(enumerate(names))
        config.label2id = {name: number for number, name in enumerate(names)}
        if kind.facts.problem_type:
            config.problem_type = kind.facts.problem_type
        return config

    def head_in_weights(self, layer: str) -> HeadWeights:
        """Name the head's tensors, of which those of the linear layer are called after `layer`."""
        return HeadWeights(
            file=WEIGHTS,
            weight=f"{layer}.weight",
            bias=f"{layer}.bias",
            num_outputs=len(self.head["classifier.weight" if self.is_dense else "weight"]),
            dense="dense" if self.is_dense else None,
        )


def forms_of(
    encoder: Path,
    body: Mapping[str, Tensor],
    head: Mapping[str, Tensor],
    record: HeadRecord,
    tokenizer: TextTokenizer,
) -> Iterator[WrittenForm]:
    """Yield the forms that a fine-tuned model's structure allows, the most useful first.

    The caller checks whether a form computes the same. `head` has `weight` [num_outputs,
    hidden_size] and `bias` [num_outputs], or those of `dense` and `classifier`; it is empty for
    retrieval. `record` gives the meaning of its outputs.
    """
    config = bidirectional_config(read_config(encoder), tokenizer)
    config.dtype = "float32"
    body = {name: tensor.float().cpu().contiguous() for name, tensor in body.items()}
    head = {name: tensor.float().cpu().contiguous() for name, tensor in head.items()}
    if not head:
        plain = body_class(encoder, config)
        yield WrittenForm("sentence-transformers", plain, config, body, head=None)
        return
    model, form = _Finetuned(config, body, head, record), KINDS[record.kind].facts.form
    exact = _sequence_form if form == "sequence-classification" else _linear_form
    if isinstance(config, ModernBertConfig):
        exact = _normed_form
    if written := exact(model):
        yield written
    yield _own_form(model)


def _sequence_form(model: _Finetuned) -> WrittenForm | None:
    """Return EuroBERT's sequence classifier on mean-pooled states."""
    if not isinstance(model.config, EuroBertConfig):
        return None
    is_scaled = (model.record.mean, model.record.deviation) != (0.0, 1.0)
    added = dict(model.head) if model.is_dense else _as_dense(model.head, model.record)
    if not added or (model.is_dense and is_scaled):
        return None
    config = model.labelled(model.config)
    config.classifier_pooling = "mean"
    return WrittenForm(
        form="sequence-classification",
        architecture=EuroBertForSequenceClassification,
        config=config,
        tensors={**_prefixed(model.body, "model"), **added},
        head=model.head_in_weights("classifier" if model.is_dense else "dense"),
    )


def _normed_form(model: _Finetuned) -> WrittenForm | None:
    """Return ModernBERT's class, whose hidden layer is normalized."""
    form: Form = KINDS[model.record.kind].facts.form
    added = {} if model.is_dense else _as_dense(model.head, model.record, far=_FAR)
    if not added:
        return None
    config = model.labelled(model.config)
    config.classifier_pooling, config.classifier_activation = "mean", "linear"
    config.classifier_bias = True
    norm = nn.LayerNorm(config.hidden_size, bias=config.norm_bias).state_dict()
    dense = {name: added.pop(f"dense.{name}") for name in ("weight", "bias")}
    head = {**_prefixed(dense, "head.dense"), **_prefixed(norm, "head.norm"), **added}
    tensors = {**_prefixed(model.body, "model"), **head}
    return WrittenForm(form, _NORMED[form], config, tensors, model.head_in_weights("head.dense"))


def _as_dense(
    head: Mapping[str, Tensor], record: HeadRecord, *, far: float = 0.0
) -> dict[str, Tensor]:
    """Return a linear head as a dense one, its outputs scaled; empty if the layer is too narrow."""
    # With `far`, the hidden layer has no activation but is normalized, and holds `far` and `-far`.
    num_outputs, hidden_size = head["weight"].shape
    end = 2 * num_outputs
    if end + 2 * bool(far) > hidden_size:
        return {}
    dense, both = torch.zeros(hidden_size, hidden_size), torch.zeros(num_outputs, hidden_size)
    dense_bias = torch.zeros(hidden_size)
    dense[:end] = torch.cat([head["weight"], -head["weight"]])
    dense_bias[:end] = torch.cat([head["bias"], -head["bias"]])
    scale = record.deviation
    if far:
        dense_bias[end : end + 2] = torch.tensor([far, -far])
        scale *= far * math.sqrt(2 / hidden_size) / 2  # z - (-z) is 2 z
    both[:, :num_outputs] = scale * torch.eye(num_outputs)
    both[:, num_outputs:end] = -scale * torch.eye(num_outputs)
    return {
        "dense.weight": dense,
        "dense.bias": dense_bias,
        "classifier.weight": both,
        "classifier.bias": torch.full((num_outputs,), record.mean),
    }


def _linear_form(model: _Finetuned) -> WrittenForm | None:
    """Return transformers' class for a kind of task if it is a body plus one linear layer."""
    form: Form = KINDS[model.record.kind].facts.form
    architecture = _LINEAR[form].get(type(model.config), None)
    if not isinstance(architecture, type):
        return None
    config = model.labelled(model.config)
    with torch.device("meta"):
        built: Any = architecture(config)
    layer = _only_layer(built, len(model.head["weight"]))
    # Some decoders name the body differently here, and other classes could not load it.
    plain = body_class(config.model_type, config).base_model_prefix
    if layer is None or built.base_model_prefix != plain:
        return None
    tensors = {**_prefixed(model.body, plain), **_prefixed(model.head, layer)}
    if tensors.keys() != built.state_dict().keys():
        return None
    return WrittenForm(form, architecture, config, tensors, model.head_in_weights(layer))


def _own_form(model: _Finetuned) -> WrittenForm:
    """Return a class of its own: the body plus the head."""
    form: Form = KINDS[model.record.kind].facts.form
    architecture, config = _OWN[form], model.config
    scale = {"mean": model.record.mean, "deviation": model.record.deviation}
    whole = model.labelled(own.EncoderWithHeadConfig(config, has_dense=model.is_dense, **scale))
    names = {
        "AutoConfig": own.EncoderWithHeadConfig.__name__,
        architecture.__name__.replace("Encoder", "AutoModel"): architecture.__name__,
    }
    whole.auto_map = {auto: f"{_OWN_FILE.stem}.{name}" for auto, name in names.items()}
    whole.dtype = "float32"
    body = _prefixed(model.body, body_class(config.model_type, config).base_model_prefix)
    head = model.head if model.is_dense else _prefixed(model.head, "classifier")
    return WrittenForm(
        form, architecture, whole, {**body, **head}, model.head_in_weights("classifier")
    )


def _only_layer(model: Any, num_outputs: int) -> str | None:
    """Return the name of the only linear layer of a model besides body and dropout, or None."""
    added = {
        name: layer
        for name, layer in model.named_children()
        if name != model.base_model_prefix and not isinstance(layer, nn.Dropout)
    }
    if len(added) != 1:
        return None
    [(name, layer)] = added.items()
    is_head = isinstance(layer, nn.Linear) and layer.out_features == num_outputs
    return name if is_head and layer.bias is not None else None


def _prefixed(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}
