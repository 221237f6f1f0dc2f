"""States on disk: complete or invisible, checked on load."""

import dataclasses
import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors import SafetensorError
from tokenizers import AddedToken, Tokenizer, processors
from transformers import AutoTokenizer

from biphasic.data.tokens.tokenizer import BOS, EOS, TextTokenizer
from biphasic.errors import CheckpointError, os_error_text
from biphasic.export.hf import pair_ids
from biphasic.records import StateRecord
from biphasic.tasks.encoding import frame
from biphasic.training.state import (
    STATE_FORMAT,
    Checkpoints,
    Snapshot,
    load_state,
    save_state,
    save_tensors,
)
from mini_study import flip, truncate

IDENTITY = "ab" * 32
FILES = [
    "config.json",
    "metrics.jsonl",
    "model.safetensors",
    "optimizer.safetensors",
    "state.json",
    "tokenizer.json",
    "tokenizer_config.json",
]


def snapshot() -> Snapshot:
    weights = {"a": torch.randn(4, 3), "b": torch.arange(3.0)}
    moments = {"a.exp_avg": torch.randn(4, 3), "a.step": torch.tensor(2.0)}
    record = StateRecord(format=STATE_FORMAT, identity=IDENTITY, step=2, rows_sha256="cd" * 32)
    return Snapshot(weights, moments, record, '{"step": 1}\n{"step": 2}\n')


@pytest.fixture
def folder(tmp_path, tokenizer) -> Path:
    save_state(tmp_path / "state", snapshot(), config={"vocab_size": 320}, tokenizer=tokenizer)
    return tmp_path / "state"


class TestTokenizer:
    """transformers frames texts as training does; here the tokenizer is the corpus's, unchanged."""

    def test_transformers_puts_bos_and_eos_around_texts(self, folder, tokenizer):
        theirs = AutoTokenizer.from_pretrained(folder)
        text = "the rows of an array"
        assert (
            theirs(text)["input_ids"]
            == frame(tokenizer.encode(text), tokenizer, max_seqlen=99).tolist()
        )
        assert theirs("what holds?", text)["input_ids"] == pair_ids(tokenizer, "what holds?", text)
        hidden = theirs(f"the rows {theirs.mask_token} tokens")["input_ids"]
        inner = [*tokenizer.encode("the rows"), tokenizer.mask_id, *tokenizer.encode(" tokens")]
        assert hidden == [tokenizer.bos_id, *inner, tokenizer.eos_id]

    @pytest.mark.parametrize(
        "post_processor",
        [
            None,
            processors.ByteLevel(trim_offsets=True),
            processors.BertProcessing((EOS, 1), (BOS, 0)),
            processors.RobertaProcessing((EOS, 1), (BOS, 0), trim_offsets=False),
            processors.Sequence(
                [
                    processors.ByteLevel(trim_offsets=False),
                    processors.TemplateProcessing(
                        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, 0)]
                    ),
                ]
            ),
        ],
        ids=["none", "byte-level", "bert", "roberta", "sequence"],
    )
    @pytest.mark.parametrize("strips", [False, True])
    def test_what_is_loaded_is_what_was_saved(self, tmp_path, tokenizer, post_processor, strips):
        inner = Tokenizer.from_str(json.dumps(tokenizer.rules()))
        if post_processor is not None:
            inner.post_processor = post_processor
        if strips:
            inner.add_special_tokens([AddedToken("<hide>", special=True, lstrip=True)])
        roles = {**tokenizer.special_tokens, **({"mask": "<hide>"} if strips else {})}
        saved = TextTokenizer(inner, roles)
        save_state(tmp_path / "s", snapshot(), config={}, tokenizer=saved)
        loaded = TextTokenizer.load(tmp_path / "s")
        assert loaded.sha256 == saved.sha256
        assert loaded.rules() == saved.rules()
        text = " the rows  of"
        assert loaded.encode_offsets(text) == saved.encode_offsets(text)
        # Through the hands of transformers too.
        AutoTokenizer.from_pretrained(tmp_path / "s").save_pretrained(tmp_path / "theirs")
        assert TextTokenizer.load(tmp_path / "theirs").sha256 == saved.sha256


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", [flip, truncate, Path.unlink])
def test_damage_is_named_with_its_remedy(folder, name, harm):
    path = folder / name
    harm(path)
    with pytest.raises(CheckpointError) as caught:
        load_state(folder, identity=IDENTITY)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).endswith("; delete the folder and run again")


def test_another_state_is_refused(folder):
    with pytest.raises(CheckpointError, match="state abababababab, not cdcdcdcdcdcd"):
        load_state(folder, identity="cd" * 32)
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"identity"', '"idfntity"'))
    with pytest.raises(CheckpointError, match="delete the folder and run again"):
        load_state(folder, identity=IDENTITY)


def test_a_full_disk_is_reported_as_a_system_error(tmp_path, monkeypatch):
    errors = ['I/O error: No space left on device (os error 28) at path "/x"', "invalid shape"]
    write = Mock(side_effect=map(SafetensorError, errors))
    monkeypatch.setattr("safetensors.torch.save_file", write)
    with pytest.raises(OSError, match="No space left on device") as caught:
        save_tensors({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert os_error_text(caught.value) == (
        f"{tmp_path}/model.safetensors: No space left on device; free space ('biphasic study "
        "clean' helps) and run again"
    )
    with pytest.raises(SafetensorError, match="invalid shape"):  # other errors are unchanged
        save_tensors({"a": torch.zeros(1)}, tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    "victim", ["safetensors.torch.save_file", "biphasic.training.state.write_json"]
)
def test_crash_while_saving_leaves_nothing(tmp_path, tokenizer, monkeypatch, victim):
    monkeypatch.setattr(victim, Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        save_state(tmp_path / "s", snapshot(), config={}, tokenizer=tokenizer)
    assert list(tmp_path.iterdir()) == []


def save_at(progress: Checkpoints, step: int, tokenizer) -> None:
    save_state(progress.path(step), snapshot(), config={}, tokenizer=tokenizer)


def test_a_damaged_checkpoint_names_the_intact_one_before_it(tmp_path, tokenizer):
    progress = Checkpoints(tmp_path / "progress")
    for step in (4, 6, 8):
        save_at(progress, step, tokenizer)
        progress.verify(step)
    newest, older, oldest = (progress.path(step) / "model.safetensors" for step in (8, 6, 4))
    flip(newest)
    with pytest.raises(CheckpointError) as caught:
        progress.verify(8)
    assert str(caught.value) == (
        f"{newest}: damaged (SHA-256 differs from manifest.json); the checkpoint before it, "
        f"step-00000006, is intact: to resume from there, delete the folder {newest.parent} and "
        "run again"
    )
    flip(older)
    with pytest.raises(CheckpointError, match="step-00000004, is intact"):
        progress.verify(8)
    oldest.write_bytes(b"")
    with pytest.raises(CheckpointError) as caught:
        progress.verify(8)
    assert str(caught.value).endswith(
        f"no older checkpoint is intact: delete the folder {tmp_path / 'progress'} and run again"
    )


@pytest.mark.parametrize("metrics", ['{"a": 1}\n{"b"', '{"a": 1}\n[2]\n'])
def test_incomplete_lines_of_metrics_are_refused(tmp_path, tokenizer, metrics):
    content = dataclasses.replace(snapshot(), metrics=metrics)
    save_state(tmp_path / "s", content, config={}, tokenizer=tokenizer)
    with pytest.raises(CheckpointError, match=r"damaged .*; delete the folder"):
        load_state(tmp_path / "s", identity=IDENTITY)


def test_folders_beside_checkpoints_are_left_alone(tmp_path):
    progress = Checkpoints(tmp_path)
    others = {"step-old", "step-00000009.bak", "step-"}
    for name in {"step-00000002", "step-00000003", "step-00000004", *others}:
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
    assert progress.latest_step() == 4
    progress.drop_old()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"step-00000003", "step-00000004", *others}
