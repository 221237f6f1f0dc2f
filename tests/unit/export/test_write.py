"""Exports as a whole: checked in a fresh process, or not there."""

from __future__ import annotations

import io
import json
import re
import signal
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
import torch
from export_states import LEDGER, RECIPE, write_state
from safetensors.torch import load_file, save_file
from torch.testing import assert_close
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    pipeline,
)

from biphasic import export_model, merge_models
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import BiphasicError, CheckpointError, ConfigError, DataError, ModelError
from biphasic.export import check, write
from biphasic.files import write_json
from biphasic.model.loading.build import load_encoder
from biphasic.tasks.embedding import Choices, embedding_settings
from biphasic.tasks.encoding import Encoder, encode_texts
from biphasic.tasks.kinds.minimal_pairs import usual_reading
from mini_study import run_command
from refusals import refusals, refused
from warm import forking

TEXTS = ["the rows of an array", "model", "each value was read in order " * 4]

pytestmark = pytest.mark.usefixtures("one_thread")


def nothing_written(out: Path) -> bool:
    return not out.exists() and not list(out.parent.glob(".partial-*"))


@pytest.fixture(scope="module")
def made(
    tokenizer: TextTokenizer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, list[str]]:
    """A state, what it was exported to, and what was said meanwhile."""
    folder = tmp_path_factory.mktemp("state")
    state, said = write_state(folder / "store", tokenizer), io.StringIO()
    with forking(), redirect_stderr(said):
        out = export_model(state, folder / "mine", format="sentence-transformers")
    return state, out, said.getvalue().splitlines()


class TestState:
    """A state of ours, as sentence-transformers and transformers read it."""

    def test_was_checked_elsewhere(self, made):
        assert "in a separate process" in made[2][-1]
        checked = (made[1] / "README.md").read_text().partition("- Checked on export: ")[2]
        assert re.search(r"\bembeddings [1-9]e-\d\d\b", checked)

    def test_holds_nothing_of_ours(self, made):
        names = {path.relative_to(made[1]).as_posix() for path in made[1].rglob("*")}
        assert names == {
            *("README.md", "config.json", "model.safetensors"),
            *("tokenizer.json", "tokenizer_config.json"),
            *("modules.json", "1_Pooling", "1_Pooling/config.json"),
            *("sentence_bert_config.json", "config_sentence_transformers.json"),
        }

    def test_sentence_transformers_averages_as_we_do(self, made, tokenizer):
        from sentence_transformers import SentenceTransformer

        texts = [*TEXTS, "spells <|mask|> and <|eos|>"]
        sequences, cut = encode_texts(texts, tokenizer, max_seqlen=64)
        assert sum(cut) == 1
        encoder = Encoder(load_encoder(made[0]).eval(), tokenizer.pad_id)
        with torch.no_grad():
            expected = encoder.pooled(sequences)
        model = SentenceTransformer(str(made[1]), device="cpu")
        assert model.max_seq_length == 64
        found = model.encode(texts, convert_to_tensor=True)
        assert_close(found, expected, atol=1e-5, rtol=0)

    def test_fills_masks(self, made):
        fill = pipeline("fill-mask", model=str(made[1]), device="cpu")
        answers = fill(f"the {fill.tokenizer.mask_token} of rows")
        assert len(answers) == 5

    def test_classes_of_an_encoder(self, made):
        batch = AutoTokenizer.from_pretrained(made[1])(TEXTS, padding=True, return_tensors="pt")
        whole = AutoModelForSequenceClassification.from_pretrained(made[1], num_labels=3)
        each = AutoModelForTokenClassification.from_pretrained(made[1], num_labels=5)
        assert whole(**batch).logits.shape == (3, 3)
        assert each(**batch).logits.shape == (*batch["input_ids"].shape, 5)

    def test_card_runs_as_written(self, made):
        blocks = (made[1] / "README.md").read_text().split("```python\n")[1:]
        assert len(blocks) == 3
        names: dict[str, Any] = {}
        for block in blocks:
            code = block.partition("```")[0].replace("OWNER/mine", str(made[1]))
            exec(code, names)  # noqa: S102 - what we wrote ourselves
            if "embeddings" in names:
                assert names.pop("embeddings").shape == (2, 64)


@pytest.mark.usefixtures("unchecked")
def test_the_objective_is_that_of_the_state(make_state, tmp_path):
    """An encoder of Llama's shape does not show that it predicts from the state before a mask."""
    phases = [{"objective": "mntp", "steps": 8, "mlm_probability": 0.2}]
    costs = dict.fromkeys(("steps", "documents", "tokens", "supervised_tokens", "flops"), 8)
    ledger = [{"phase": 0, "objective": "mntp", **costs}]
    state = make_state(recipe={**RECIPE, "phases": phases}, ledger=ledger)
    out = export_model(state, tmp_path / "out", quiet=True)
    again = export_model(out, tmp_path / "again", as_="eurobert", quiet=True)
    merged = merge_models(state, state, tmp_path / "merged")
    for folder in (state, out, again, merged, merge_models(out, out, tmp_path / "of-exports")):
        assert usual_reading(folder) == "mntp"
    for folder in (out, again):
        assert "fill-mask" not in (folder / "README.md").read_text()


class TestPrecision:
    @pytest.mark.usefixtures("unchecked")
    def test_bfloat16_rounds_once(self, state, tmp_path):
        out = export_model(state, tmp_path / "out", precision="bf16")
        stored, exact = load_file(out / "model.safetensors"), load_file(state / "model.safetensors")
        assert all(torch.equal(stored[name], exact[name].bfloat16()) for name in stored)
        assert stored.keys() == exact.keys()
        assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"

    @pytest.mark.usefixtures("warm")
    def test_bfloat16_passes_the_check(self, make_family, tmp_path):
        out = export_model(make_family("qwen3"), tmp_path / "out", precision="bf16")
        assert AutoModel.from_pretrained(out, dtype="auto").dtype == torch.bfloat16

    @pytest.mark.usefixtures("warm")
    def test_rounding_of_fp32_is_distinguished_from_a_difference(
        self, make_family, tmp_path, monkeypatch, capsys
    ):
        """Where fp32 is beyond what is allowed, fp64 decides."""
        monkeypatch.setattr(check, "TOLERANCE", 2e-7)  # between the rounding of the two
        out = export_model(make_family("llama3"), tmp_path / "out")
        assert "fp64" in capsys.readouterr().err
        assert "in fp64 on a CPU" in (out / "README.md").read_text()

    @pytest.mark.usefixtures("warm")
    def test_what_is_not_a_number_is_the_largest_difference(self, make_family, tmp_path):
        model = make_family("qwen3", tie_word_embeddings=False)
        weights = load_file(model / "model.safetensors")
        weights["lm_head.weight"][0] = float("nan")
        save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ModelError, match="logits by nan"):
            export_model(model, tmp_path / "out")

    @pytest.mark.usefixtures("unchecked")
    def test_large_weights_are_split(self, state, tmp_path):
        out = export_model(state, tmp_path / "out", max_shard_size="100KB")
        assert (out / "model.safetensors.index.json").is_file()
        assert len(list(out.glob("model-*-of-*.safetensors"))) > 3
        expected = load_encoder(state).state_dict()
        found = AutoModel.from_pretrained(out).state_dict()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


class TestHead:
    @pytest.mark.usefixtures("unchecked")
    def test_body_alone_stays_without_a_head(self, make_family, tokenizer, tmp_path):
        """A head drawn at random is not exported as if it had been learnt."""
        body = AutoModel.from_pretrained(make_family("bert"), add_pooling_layer=False)
        body.save_pretrained(tmp_path / "body")
        tokenizer.save(tmp_path / "body")
        out = export_model(tmp_path / "body", tmp_path / "out")
        assert json.loads((out / "config.json").read_text())["architectures"] == ["BertModel"]
        assert not any("predictions" in name for name in load_file(out / "model.safetensors"))
        assert "fill-mask" not in (out / "README.md").read_text()


class TestCheck:
    """An export that differs is refused, and not written."""

    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            ("causal", "runs the exported model causally"),
            ("window", "differs from ours: hidden states"),
            ("weights", "differs from ours: hidden states"),
            ("head", "differs from ours: logits"),
            ("tokenizer", "AutoTokenizer gives other ids for 'An encoder"),
        ],
    )
    @pytest.mark.usefixtures("warm")
    def test_found(self, damage, words, make_family, tmp_path, monkeypatch):
        """Files are spoilt between writing and checking."""
        write_tokenizer = write.write_tokenizer

        def spoil(tokenizer: TextTokenizer, folder: Path, **options: Any) -> None:
            write_tokenizer(tokenizer, folder, **options)
            config = json.loads((folder / "config.json").read_text())
            weights = load_file(folder / "model.safetensors")
            if damage == "causal":
                config["is_causal"] = True
            elif damage == "window":
                config["sliding_window"] += 1
            elif damage == "weights":
                weights["model.layers.1.mlp.up_proj.weight"][0] += 0.01
            elif damage == "head":
                weights["lm_head.weight"][7] += 0.01
            elif damage == "tokenizer":
                tokenizer.save(folder)
            save_file(weights, folder / "model.safetensors", {"format": "pt"})
            write_json(folder / "config.json", config)

        monkeypatch.setattr(write, "write_tokenizer", spoil)
        out = tmp_path / "out"
        family = make_family("mistral", tie_word_embeddings=False)
        with pytest.raises(ModelError, match=words):
            export_model(family, out)
        assert nothing_written(out)

    @pytest.mark.usefixtures("warm")
    def test_what_cannot_be_loaded(self, make_family, tmp_path, monkeypatch):
        def lose(_: TextTokenizer, folder: Path, **__: Any) -> None:
            (folder / "config.json").unlink()

        monkeypatch.setattr(write, "write_tokenizer", lose)
        with pytest.raises(ModelError, match="cannot use the exported folder") as caught:
            export_model(make_family("qwen3"), tmp_path / "out")
        assert "\n" not in str(caught.value)
        assert nothing_written(tmp_path / "out")

    @pytest.mark.usefixtures("warm")
    def test_our_package_would_be_noticed(self, make_family, tmp_path, monkeypatch):
        """The script cannot import biphasic, whatever asks for it."""
        script = tmp_path / "reload.py"
        text = check._SCRIPT.read_text().replace(
            "import torch\n", "import torch\nimport biphasic\n", 1
        )
        script.write_text(text)
        monkeypatch.setattr(check, "_SCRIPT", script)
        with pytest.raises(ModelError, match="biphasic"):
            export_model(make_family("qwen3"), tmp_path / "out")
        assert nothing_written(tmp_path / "out")


def test_the_same_again_is_done_and_another_is_refused(made, capsys):
    state, out, _ = made
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert export_model(state, out, format="sentence-transformers") == out
    message = f"{out}: already made from the same model and settings; nothing to do\n"
    assert capsys.readouterr().err == message
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    for other in ({"format": "hf"}, {"precision": "bf16"}, {"max_shard_size": "1MB"}):
        with pytest.raises(ConfigError, match="made from another model"):
            export_model(state, out, **{"format": "sentence-transformers", **other})


def changed(name: str, change: Any) -> Any:
    """Return what changes a JSON file of a model."""
    return lambda folder: write_json(folder / name, change(json.loads((folder / name).read_text())))


def without_mask(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "mask_token"}


def damaged(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")


# A setting, or what is done to a model of a family or to a state.
@refusals(
    {
        "format": (
            {"format": "hff"}, ConfigError,
            "format: unknown value 'hff'; give hf, sentence-transformers or onnx",
        ),
        "precision": (
            {"precision": "fp16"}, ConfigError,
            "precision: unknown value 'fp16'; give fp32 or bf16",
        ),
        "size": ({"max_shard_size": "lots"}, ConfigError, "max_shard_size: 'lots' is not a size"),
        "onnx": ({"format": "onnx", "precision": "bf16"}, ConfigError, "not supported for ONNX"),
        "shards of a graph": (
            {"format": "onnx", "max_shard_size": "1MB"}, ConfigError,
            "max_shard_size: a graph is not split",
        ),
        "layers": (
            ("bert", changed("config.json", lambda config: {**config, "num_hidden_layers": 1})),
            ModelError, "config.json does not use",
        ),
        "no weights": (
            ("bert", lambda folder: (folder / "model.safetensors").unlink()), DataError,
            "bert: no weights here",
        ),
        "no mask": (
            ("qwen3", changed("tokenizer_config.json", without_mask)), DataError,
            "the tokenizer has no mask token",
        ),
        "tokenizer": (
            ("qwen3", None, {"vocab_size": 200}), DataError,
            "ids up to 319, but the model has rows for only 200; they do not belong together",
        ),
        "shapes": (
            ("qwen3", changed("config.json", lambda config: {**config, "intermediate_size": 56})),
            ModelError, "other shapes",
        ),
        "state": (("state", damaged), CheckpointError, "SHA-256 differs"),
        "no model": ("empty", DataError, "no model here"),
        "hub": ("some-owner/some-model", DataError, "some-owner/some-model"),
    }
)  # fmt: skip
@pytest.mark.usefixtures("unchecked")
def test_bad_input(make_family, make_state, tmp_path, monkeypatch, given, error, parts):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    model: Any = tmp_path / "empty" if given == "empty" else given
    options: dict[str, Any] = {}
    match given:
        case dict():
            model, options = make_state(), given
        case (family, harm, *changes):
            model = make_state() if family == "state" else make_family(family, **dict(*changes))
            if harm:
                harm(model)
    refused(error, parts, export_model, model, tmp_path / "out", **options)
    assert nothing_written(tmp_path / "out")


KILLED = """
import os, signal
from biphasic.export import write
write.check_export = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.usefixtures("unchecked", "warm")
@pytest.mark.parametrize("out", ["encoder", "encoder.onnx"])
def test_what_killed_exports_left_is_deleted_by_the_next(state, tmp_path, out):
    before = set(tmp_path.iterdir())
    formats = {"encoder": "hf", "encoder.onnx": "onnx"}
    for _ in range(2):
        command = ("export", state, tmp_path / out, "--format", formats[out])
        assert run_command(*command, setup=KILLED).returncode == -signal.SIGKILL
        [weights] = tmp_path.glob(f".partial-{out}-*/**/model.safetensors")  # of the last one
    export_model(state, tmp_path / out)
    assert not weights.exists()
    assert set(tmp_path.iterdir()) == {*before, tmp_path / out}


@pytest.mark.usefixtures("unchecked", "warm")
def test_an_export_killed_before_it_is_signed_is_made_again(state, tmp_path):
    setup = KILLED.replace("write.check_export", "write.sign")
    command = ("export", state, tmp_path / "encoder", "--format", "onnx")
    killed = run_command(*command, setup=setup)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert export_model(state, tmp_path / "encoder", format="onnx").is_dir()


FULL = "I/O error: No space left on device (os error 28)"


@pytest.mark.usefixtures("unchecked", "warm")
def test_a_full_disk_is_no_fault_of_the_model(state, tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    ended = run_command("export", state, tmp_path / "out", setup=limit)
    assert ended.returncode == 1
    [message] = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert "File too large" in message
    assert "Traceback" not in ended.stderr
    assert nothing_written(tmp_path / "out")


def test_a_full_disk_during_the_check_is_no_fault_of_the_model(state, tmp_path, monkeypatch):
    script = tmp_path / "reload.py"
    script.write_text(f"raise RuntimeError('Error while serializing: {FULL}')")
    monkeypatch.setattr(check, "_SCRIPT", script)
    with pytest.raises(OSError, match="No space left on device"):
        export_model(state, tmp_path / "out")
    assert nothing_written(tmp_path / "out")


def test_a_killed_check_is_no_fault_of_the_model(state, tmp_path, monkeypatch):
    script = tmp_path / "reload.py"
    script.write_text("import os; os.kill(os.getpid(), 9)")
    monkeypatch.setattr(check, "_SCRIPT", script)
    with pytest.raises(BiphasicError, match=r"ended by signal 9 \(out of memory\?\)") as caught:
        export_model(state, tmp_path / "out")
    assert not isinstance(caught.value, ModelError)  # which the command calls bad input
    assert nothing_written(tmp_path / "out")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_vectors_are_compared_as_in_training(make_state, tmp_path, similarity):
    from sentence_transformers import SentenceTransformer

    phase = {"objective": "margin_mse", "steps": 5, "pairs": "pairs", "similarity": similarity}
    ledger = [{**LEDGER[0], "objective": "margin_mse"}]
    state = make_state(recipe={**RECIPE, "phases": [phase]}, ledger=ledger)
    assert embedding_settings(state, Choices()).similarity == similarity
    folder = export_model(state, tmp_path / "out", format="sentence-transformers")
    assert SentenceTransformer(str(folder), device="cpu").similarity_fn_name == similarity
