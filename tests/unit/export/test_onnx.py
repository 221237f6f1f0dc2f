"""ONNX folders: what is in them, and what is refused."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from biphasic import export
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, ModelError
from biphasic.export import write as onnx
from biphasic.export.hf import write_sentence_transformers
from biphasic.export.write import write_onnx
from families import save_open

onnxruntime = pytest.importorskip("onnxruntime")

ONE_LAYER = {"num_hidden_layers": 1}


def tokens(lengths: list[int], *, left: bool = False) -> dict[str, np.ndarray]:
    places = np.arange(max(lengths))[:: -1 if left else 1]
    is_token = places < np.array(lengths)[:, None]
    draws = np.random.default_rng(5).integers(4, 97, is_token.shape)
    return {"input_ids": draws * is_token, "attention_mask": is_token.astype(np.int64)}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory, tokenizer: TextTokenizer) -> Path:
    """An export for sentence-transformers: tokenizer, pooling and card."""
    folder = save_open("bert", tmp_path_factory.mktemp("hf") / "encoder", **ONE_LAYER)
    tokenizer.save(folder)
    write_sentence_transformers(folder, hidden_size=32, max_seqlen=64)
    (folder / "README.md").write_text("# A card\n", "utf-8")
    return folder


@pytest.fixture(scope="module")
def exported(encoder: Path) -> Path:
    write_onnx(encoder, encoder.parent / "out" / "graph")
    return encoder.parent / "out" / "graph"


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """The smallest model, and the quickest to trace."""
    return save_open("bert", tmp_path / "bert", **ONE_LAYER)


class TestGraph:
    def test_inputs_and_outputs(self, exported):
        session = onnxruntime.InferenceSession(exported / "onnx" / "model.onnx")
        axes = ["batch_size", "sequence_length"]
        assert {i.name: (i.type, i.shape) for i in session.get_inputs()} == {
            "input_ids": ("tensor(int64)", axes),
            "attention_mask": ("tensor(int64)", axes),
        }
        assert {o.name: (o.type, o.shape) for o in session.get_outputs()} == {
            "last_hidden_state": ("tensor(float)", [*axes, 32]),
            "sentence_embedding": ("tensor(float)", ["batch_size", 32]),
        }

    @pytest.mark.parametrize("left", [False, True])
    @pytest.mark.parametrize("lengths", [[1], [64], [2, 1], [5, 30, 8, 1, 30]])
    def test_states_and_mean(self, encoder, exported, lengths, left):
        inputs = tokens(lengths, left=left)
        session = onnxruntime.InferenceSession(exported / "onnx" / "model.onnx")
        states, embeddings = session.run(["last_hidden_state", "sentence_embedding"], inputs)
        model = AutoModel.from_pretrained(encoder).eval()
        with torch.no_grad():
            output = model(**{name: torch.from_numpy(array) for name, array in inputs.items()})
        expected = output.last_hidden_state.numpy()
        for row, is_token in enumerate(inputs["attention_mask"] == 1):
            np.testing.assert_allclose(states[row][is_token], expected[row][is_token], atol=1e-4)
            mean = expected[row][is_token].mean(0)
            np.testing.assert_allclose(embeddings[row], mean, atol=1e-4)

    @pytest.mark.parametrize(("pooling", "place"), [("first", 0), ("last", -1)])
    def test_first_and_last_state(self, encoder, pooling, place):
        model = onnx._Encoder(AutoModel.from_pretrained(encoder).eval(), pooling)
        for left in (False, True):
            inputs = tokens([5, 30, 1], left=left)
            with torch.no_grad():
                states, embeddings = model(*map(torch.from_numpy, inputs.values()))
            expected = [
                s[m == 1][place] for s, m in zip(states, inputs["attention_mask"], strict=True)
            ]
            torch.testing.assert_close(embeddings, torch.stack(expected), rtol=0, atol=0)


class TestFolder:
    def test_layout(self, encoder, exported):
        kept = ["1_Pooling/config.json", "README.md", "config.json", "modules.json"]
        for name in (*kept, "tokenizer.json", "tokenizer_config.json"):
            assert (exported / name).read_bytes() == (encoder / name).read_bytes()
        names = {path.name for path in exported.rglob("*")}
        assert not names & {"model.safetensors", "model.onnx_data"}

    def test_nothing_else_is_left(self, exported):
        assert [path.name for path in exported.parent.iterdir()] == ["graph"]

    def test_existing_folder_is_refused(self, bert, tmp_path):
        (tmp_path / "graph").mkdir()
        with pytest.raises(ConfigError, match="already"):
            write_onnx(bert, tmp_path / "graph")
        assert not list((tmp_path / "graph").iterdir())


def trace(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """Let torch give a written graph, as tracing takes seconds."""
    import onnx_ir

    monkeypatch.setattr(
        torch.onnx, "export", lambda *_, **__: SimpleNamespace(model=onnx_ir.load(file))
    )


@pytest.mark.parametrize(("change", "shown"), [(0.01, r"\S+e-0[234]"), (math.nan, "nan")])
def test_a_graph_of_other_weights_is_not_handed_over(
    encoder, exported, tmp_path, monkeypatch, change, shown
):
    changed = shutil.copytree(encoder, tmp_path / "changed")
    weights = load_file(changed / "model.safetensors")
    weights["bert.encoder.layer.0.output.dense.weight"][3, 5] += change
    save_file(weights, changed / "model.safetensors", {"format": "pt"})
    trace(monkeypatch, exported / "onnx/model.onnx")
    with pytest.raises(ModelError, match=rf"differ by {shown} in last_hidden"):
        write_onnx(changed, tmp_path / "out" / "graph")
    assert not list((tmp_path / "out").iterdir())


def test_rounding_of_fp32_is_no_difference(encoder, exported, tmp_path, monkeypatch):
    """Large sums that cancel round by more than the tolerance, in torch and in onnxruntime."""
    from onnx import load, numpy_helper, save

    rounded = shutil.copytree(encoder, tmp_path / "rounded")
    weights = load_file(rounded / "model.safetensors")
    name = "embeddings.word_embeddings.weight"
    weights[f"bert.{name}"] += 10_000  # layer norm subtracts it
    save_file(weights, rounded / "model.safetensors", {"format": "pt"})
    model = load(exported / "onnx/model.onnx")
    [stored] = [each for each in model.graph.initializer if each.name.endswith(name)]
    stored.CopyFrom(numpy_helper.from_array(weights[f"bert.{name}"].numpy(), stored.name))
    save(model, tmp_path / "other.onnx")
    trace(monkeypatch, tmp_path / "other.onnx")
    assert write_onnx(rounded, tmp_path / "graph") > onnx.TOLERANCE


class TestRefused:
    def refuse(self, folder: Path, kind: type[Exception], words: str) -> None:
        out = folder.parent / "graph"
        with pytest.raises(kind, match=words) as caught:
            write_onnx(folder, out)
        assert "\n" not in str(caught.value)
        assert not out.exists()

    def test_missing_packages(self, bert, monkeypatch):
        find = export.find_spec
        monkeypatch.setattr(
            export, "find_spec", lambda name: None if name == "onnxscript" else find(name)
        )
        self.refuse(bert, ConfigError, r"needs onnxscript; .*pip install 'onnx>=.*'onnxscript>=")

    def test_dynamic_rope(self, tmp_path):
        rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
        folder = save_open("llama", tmp_path / "llama", rope_parameters=rope)
        self.refuse(folder, ModelError, r"rope of type dynamic \(llama\)")

    def test_torch_fails(self, bert, monkeypatch):
        def fail(*_: Any, **__: Any) -> None:
            raise torch.onnx.OnnxExporterError("long\nstory") from ValueError("no such op\nat all")

        monkeypatch.setattr(torch.onnx, "export", fail)
        self.refuse(bert, ModelError, r"cannot export BertModel .*\(ValueError: no such op\)")
