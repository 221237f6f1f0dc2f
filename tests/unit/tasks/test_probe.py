"""Probes: linear models on the states of a frozen encoder."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from biphasic.data.packing import pack_sequences
from biphasic.errors import ConfigError
from biphasic.model.compute.forward import packed_arguments
from biphasic.study.inputs.tasks import PlannedTask
from biphasic.study.plan.finetuning import check_lengths
from biphasic.tasks.encoding import Encoder, encode_texts
from biphasic.tasks.finetune import FinetuneRun, encode_task, finetune_group
from biphasic.tasks.folder import load_task
from biphasic.tasks.probe import STRENGTHS
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS

PROBED = ("sc", "ml", "sr", "tc")


@pytest.fixture
def probe(model, tokenizer, tiny_protocol, tiny_tasks):
    """Probe the tiny model on the tiny task of a kind."""

    def run(kind, *, seed=0, **changed):
        protocol = tiny_protocol.model_copy(update={"train": "head", **changed})
        task = encode_task(tiny_tasks[kind](), tokenizer, protocol=protocol)
        kept = []
        before = {name: value.clone() for name, value in model.state_dict().items()}
        [[(record, scores)]] = finetune_group(
            model, [FinetuneRun(task, 0.0, seed, protocol)], keep=kept.append
        )
        assert all(torch.equal(value, before[name]) for name, value in kept[0].weights.items())
        return task, record, scores, kept[0].head

    return run


@pytest.mark.parametrize("kind", PROBED)
def test_a_probe_learns_with_a_frozen_encoder(probe, kind):
    task, record, scores, head = probe(kind)
    assert (record.status, record.steps, record.is_zero_shot) == ("finished", 0, True)
    assert record.score("test", task.info.metric) == scores["test"].metrics[task.info.metric] > 0.6
    assert head["weight"].shape == (task.num_outputs, 32)


def test_predictions_equal_those_of_plain_scikit_learn(probe, model):
    task, record, scores, _ = probe("sc")
    encoder = Encoder(model, pad_id=task.pad_id)
    with torch.no_grad():
        states = {
            split: encoder.pooled(sequences).double().numpy()
            for split, sequences in task.sequences.items()
        }
    answers = task.expected

    def fitted(strength):
        plain = LogisticRegression(C=strength, max_iter=10_000)
        return make_pipeline(StandardScaler(), plain).fit(states["train"], answers["train"])

    plain = max(
        map(fitted, STRENGTHS), key=lambda m: m.score(states["validation"], answers["validation"])
    )
    expected = [task.labels[label] for label in plain.predict(states["test"])]
    assert list(scores["test"].columns["predicted"]) == expected
    share = np.mean(plain.predict(states["test"]) == answers["test"])
    assert record.score("test", "accuracy") == pytest.approx(share)


def test_few_examples_are_drawn_by_the_seed_and_absent_classes_are_never_predicted(probe):
    heads = [probe("sc", seed=seed, train_examples=1) for seed in (0, 1)]
    for _, record, scores, head in heads:
        assert not record.is_zero_shot
        assert len(set(scores["test"].columns["predicted"])) == 1
        assert torch.isfinite(head["bias"]).all()
    draws = [probe("sc", seed=seed, train_examples=40)[3]["weight"] for seed in (0, 1)]
    assert not torch.equal(*draws)


@pytest.mark.parametrize("kind", ["qa", "ir"])
def test_other_kinds_refuse_before_work(tokenizer, kind):
    protocol = FinetuneProtocol(train="head", max_seqlen=256)
    with pytest.raises(ConfigError, match=f"task 'mine': train: head .* sc, ml, sr, tc.*'{kind}'"):
        check_lengths([("mine", kind, protocol)], tokenizer)


def test_old_identities_have_no_field_for_it():
    assert not {"train", "layer"} & FinetuneProtocol().determinants(is_pooled=True).keys()
    probe = FinetuneProtocol(train="head").determinants(is_pooled=True)
    assert probe["train"] == "head"
    assert "layer" not in probe


def test_a_dense_head_and_paper_precision_are_refused():
    for setting in ({"head": "dense"}, {"precision": "paper"}):
        with pytest.raises(ValueError, match="train: head needs head: linear"):
            FinetuneProtocol(train="head", **setting)


def test_all_layers_are_those_of_transformers_and_validation_chooses(probe, model):
    task, record, _, _ = probe("sc", layer="best")
    encoder = Encoder(model, pad_id=task.pad_id)
    sequence = task.sequences["test"][0]
    with torch.no_grad():
        row = pack_sequences([sequence], row_length=len(sequence), pad_id=task.pad_id)
        arguments = packed_arguments(model, row, causal=False)
        hidden = model.base_model(**arguments, output_hidden_states=True).hidden_states
        [read] = task.frozen(replace(encoder, layers=(0, 1, 2)), "test", np.array([0]))
    means = torch.stack([states[0].mean(dim=0) for states in hidden])
    torch.testing.assert_close(read, means, rtol=1e-5, atol=1e-6)

    by_layer = record.probe.by_layer
    assert record.probe.layer == int(np.argmax(by_layer))
    assert record.score("validation", "accuracy") == max(by_layer)
    for layer, score in enumerate(by_layer):
        _, alone, scores, _ = probe("sc", layer=layer)
        assert (alone.probe.layer, alone.score("validation", "accuracy")) == (layer, score)
    _, last, of_last, _ = probe("sc")
    assert last.probe.layer is None
    assert of_last["test"].columns["predicted"] == scores["test"].columns["predicted"]


def test_layers_that_take_much_memory_are_read_in_several_passes(probe, monkeypatch):
    _, whole, *_ = probe("tc", layer="best")
    monkeypatch.setattr("biphasic.tasks.probe._MOST_VALUES", 1)
    _, parts, *_ = probe("tc", layer="best")
    assert (parts.probe, parts.test) == (whole.probe, whole.test)


def test_the_strength_is_recorded(probe):
    _, record, *_ = probe("sr")
    assert record.probe.strength in STRENGTHS


def test_a_layer_that_the_encoder_lacks_is_refused_before_work(tokenizer, probe):
    protocol = FinetuneProtocol(train="head", layer=3, max_seqlen=256)
    for check in (
        lambda: check_lengths([("mine", "sc", protocol)], tokenizer, layers=2),
        lambda: probe("sc", layer=3),
    ):
        with pytest.raises(ConfigError, match=r"layer: 3: the encoder has 2 layers"):
            check()
    with pytest.raises(ValueError, match="layer: 1 needs train: head"):
        FinetuneProtocol(layer=1)


def test_both_texts_of_a_pair_are_read(model, tokenizer, tiny_protocol, tmp_path):
    rows = [
        {"text_a": a, "text_b": b, "value": float(i % 5)}
        for i, (a, b) in enumerate([("the cat sat", "a dog ran"), ("one", "two three four")] * 8)
    ]
    protocol = tiny_protocol.model_copy(update={"train": "head"})

    def probed(name, **settings):
        folder = tmp_path / name
        folder.mkdir()
        for split in SPLITS:
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")
        described = {"kind": "sr", **settings}
        (folder / "task.json").write_text(json.dumps(described), encoding="utf-8")
        task = encode_task(load_task(folder), tokenizer, protocol=protocol)
        kept = []
        [_] = finetune_group(model, [FinetuneRun(task, 0.0, 0, protocol)], keep=kept.append)
        return task, kept[0].head["weight"]

    task, weight = probed("pairs")
    planned = PlannedTask(task.info, tmp_path, protocol, {})
    assert planned.determinants["pairs"] == "both texts"  # earlier probes read one joined text
    encoder = Encoder(model, pad_id=task.pad_id)
    with torch.no_grad():
        [[read]] = task.frozen(encoder, "test", np.array([0]))
        texts = encode_texts(["the cat sat", "a dog ran"], tokenizer, max_seqlen=64)[0]
        u, v = encoder.pooled(texts)
    torch.testing.assert_close(read, torch.cat([u, v, (u - v).abs(), u * v]))
    assert weight.shape == (1, 4 * 32)
    task, weight = probed("joined", template="{text_a} {text_b}")
    assert "pairs" not in replace(planned, info=task.info).determinants
    assert weight.shape == (1, 32)
