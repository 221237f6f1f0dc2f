"""Small models of several families, documents to pack, and an independent attention."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

from biphasic.data.packing import PackedBatch, pack_sequences
from biphasic.model.build import new_model

ROW_LENGTH = 24
_SHARED = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Ten times the usual: with small weights attention hardly matters and every leak stays hidden.
    "initializer_range": 0.2,
}
_GROUPED = {**_SHARED, "num_key_value_heads": 2}
_NO_DROPOUT = {**_SHARED, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_WINDOW = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}


def tiny_config(family: str, **changes: object) -> PretrainedConfig:
    """Return a small configuration; windows are shorter than the documents below."""
    kinds: dict[str, tuple[type[PretrainedConfig], dict]] = {
        "bert": (transformers.BertConfig, _NO_DROPOUT),
        # Positions of its texts begin at 2, behind the row of padding.
        "roberta": (
            transformers.RobertaConfig,
            {**_NO_DROPOUT, "pad_token_id": 1, "bos_token_id": 0, "max_position_embeddings": 66},
        ),
        # These two add biases of their own to attention.
        "mpnet": (transformers.MPNetConfig, {**_NO_DROPOUT, "pad_token_id": 1, "bos_token_id": 0}),
        "deberta-v2": (
            transformers.DebertaV2Config,
            {**_NO_DROPOUT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        ),
        "llama": (transformers.LlamaConfig, _GROUPED),
        "qwen3": (transformers.Qwen3Config, {**_GROUPED, "head_dim": 8}),
        "eurobert": (transformers.EuroBertConfig, {**_GROUPED, "mask_token_id": 3}),
        "modernbert": (
            transformers.ModernBertConfig,
            # Layers 1 and 2 see four tokens on each side.
            {**_SHARED, "local_attention": 8, "cls_token_id": 1, "sep_token_id": 2},
        ),
        "gemma3": (
            transformers.Gemma3TextConfig,
            {**_GROUPED, **_WINDOW, "head_dim": 8, "sliding_window": 4},
        ),
        "qwen2": (
            transformers.Qwen2Config,
            {**_GROUPED, **_WINDOW, "use_sliding_window": True, "sliding_window": 4},
        ),
    }
    kind, settings = kinds[family]
    return kind(**{**settings, **changes})


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., PreTrainedModel]:
    """Build a random model of a family, without dropout, behind our attention."""

    def build(family: str, **changes: object) -> PreTrainedModel:
        return new_model(tiny_config(family, **changes), init_seed=1).eval()

    return build


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write a random model of a family, with its language-model head, as transformers does."""

    def save(family: str, **changes: object) -> Path:
        config = tiny_config(family, **changes)
        is_masked = type(config) in MODEL_FOR_MASKED_LM_MAPPING
        head = transformers.AutoModelForMaskedLM if is_masked else transformers.AutoModelForCausalLM
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            model = head.from_config(config)
        folder = tmp_path_factory.mktemp(family)
        model.save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def own_attention() -> Callable[[PreTrainedModel, str], PreTrainedModel]:
    """Copy a model to one with the same weights behind an attention of transformers."""

    def rebuild(model: PreTrainedModel, implementation: str) -> PreTrainedModel:
        config = deepcopy(model.config)  # `_from_config` writes the attention's name into it
        copy = type(model)._from_config(
            config, attn_implementation=implementation, dtype=torch.float32
        )
        copy.load_state_dict(model.state_dict())
        assert model.config._attn_implementation != implementation
        return copy.eval()

    return rebuild


@pytest.fixture(scope="session")
def token_documents() -> list[NDArray[np.int64]]:
    """Four documents that fill two rows of 24, one of them with padding at its end."""
    draws = np.random.default_rng(0)
    return [draws.integers(4, 97, length) for length in (15, 12, 9, 5)]


@pytest.fixture(scope="session")
def packed(token_documents: list[NDArray[np.int64]]) -> PackedBatch:
    """Return the documents in rows."""
    batch = pack_sequences(token_documents, row_length=ROW_LENGTH, pad_id=0)
    assert batch.num_rows == 2
    assert len(batch.cu_seqlens) == 4 + 1 + 1  # four documents, padding behind the last
    return batch


@pytest.fixture(scope="session")
def reference_attention() -> Callable[..., Tensor]:
    """Attention by its definition: token by token, in the precision of its inputs."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seqlens: Tensor,
        *,
        reach: tuple[int, int] = (-1, -1),
        scale: float | None = None,
    ) -> Tensor:
        """Take [tokens, heads, head_dim]; -1 reaches without limit."""
        num_tokens, num_heads, head_dim = query.shape
        groups = num_heads // key.shape[1]
        scale = head_dim**-0.5 if scale is None else scale
        segments = np.searchsorted(cu_seqlens.numpy(), np.arange(num_tokens), side="right")
        left, right = (num_tokens if steps < 0 else steps for steps in reach)
        rows = []
        for token in range(num_tokens):
            near = range(max(token - left, 0), min(token + right + 1, num_tokens))
            seen = [other for other in near if segments[other] == segments[token]]
            heads = [
                torch.softmax(key[seen, head // groups] @ query[token, head] * scale, 0)
                @ value[seen, head // groups]
                for head in range(num_heads)
            ]
            rows.append(torch.stack(heads))
        return torch.stack(rows)

    return attend
