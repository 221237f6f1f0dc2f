"""Every family as an ONNX graph: onnxruntime computes what torch computes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.export import Dim, ExportedProgram
from transformers import AutoModel

from biphasic.export import write as onnx
from biphasic.export.write import TOLERANCE, write_onnx
from families import FAMILIES, RECORDS, record, save_open, tiny_config
from mini_study import once

onnxruntime = pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.slow

LENGTHS = ([1], [2], [13], [40, 7, 24], [11, 11])
"""Of the rows of batches: below and above every window and every border of rope scaling."""

SAME_MODULES = {"llama": "llama3", "smollm2": "llama3", "qwen2.5": "qwen2"}
"""Families that transformers builds of the modules of another, which is tested."""
ELSEWHERE = {"bert", "roberta"}  # unit/export/test_onnx.py, and below
ALIKE = {"mistral", "olmo2"}
"""Families whose positions and masks are those of others: they are tested for the page alone."""
WITH_ALL_CALLS = ["gemma2", "modernbert", "phi3", "roberta"]
"""Families that call whatever the others call; for these, half of an export shows the rest."""
ALL = RECORDS in os.environ
TESTED = [family for family in FAMILIES if ALL or family not in {*SAME_MODULES, *ELSEWHERE, *ALIKE}]
EXPORTED = [family for family in TESTED if ALL or family in WITH_ALL_CALLS]
assert {*SAME_MODULES.values()} <= {*TESTED, *ELSEWHERE}

Inputs = dict[str, NDArray[np.int64]]


@pytest.mark.parametrize("family", EXPORTED)
def test_graph_equals_model(family, exported):
    assert exported["differences"][family] <= TOLERANCE
    graph = computing(exported["folder"] / f"{family}-graph/onnx/model.onnx")
    measured = worst_difference(exported["folder"] / family, graph)
    assert measured <= 1e-4
    record(family, "onnx", measured)


def test_large_weights_lie_beside(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(onnx, "_INLINE_BYTES", 0)
    folder = save_open("roberta", tmp_path / "model", **few_layers("roberta"))
    capfd.readouterr()
    write_onnx(folder, tmp_path / "graph")
    assert capfd.readouterr() == ("", "")
    graph, data = (tmp_path / f"graph/onnx/model.onnx{end}" for end in ("", "_data"))
    stored = AutoModel.from_pretrained(folder).embeddings.word_embeddings.weight
    assert stored.detach().numpy().tobytes() in data.read_bytes()
    assert stored.detach().numpy().tobytes() not in graph.read_bytes()
    assert worst_difference(folder, computing(graph)) <= 1e-4


@pytest.mark.parametrize("family", [each for each in TESTED if each not in EXPORTED])
def test_trace_equals_model_and_calls_what_graphs_have(family, tmp_path, trace, exported):
    """The trace is right for every length, and each of its calls is one in a graph above.

    torch translates a trace to ONNX call by call, which takes five times as long.
    """
    folder = save_open(family, tmp_path / "model", **few_layers(family))
    traced = trace(folder)
    assert calls_of(traced) <= {tuple(call) for call in exported["calls"]}
    module: Any = traced.module(check_guards=False)  # a graph in ONNX has none

    def compute(inputs: Inputs) -> NDArray[np.float32]:
        return module(*map(torch.from_numpy, inputs.values()))[0].detach().numpy()

    assert worst_difference(folder, compute) <= 1e-4


@pytest.mark.parametrize(("family", "other"), SAME_MODULES.items())
def test_same_modules_make_the_same_graph(family, other):
    ours, theirs = (AutoModel.from_config(tiny_config(name)) for name in (family, other))
    assert {type(module) for module in ours.modules()} <= {type(m) for m in theirs.modules()}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], ExportedProgram]:
    """Begin the export of a folder's model, and return what torch traced of it."""

    def begin(encoder: Any, sample: Any, *, dynamic_shapes: dict[str, Any], **_: Any) -> None:
        shapes = {name: dict.fromkeys(axes, Dim.DYNAMIC) for name, axes in dynamic_shapes.items()}
        with torch.fx.experimental._config.patch(backed_size_oblivious=True):  # as its exporter
            raise _Traced(torch.export.export(encoder, sample, dynamic_shapes=shapes))

    def run(folder: Path) -> ExportedProgram:
        graph = tmp_path_factory.mktemp("traced") / "graph"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.onnx, "export", begin)
            with pytest.raises(_Traced) as traced:
                write_onnx(folder, graph)
        return traced.value.args[0]

    return run


class _Traced(Exception):  # noqa: N818 - not an error
    """Ends an export after its first half."""


@pytest.fixture(scope="module")
def exported(
    trace: Callable[[Path], ExportedProgram],
    tmp_path_factory: pytest.TempPathFactory,
    worker_id: str,
) -> dict[str, Any]:
    """Models and graphs in a folder, made once, and every call in what torch traced of them."""

    def build(folder: Path) -> None:
        calls: set[Call] = set()
        differences: dict[str, float] = {}
        export = torch.export.export

        def kept(*given: Any, **how: Any) -> ExportedProgram:
            program = export(*given, **how)
            calls.update(calls_of(program))
            return program

        for family in {*EXPORTED, *WITH_ALL_CALLS}:
            model = save_open(family, folder / family, **few_layers(family))
            if family not in EXPORTED:  # its graph is made elsewhere
                calls.update(calls_of(trace(model)))
                continue
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(torch.export, "export", kept)
                differences[family] = write_onnx(model, folder / f"{family}-graph")
        content = {"calls": [*calls], "differences": differences}
        (folder / "exports.json").write_text(json.dumps(content))

    folder = once(tmp_path_factory, worker_id, "families-onnx", build)
    return {"folder": folder, **json.loads((folder / "exports.json").read_text())}


Call = tuple[str, ...]
"""A function and the kinds of its arguments."""


def calls_of(program: ExportedProgram) -> set[Call]:
    return {
        (str(node.target), *map(kind_of, node.args), *map(str, node.kwargs))
        for node in program.graph.nodes
        if node.op == "call_function"
    }


def kind_of(argument: Any) -> str:
    """Return what the translation of a call may depend on: types, but of switches the values."""
    value = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else argument
    if isinstance(value, torch.Tensor):
        return str(value.dtype)
    if isinstance(value, list | tuple):
        return " ".join(sorted({kind_of(item) for item in value}))
    return str(value) if isinstance(value, bool | torch.dtype) else type(value).__name__


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


def computing(graph: Path) -> Callable[[Inputs], NDArray[np.float32]]:
    """Return what onnxruntime computes of inputs."""
    session = onnxruntime.InferenceSession(graph)
    return lambda inputs: session.run(["last_hidden_state"], inputs)[0]


def worst_difference(folder: Path, compute: Callable[[Inputs], NDArray[np.float32]]) -> float:
    """Return the largest absolute difference from torch over the tokens of padded batches."""
    model = AutoModel.from_pretrained(folder).eval()
    return max(
        difference(model, compute, lengths, left=left)
        for lengths in (*LENGTHS, *lengths_of(model.config))
        for left in (False, True)
    )


def lengths_of(config: Any) -> list[list[int]]:
    """Return the longest text, and texts around a window's end."""
    # Positions of RoBERTa begin behind the padding's.
    longest = config.max_position_embeddings - (config.model_type == "roberta") * 2
    window = getattr(config, "sliding_window", None) or getattr(config, "local_attention", None)
    around = [] if window is None else [[window - 1, window, window + 1], [window // 2 + 1]]
    return [[longest], *around]


def difference(
    model: Any,
    compute: Callable[[Inputs], NDArray[np.float32]],
    lengths: list[int],
    *,
    left: bool,
) -> float:
    inputs = padded_batch(lengths, pad_id=model.config.pad_token_id, left=left)
    with torch.no_grad():
        expected = model(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    is_token = inputs["attention_mask"] == 1
    return float(np.abs(expected.last_hidden_state.numpy() - compute(inputs))[is_token].max())


def padded_batch(lengths: list[int], *, pad_id: int, left: bool) -> Inputs:
    is_token = np.arange(max(lengths))[:: -1 if left else 1] < np.array(lengths)[:, None]
    draws = np.random.default_rng(3).integers(4, 97, is_token.shape)
    return {
        "input_ids": np.where(is_token, draws, pad_id),
        "attention_mask": is_token.astype(np.int64),
    }
