"""Fine-tuned models as folders: what `head.json` says, and how such a folder is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import PositiveInt
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from biphasic.config import parse_config
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import DataError, ModelError, ModelFilesError, reading
from biphasic.files import read_json
from biphasic.model.checks.contract import check_contract
from biphasic.model.compute.device import on_compute_device
from biphasic.model.loading.build import load_encoder
from biphasic.records import Record, parse_record
from biphasic.tasks.encoding import Encoder
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import Kind
from biphasic.training.recipe import FinetunePrecision
from biphasic.training.step.optimizer import set_head_precision, set_precision

HEAD_RECORD = "head.json"
HEAD_FORMAT = "biphasic.head/1"
Form = Literal[
    "sequence-classification",
    "token-classification",
    "question-answering",
    "sentence-transformers",
    "separate-head",
]
"""What others load a folder as: one of transformers' classes with the same function, an encoder for
sentences, or an encoder whose head stands beside it in `head.safetensors`."""


class HeadWeights(Record):
    """Where the linear head is: its weight [num_outputs, hidden_size], its bias [num_outputs]."""

    file: str
    weight: str
    bias: str
    num_outputs: PositiveInt
    """Rows that are the head's; the tensors may have more."""


class HeadRecord(Record):
    """`head.json`: what a fine-tuned model does, and how it was made."""

    format: Literal["biphasic.head/1"]
    kind: Kind
    form: Form
    task: str
    title: str
    metric: str
    model: str
    """What was fine-tuned, as it was named."""
    model_identity: str
    learning_rate: float
    seed: int
    steps: int
    validation: dict[str, float] | None = None
    test: dict[str, float] | None = None
    protocol: dict[str, Any]
    """Constants of fine-tuning and encoding; `max_seqlen` is the longest input in tokens."""
    head: HeadWeights | None = None
    """None where there is none: retrieval compares pooled states."""
    labels: tuple[str, ...] = ()
    """`sc`, `ml` and `tc`: names of the outputs."""
    fields: tuple[str, ...] = ()
    """`sc`, `ml` and `sr`: what an example has, as the template names it."""
    template: str | None = None
    """`sc`, `ml` and `sr`: how these become one text; None where the one field is the text."""
    query_template: str | None = None
    """`ir` and `zs`: how a query is written, over {text}."""
    document_template: str | None = None
    """`ir` and `zs`: how a document is written, over {title} and {text}."""
    mean: float = 0.0
    """`sr`: an output of 0 stands for this value."""
    deviation: float = 1.0
    """`sr`: an output of 1 stands for so much more."""
    may_abstain: bool = False
    """`qa`: whether the model may answer that there is no answer."""
    max_answer_tokens: PositiveInt = 1
    """`qa`: longest answer."""


@dataclass(frozen=True)
class FinetunedModel:
    """A fine-tuned model, ready to predict.

    Attributes:
        record: What it does.
        protocol: How its inputs are encoded.
        tokenizer: Its tokenizer.
        encoder: Its body.
        head: Its head; takes pooled or single states in fp32.
    """

    record: HeadRecord
    protocol: FinetuneProtocol
    tokenizer: TextTokenizer
    encoder: Encoder
    head: nn.Module


def read_head(folder: Path) -> HeadRecord:
    """Read what a folder says of its model, without loading that.

    Raises:
        DataError: It is no folder of a fine-tuned model.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    path = folder / HEAD_RECORD
    if not path.is_file():
        raise DataError(
            f"{folder}: no fine-tuned model here (no {HEAD_RECORD}); 'biphasic finetune' makes one"
        )
    raw = read_json(path)
    if not isinstance(raw, dict) or raw.get("format") != HEAD_FORMAT:
        raise DataError(f"{path}: not in the format {HEAD_FORMAT}; fine-tune anew")
    return parse_record(HeadRecord, raw, where=str(path))


def load_finetuned(folder: Path, *, precision: FinetunePrecision | None = None) -> FinetunedModel:
    """Load a fine-tuned model as it was scored: the same batching, the same precision.

    Args:
        folder: As `biphasic finetune` writes it.
        precision: What to compute in instead.

    Raises:
        DataError: It is no folder of a fine-tuned model.
        ModelError: Its weights are missing or damaged.
    """
    record = read_head(folder)
    protocol = parse_config(FinetuneProtocol, record.protocol, where=f"{folder}: protocol")
    precision = precision or protocol.precision
    tokenizer = TextTokenizer.load(folder)
    model = on_compute_device(load_encoder(folder, batching=protocol.batching))
    check_contract(model, causal=False)
    set_precision(model, precision)
    model.eval()
    with reading(folder / HEAD_RECORD, ModelFilesError):
        head = _load_head(folder, record.head)
    head.to(model.device)
    set_head_precision(head, precision)
    return FinetunedModel(record, protocol, tokenizer, Encoder(model, tokenizer.pad_id), head)


def _load_head(folder: Path, weights: HeadWeights | None) -> nn.Module:
    if weights is None:
        return nn.Identity()
    weight, bias = _tensors(folder / weights.file, weights.weight, weights.bias)
    head = nn.Linear(weight.shape[1], weights.num_outputs)
    head.load_state_dict(
        {"weight": weight[: weights.num_outputs], "bias": bias[: weights.num_outputs]}
    )
    return head


def _tensors(path: Path, *names: str) -> list[Tensor]:
    try:
        with safe_open(path, framework="pt") as stored:
            return [stored.get_tensor(name) for name in names]
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: cannot be read ({' '.join(str(error).split())})") from None
