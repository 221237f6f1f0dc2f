"""The model to export: a training state or any model folder, checked before work starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import DataError
from biphasic.files import expanded, read_json
from biphasic.model.checks.limits import ModelLimits, model_limits, tokenizer_limit
from biphasic.model.loading.footprint import check_memory, weight_files
from biphasic.model.loading.hub import claimed_identity, fetch_model
from biphasic.records import StateRecord, parse_record

_REMEDY = "take another copy of the state, or delete the folder and train again"


@dataclass(frozen=True)
class Source:
    """A model to export."""

    folder: Path
    name: str  # a hub id, or the folder's name
    identity: str  # identity of a verified state, otherwise a hash of the folder's files
    tokenizer: TextTokenizer  # it has a mask token
    limits: ModelLimits
    # Longest input in tokens that model and tokenizer allow; None without a limit.
    max_seqlen: int | None
    state: StateRecord | None  # None if the model is no training state


def open_source(model: Path | str, *, revision: str | None = None) -> Source:
    """Find a model by folder or hub id; check, without its weights, that it can be exported."""
    local = fetch_model(model, revision=revision)
    folder = local.folder
    weight_files(folder)
    state = None  # also if the folder's files do not match its records
    if claimed_identity(folder) == local.identity:
        path = folder / "state.json"
        state = parse_record(StateRecord, read_json(path), where=str(path), remedy=_REMEDY)
    tokenizer = TextTokenizer.load(folder)
    check_memory(folder, use="load")
    limits = model_limits(folder)
    if "mask" not in tokenizer.special_tokens:
        raise DataError(
            f"{folder}: the tokenizer has no mask token, which an encoder needs; 'biphasic "
            f"tokenizer check {folder}' suggests one to declare, and 'biphasic adapt' trains it"
        )
    if tokenizer.vocab_size > limits.num_embeddings:
        raise DataError(
            f"{folder}: the tokenizer has ids up to {tokenizer.vocab_size - 1}, but the model has "
            f"rows for only {limits.num_embeddings}; they do not belong together"
        )
    return Source(
        folder=folder,
        name=folder.name if expanded(model).is_dir() else str(model),
        identity=local.identity,
        tokenizer=tokenizer,
        limits=limits,
        max_seqlen=min(filter(None, (limits.positions, tokenizer_limit(folder))), default=None),
        state=state,
    )
