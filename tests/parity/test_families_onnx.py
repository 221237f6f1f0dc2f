"""Every family as an ONNX graph: onnxruntime computes what torch computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModel

from biphasic.export.onnx import TOLERANCE, write_onnx
from biphasic.model.directions import open_both_ways
from families import FAMILIES, record, save_family

onnxruntime = pytest.importorskip("onnxruntime")

LENGTHS = ([1], [13], [40, 7, 24], [11, 11])
"""Of the rows of four batches: below and above every window and every border of rope scaling."""


@pytest.mark.parametrize("family", FAMILIES)
def test_graph_equals_model(family: str, tmp_path: Path) -> None:
    folder = save_family(family, tmp_path / "model", **two_layers(family))
    config = AutoConfig.from_pretrained(folder)
    open_both_ways(config)
    config.save_pretrained(folder)
    claimed = write_onnx(folder, tmp_path / "graph")
    assert claimed <= TOLERANCE
    model = AutoModel.from_pretrained(folder, config=config).eval()
    session = onnxruntime.InferenceSession(tmp_path / "graph" / "onnx" / "model.onnx")
    measured = max(difference(model, session, lengths) for lengths in LENGTHS)
    assert measured <= 1e-4
    record(family, "onnx", measured)


def two_layers(family: str) -> dict[str, Any]:
    """Return changes to a family's small model that keep both kinds of layers: quicker."""
    changes: dict[str, Any] = {"num_hidden_layers": 2}
    if "layer_types" in FAMILIES[family].settings:
        changes["layer_types"] = FAMILIES[family].settings["layer_types"][:2]
    return changes


def difference(model: Any, session: Any, lengths: list[int]) -> float:
    """Return the largest absolute difference over the tokens of a batch padded on the right."""
    inputs = padded_batch(lengths, pad_id=model.config.pad_token_id)
    with torch.no_grad():
        expected = model(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    (computed,) = session.run(["last_hidden_state"], inputs)
    is_token = inputs["attention_mask"] == 1
    return float(np.abs(expected.last_hidden_state.numpy() - computed)[is_token].max())


def padded_batch(lengths: list[int], *, pad_id: int) -> dict[str, NDArray[np.int64]]:
    is_token = np.arange(max(lengths)) < np.array(lengths)[:, None]
    draws = np.random.default_rng(3).integers(4, 97, is_token.shape)
    return {
        "input_ids": np.where(is_token, draws, pad_id),
        "attention_mask": is_token.astype(np.int64),
    }
