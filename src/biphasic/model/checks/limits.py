"""Input limits of a model, from its configuration and its shape."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from biphasic.errors import ModelError, ModelFilesError, reading
from biphasic.files import read_json_object
from biphasic.model.compute.forward import first_position
from biphasic.model.loading.build import empty_body

# Default maximum input, even if a model supports more: the study's row length.
MAX_INPUT_TOKENS = 2048

_LIMITS = "check the numbers in its config.json and tokenizer_config.json"


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Input limits of a model."""

    # Recommended maximum input in tokens, including special tokens: the lowest of its positions,
    # its authors' limit for sentences (`sentence_bert_config.json`), its tokenizer's limit, and
    # `MAX_INPUT_TOKENS`.
    longest_input: int
    positions: int | None  # longest input that it has positions for; None without a limit
    num_embeddings: int  # number of tokens that it has embeddings for
    num_layers: int | None = None


def model_limits(folder: Path) -> ModelLimits:
    """Read a model's limits, without its weights."""
    with reading(folder, ModelFilesError, remedy=_LIMITS):
        body = empty_body(folder)
        num_embeddings = getattr(body.config, "vocab_size", None)
        if num_embeddings is None:
            raise ModelError(f"{folder}: config.json states no vocab_size")
        positions = getattr(body.config, "max_position_embeddings", None)
        # XLNet uses -1 for no limit.
        positions = positions - first_position(body) if positions and positions > 0 else None
        stated = [
            positions,
            _stated(folder / "sentence_bert_config.json", "max_seq_length"),
            tokenizer_limit(folder),
            MAX_INPUT_TOKENS,
        ]
        longest_input = min(int(limit) for limit in stated if limit)
        num_layers = getattr(body.config, "num_hidden_layers", None)
        return ModelLimits(longest_input, positions, num_embeddings, num_layers)


def tokenizer_limit(folder: Path) -> int | None:
    """Return the longest input that a tokenizer states, in tokens; None if it states none."""
    stated = _stated(folder / "tokenizer_config.json", "model_max_length")
    return int(stated) if stated and stated < 1e9 else None  # 1e30 means unknown


def _stated(path: Path, name: str) -> float | None:
    return read_json_object(path).get(name) if path.is_file() else None
