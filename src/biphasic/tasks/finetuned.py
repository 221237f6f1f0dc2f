"""Fine-tuned models as folders: the contents of `head.json`, and loading."""

from __future__ import annotations

from pathlib import Path

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
from biphasic.records import parse_record
from biphasic.tasks.encoding import Encoder, FinetunedModel, head_layers
from biphasic.tasks.kinds.registry import KINDS, KindName
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import HeadRecord, HeadWeights
from biphasic.training.recipe import FinetunePrecision
from biphasic.training.step.optimizer import set_head_precision, set_precision

HEAD_RECORD = "head.json"
HEAD_FORMAT = "biphasic.head/1"


class _Head(HeadRecord):
    kind: KindName


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
    known = parse_record(_Head, raw, where=str(path))
    record = HeadRecord.model_construct(known.model_fields_set, **dict(known))
    num_outputs = 0 if record.head is None else record.head.num_outputs
    needed = KINDS[record.kind].facts.num_outputs(record.labels)
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
