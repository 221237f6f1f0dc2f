"""Every family as an ONNX graph: onnxruntime computes what torch computes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModel

from biphasic.export.formats.onnx import TOLERANCE, write_onnx
from biphasic.model.loading.directions import open_both_ways
from families import FAMILIES, RECORDS, record, save_family, tiny_config

onnxruntime = pytest.importorskip("onnxruntime")

LENGTHS = ([1], [13], [40, 7, 24], [11, 11])
"""Of the rows of four batches: below and above every window and every border of rope scaling."""

SAME_MODULES = {"llama": "llama3", "smollm2": "llama3", "qwen2.5": "qwen2"}
"""Families that transformers builds of the modules of another, whose graph is tested."""
ELSEWHERE = {"bert"}  # unit/export/test_onnx.py
EXPORTED = [
    family
    for family in FAMILIES
    if RECORDS in os.environ or family not in {*SAME_MODULES, *ELSEWHERE}
]


@pytest.mark.parametrize("family", EXPORTED)
def test_graph_equals_model(family: str, tmp_path: Path) -> None:
    folder = save_family(family, tmp_path / "model", **few_layers(family))
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


@pytest.mark.parametrize(("family", "other"), SAME_MODULES.items())
def test_same_modules_make_the_same_graph(family: str, other: str) -> None:
    ours, theirs = (AutoModel.from_config(tiny_config(name)) for name in (family, other))
    assert {type(module) for module in ours.modules()} <= {type(m) for m in theirs.modules()}


def few_layers(family: str) -> dict[str, Any]:
    """Return changes to a family's small model that keep one layer, or one of each kind: quicker.

    Where all kinds read the same positions, the one with a window has all that the other has.
    """
    settings = FAMILIES[family].settings
    num_layers = 2 if family in {"gemma3", "smollm3", "modernbert"} else 1
    changes: dict[str, Any] = {"num_hidden_layers": num_layers}
    if "layer_types" in settings:
        changes["layer_types"] = settings["layer_types"][:num_layers]
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
