"""Runs sequences through a model, packed or padded, to one hidden state per token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from biphasic.data.packing import Batching, PackedBatch, TokenIds, lengths_of
from biphasic.errors import ModelError, ModelFilesError, reading
from biphasic.model.compute.attention import ATTENTION_NAME, attention_arguments

REMEDY = "check its config.json and its weights"  # remedy for a model that cannot be loaded or run
_Options = ParamSpec("_Options")


def batching_of(model: PreTrainedModel) -> Batching:
    """Return the batching a model was loaded for."""
    return "packed" if model.config._attn_implementation == ATTENTION_NAME else "padded"


@contextmanager
def first_pass(model: PreTrainedModel) -> Iterator[None]:
    """Name the model in errors that its code raises for its arguments."""
    try:
        yield
    # It is a RuntimeError, too, and says nothing about what the model can read.
    except torch.OutOfMemoryError:
        raise
    except (
        ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError
    ) as error:  # fmt: skip
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ModelError(
            f"{type(model).__name__}: cannot read {batching_of(model)} rows ({reason})"
        ) from error


def probing(check: Callable[Concatenate[PreTrainedModel, _Options], None]) -> Callable[..., None]:
    """Name the model in any error raised while a check runs it."""
    # Some damage of a configuration shows only then.

    @wraps(check)
    def checked(model: PreTrainedModel, *args: _Options.args, **options: _Options.kwargs) -> None:
        name = model.name_or_path or type(model).__name__
        with reading(name, ModelFilesError, failure="cannot be run", remedy=REMEDY):
            check(model, *args, **options)

    return checked


def hidden_states(model: PreTrainedModel, batch: PackedBatch, *, causal: bool) -> Tensor:
    """Return a model's states after the last norm, [num_rows * row_length, hidden_size]."""
    output = model.base_model(**packed_arguments(model, batch, causal=causal))
    return output.last_hidden_state.flatten(0, 1)


def packed_arguments(model: PreTrainedModel, batch: PackedBatch, *, causal: bool) -> dict[str, Any]:
    """Return the arguments with which a model, or its body, reads packed rows."""
    device = model.device
    positions = torch.from_numpy(batch.position_ids) + first_position(model)
    return {
        "input_ids": torch.from_numpy(batch.input_ids).to(device),
        "position_ids": positions.to(device),
        "use_cache": False,  # decoders would copy all keys and values
        **attention_arguments(
            torch.from_numpy(batch.cu_seqlens).to(device),
            max_seqlen=batch.max_seqlen,
            shape=batch.input_ids.shape,
            causal=causal,
            dtype=activation_dtype(model),
        ),
    }


def padded_states(
    model: PreTrainedModel, sequences: Sequence[TokenIds], *, pad_id: int
) -> tuple[Tensor, NDArray[np.int64]]:
    """Run the body of a model over sequences, one per row, with its own attention."""
    # The model, loaded for padded rows, computes positions and masks, so this is independent of
    # packing. Returned are final states, [num_sequences * longest, hidden_size], and the start and
    # end of each sequence in them, int64 [num_sequences, 2].
    lengths = lengths_of(sequences)
    is_token = np.arange(lengths.max()) < lengths[:, None]
    # Padding on the right, where it does not move the positions of tokens.
    input_ids = np.full(is_token.shape, pad_id, dtype=np.int64)
    input_ids[is_token] = np.concatenate(sequences)
    output = model.base_model(
        input_ids=torch.from_numpy(input_ids).to(model.device),
        attention_mask=torch.from_numpy(is_token.astype(np.int64)).to(model.device),
    )
    starts = np.arange(len(sequences)) * is_token.shape[1]
    return output.last_hidden_state.flatten(0, 1), np.stack([starts, starts + lengths], axis=1)


def first_position(model: PreTrainedModel) -> int:
    """Return the position of a sequence's first token."""
    # RoBERTa and its relatives reserve a row of their position table for padding, and count from
    # the next one.
    for name, module in model.base_model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


def activation_dtype(model: PreTrainedModel) -> torch.dtype:
    """Return a model's compute precision; its embeddings may have another."""
    *_, last = model.base_model.parameters()
    return last.dtype


Pooling = Literal["mean", "first", "last"]


def pooled(
    hidden: Tensor, spans: Tensor | NDArray[np.int64], *, pooling: Pooling = "mean"
) -> Tensor:
    """Return a vector for each text, special tokens included: [num_texts, hidden_size], in fp32."""
    # `hidden` is [num_tokens, hidden_size]; `spans` are the texts' starts and ends, [num_texts, 2].
    # A mean in bf16 loses digits in long texts. States in fp64 stay fp64.
    exact = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    starts, ends = torch.as_tensor(spans, device=hidden.device).unbind(1)
    if pooling == "first":
        return exact[starts]
    if pooling == "last":
        return exact[ends - 1]
    # A product with a dense matrix has a fixed order of summation on every device; scattered
    # additions do not.
    places = torch.arange(len(hidden), device=hidden.device)
    is_inside = (places >= starts[:, None]) & (places < ends[:, None])  # (num_texts, num_tokens)
    return (is_inside.to(exact.dtype) / (ends - starts)[:, None]) @ exact
