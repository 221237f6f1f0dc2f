"""Fine-tuned models as folders: the contents of `head.json`, and loading."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt
from safetensors import SafetensorError, safe_open
from torch import nn

from biphasic.config import parse_config
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import REPAIR, DataError, ModelError, ModelFilesError, one_line, reading
from biphasic.files import read_json
from biphasic.model.checks.contract import check_contract
from biphasic.model.compute.device import on_compute_device
from biphasic.model.loading.build import load_encoder
from biphasic.model.loading.hub import check_intact
from biphasic.records import Record, parse_record
from biphasic.tasks.encoding import Encoder, head_layers
from biphasic.tasks.kinds.registry import KINDS, KindName
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.training.recipe import FinetunePrecision
from biphasic.training.step.optimizer import set_head_precision, set_precision

HEAD_RECORD = "head.json"
HEAD_FORMAT = "biphasic.head/1"
# How other libraries load a folder: with one of transformers' auto classes, or as an encoder for
# sentences. Earlier versions also wrote an encoder with a separate head in `head.safetensors`.
Form = Literal[
    "sequence-classification",
    "token-classification",
    "question-answering",
    "sentence-transformers",
    "separate-head",
]


class HeadWeights(Record):
    """Names of the head's tensors: weight [num_outputs, hidden_size] and bias [num_outputs]."""

    file: str
    weight: str
    bias: str
    num_outputs: PositiveInt  # rows that belong to the head; the tensors may have more
    dense: str | None = None
    """The layer before the linear one, with a GELU behind it: its tensors are `DENSE.weight`
    [hidden_size, hidden_size] and `DENSE.bias` [hidden_size]. None in a linear head."""


class HeadRecord(Record):
    """`head.json`: the task of a fine-tuned model, and how it was trained."""

    format: Literal["biphasic.head/1"]
    kind: KindName
    form: Form
    needs_code: bool = False
    """Whether transformers loads the folder only with `trust_remote_code=True`."""
    task: str
    title: str
    metric: str
    model: str  # the model that was fine-tuned, as the user named it
    model_identity: str
    learning_rate: float
    seed: int
    steps: int
    validation: dict[str, float] | None = None
    test: dict[str, float] | None = None
    baselines: dict[str, float] = Field(default_factory=dict)
    """Main metric on test of floors and references, by name."""
    protocol: dict[str, Any]
    """Constants of fine-tuning and encoding; `max_seqlen` is the longest input in tokens."""
    head: HeadWeights | None = None
    """None if the model has no head: retrieval compares pooled states."""
    labels: tuple[str, ...] = ()  # `sc`, `ml` and `tc`: names of the outputs
    fields: tuple[str, ...] = ()
    """`sc`, `ml` and `sr`: fields of an example, named as in the template."""
    columns: dict[str, str] = Field(default_factory=dict)
    """`sc`, `ml` and `sr`: the columns that the task file named, by field."""
    template: str | None = None
    """`sc`, `ml` and `sr`: joins the fields into one text; None if the single field is the text."""
    query_template: str | None = None  # `ir` and `zs`: template of a query, over {text}
    document_template: str | None = None
    """`ir` and `zs`: template of a document, over {title} and {text}."""
    mean: float = 0.0  # `sr`: value of an output of 0
    deviation: float = 1.0  # `sr`: value difference per unit of output
    may_abstain: bool = False  # `qa`: whether the model may answer that there is no answer
    max_answer_tokens: PositiveInt = 1  # `qa`: longest answer, in tokens

    @property
    def prompts(self) -> dict[str, str]:
        """Texts before queries and documents, by sentence-transformers' names."""
        prompts = {}
        templates = {"query": self.query_template, "document": self.document_template}
        for name, template in templates.items():
            before, _, after = (template or "").partition("{text}")
            # A template that adds more than a prefix gives no prompt.
            prompts[name] = "" if after else before.partition("{title}")[0]
        return {name: prompt for name, prompt in prompts.items() if prompt}


@dataclass(frozen=True)
class FinetunedModel:
    """A fine-tuned model, ready to predict."""

    record: HeadRecord
    protocol: FinetuneProtocol  # how its inputs are encoded
    tokenizer: TextTokenizer
    encoder: Encoder
    head: nn.Module  # takes pooled or single states in fp32


def read_head(folder: Path) -> HeadRecord:
    """Read a folder's `head.json` without loading the model."""
    if not folder.is_dir():
        what = "a file, not a fine-tuned model" if folder.is_file() else "no such folder"
        raise DataError(f"{folder}: {what}")
    path = folder / HEAD_RECORD
    if not path.is_file():
        raise DataError(
            f"{folder}: no fine-tuned model here (no {HEAD_RECORD}); 'biphasic finetune' makes one"
        )
    raw = read_json(path)
    if not isinstance(raw, dict) or raw.get("format") != HEAD_FORMAT:
        raise DataError(f"{path}: not in the format {HEAD_FORMAT}; fine-tune again")
    record = parse_record(HeadRecord, raw, where=str(path))
    num_outputs = 0 if record.head is None else record.head.num_outputs
    needed = KINDS[record.kind].num_outputs(record.labels)
    if num_outputs != needed:
        raise DataError(
            f"{path}: {num_outputs} outputs for {len(record.labels)} labels, where a model of kind "
            f"'{record.kind}' has {needed}; {REPAIR}"
        )
    return record


def load_finetuned(folder: Path, *, precision: FinetunePrecision | None = None) -> FinetunedModel:
    """Load a fine-tuned model with the batching and precision it was scored with, or another."""
    record = read_head(folder)
    check_intact(folder)
    protocol = parse_config(FinetuneProtocol, record.protocol, where=f"{folder}: protocol")
    precision = precision or protocol.precision
    tokenizer = TextTokenizer.load(folder)
    model = on_compute_device(load_encoder(folder, batching=protocol.batching))
    check_contract(model, causal=False)
    set_precision(model, precision)
    model.eval()
    with reading(folder / HEAD_RECORD, ModelFilesError):
        head = _load_head(folder, record.head, hidden_size=model.config.hidden_size)
    head.to(model.device)
    set_head_precision(head, precision)
    return FinetunedModel(record, protocol, tokenizer, Encoder(model, tokenizer.pad_id), head)


def _load_head(folder: Path, weights: HeadWeights | None, *, hidden_size: int) -> nn.Module:
    if weights is None:
        return nn.Identity()
    path, rows = folder / weights.file, weights.num_outputs
    names = {"weight": weights.weight, "bias": weights.bias}
    try:
        with safe_open(path, framework="pt") as stored:
            linear = {key: stored.get_tensor(name)[:rows] for key, name in names.items()}
            dense = {
                key: stored.get_tensor(f"{weights.dense}.{key}") for key in names if weights.dense
            }
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: cannot be read ({one_line(error)})") from None
    head = head_layers(hidden_size, rows, is_dense=bool(dense))
    layers = {"classifier": linear, "dense": dense} if dense else {"": linear}
    for name, tensors in layers.items():
        head.get_submodule(name).load_state_dict(tensors)
    return head
