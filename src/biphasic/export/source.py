"""What is exported: a state of ours or any model folder, checked before work begins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import DataError
from biphasic.files import expanded, is_complete, read_json
from biphasic.model.checks.limits import ModelLimits, model_limits, tokenizer_limit
from biphasic.model.loading.footprint import check_memory
from biphasic.model.loading.hub import (
    LocalModel,
    check_claim,
    claimed_identity,
    fetch_model,
)
from biphasic.records import StateRecord, parse_record

_WEIGHTS = "model*.safetensors"
_REMEDY = "take another copy of the state, or delete the folder and train again"


@dataclass(frozen=True)
class Source:
    """A model to be exported.

    Attributes:
        folder: Where it lies.
        name: What people call it: a hub id, or its folder's name.
        identity: A verified state's own, else a hash of the folder's files.
        tokenizer: With a mask token.
        limits: What the model can read.
        max_seqlen: Longest input in tokens that model and tokenizer allow; None without a limit.
        state: `state.json`, of states alone.
    """

    folder: Path
    name: str
    identity: str
    tokenizer: TextTokenizer
    limits: ModelLimits
    max_seqlen: int | None
    state: StateRecord | None


def open_source(model: Path | str, *, revision: str | None = None) -> Source:
    """Find a model and check that it can be exported, without reading its weights.

    Args:
        model: Folder of a state, or of any model in Hugging Face's format; or a hub id.
        revision: Of a model on the hub.

    Raises:
        CheckpointError: A state is incomplete or damaged.
        DataError: There is no such model, it has no weights, its tokenizer has no mask token, or
            the two do not belong together.
        ModelError: transformers does not know the model, it cannot be an encoder, or it is larger
            than memory.
    """
    found = fetch_model(model, revision=revision)
    folder = found.folder
    if not any(folder.glob(_WEIGHTS)):
        raise DataError(
            f"{folder}: no weights here (no model.safetensors); other formats can run code when "
            "they are read: convert them first"
        )
    state = _trained_state(found)
    tokenizer = TextTokenizer.load(folder)
    check_memory(folder, use="load")
    limits = model_limits(folder)
    _check_vocabulary(folder, tokenizer, limits)
    is_folder = expanded(model).is_dir()
    return Source(
        folder=folder,
        name=folder.name if is_folder else str(model),
        identity=found.identity,
        tokenizer=tokenizer,
        limits=limits,
        max_seqlen=_max_seqlen(folder, limits),
        state=state,
    )


def _trained_state(model: LocalModel) -> StateRecord | None:
    """Return what a state knows of itself; None where the folder is not what its records name."""
    path = model.folder / "state.json"
    if is_complete(model.folder):
        check_claim(model, remedy=_REMEDY)
    if claimed_identity(model.folder) != model.identity:
        return None
    return parse_record(StateRecord, read_json(path), where=str(path), remedy=_REMEDY)


def _check_vocabulary(folder: Path, tokenizer: TextTokenizer, limits: ModelLimits) -> None:
    if "mask" not in tokenizer.special_tokens:
        raise DataError(
            f"{folder}: the tokenizer has no mask token, which an encoder needs; 'biphasic "
            f"tokenizer check {folder}' says which to declare, and 'biphasic adapt' trains it"
        )
    if tokenizer.vocab_size > limits.num_embeddings:
        raise DataError(
            f"{folder}: the tokenizer has ids up to {tokenizer.vocab_size - 1}, the model rows for "
            f"{limits.num_embeddings} only; they do not belong together"
        )


def _max_seqlen(folder: Path, limits: ModelLimits) -> int | None:
    """Return the least of what model and tokenizer state."""
    return min(filter(None, (limits.positions, tokenizer_limit(folder))), default=None)
