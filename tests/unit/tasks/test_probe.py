"""Probes: linear models on the states of a frozen encoder."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from biphasic.errors import ConfigError
from biphasic.study.plan.finetuning import check_lengths
from biphasic.tasks.encoding import Encoder
from biphasic.tasks.finetune import FinetuneRun, encode_task, finetune_group
from biphasic.tasks.probe import STRENGTHS
from biphasic.tasks.protocol import FinetuneProtocol

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
    assert "train" not in FinetuneProtocol().determinants(is_pooled=True)
    assert FinetuneProtocol(train="head").determinants(is_pooled=True)["train"] == "head"


def test_a_dense_head_and_paper_precision_are_refused():
    for setting in ({"head": "dense"}, {"precision": "paper"}):
        with pytest.raises(ValueError, match="train: head needs head: linear"):
            FinetuneProtocol(train="head", **setting)
