"""Masked diffusion against a plain loop over documents, and its bound against known likelihoods."""

from __future__ import annotations

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from scipy.stats import norm
from transformers import AutoModelForMaskedLM

from biphasic.data.rows import BatchShape, RowPlan, RowReader
from biphasic.objectives.diffusion import Diffusion
from biphasic.seeds import stream, uniforms
from biphasic.training.records import heldout as module
from biphasic.training.records.heldout import HeldoutLoss
from biphasic.training.run import first_model
from biphasic.training.step.passes import summed_loss

LEAST = 1e-3


@pytest.fixture
def model(training_data, make_recipe):
    return first_model(make_recipe(precision="fp32"), training_data).eval()


@pytest.fixture
def plain(model):
    """The same weights in transformers' own model, with its own attention."""
    config = deepcopy(model.config)
    config._attn_implementation = "eager"
    other = AutoModelForMaskedLM.from_config(config, attn_implementation="eager")
    other.load_state_dict(model.state_dict())
    return other.eval()


def batches(data, count=2):
    shapes = [BatchShape(32, 4, count)]
    plan = RowPlan(data.heldout.lengths, shapes, data_seed=module.HELDOUT_SEED)
    reader = RowReader(data.heldout, plan, data.tokenizer.special_ids)
    return [reader.batch(step) for step in range(count)]


def uniform(draws):
    return LEAST + (1 - LEAST) * draws[0]


def bimodal(draws):
    mean, deviation = (0.12, 0.02) if draws[1] < 0.6 else (0.85, 0.08)
    return min(max(norm.ppf(draws[0], mean, deviation), LEAST), 1)


@torch.no_grad()
def loop(plain, data, batch, seed, rate_of=uniform):
    """Sum the weighted losses of each document, read alone; count its tokens."""
    total, count = 0.0, 0
    for (start, end), piece in zip(batch.packed.spans.tolist(), batch.pieces, strict=True):
        ids = batch.packed.input_ids.reshape(-1)[start:end]
        place = (seed, piece.epoch, piece.document, piece.start)
        rate = rate_of(uniforms(stream("diffusion", *place), 2))
        draws = uniforms(stream("mask", *place), len(ids) - 2)
        shown, count = ids.copy(), count + len(ids) - 2
        hidden = 1 + np.flatnonzero(draws < rate)  # BOS comes first
        shown[hidden] = data.tokenizer.mask_id
        logits = plain(torch.from_numpy(shown)[None]).logits[0].double()
        log_chances = logits.log_softmax(-1)
        for position in hidden.tolist():
            total -= float(log_chances[position, ids[position]]) / rate
    return total, count


@pytest.mark.parametrize(("rates", "rate_of"), [("uniform", uniform), ("bimodal", bimodal)])
def test_the_loss_of_a_step_is_that_of_a_loop_over_documents(
    training_data, model, plain, rates, rate_of
):
    config = Diffusion(objective="diffusion", rates=rates)
    for batch in batches(training_data):
        (part,) = config.supervise(batch, training_data.vocabulary, mask_seed=3)
        total, count = loop(plain, training_data, batch, 3, rate_of)
        assert summed_loss(model, part).item() == pytest.approx(total, rel=1e-5)
        assert part.normaliser == count


def test_the_heldout_bound_is_that_of_a_loop_over_documents(training_data, model, plain):
    heldout = HeldoutLoss(training_data, max_seqlen=32, rows_per_batch=4)
    each = [
        loop(plain, training_data, batch, seed)
        for batch in batches(training_data, len(heldout._batches))
        for seed in range(4)
    ]
    config = Diffusion(objective="diffusion", rates="bimodal")  # its bound has uniform shares
    bound = sum(total for total, _ in each) / sum(count for _, count in each)
    found = heldout.evaluate(model, objectives=(), own=config.heldout_measures)
    assert found == {"diffusion": pytest.approx(bound, rel=1e-5)}
    # Any number of passes gives the same.
    divided = heldout.evaluate(model, objectives=(), own=config.heldout_measures, rows_per_pass=1)
    assert divided["diffusion"] == pytest.approx(bound, rel=1e-5)


def test_the_bound_is_unbiased(training_data):
    # A model that ignores its input has the likelihood of its unigrams, whatever is hidden.
    draw = np.random.default_rng(0)
    losses = draw.uniform(1, 8, training_data.vocabulary.size)
    (batch,) = batches(training_data, 1)
    texts = np.concatenate([np.arange(*text) for text in batch.texts.tolist()])
    exact = losses[batch.packed.input_ids.reshape(-1)[texts]].mean()
    bounds = []
    for seed in range(2000):
        (part,) = Diffusion(objective="diffusion").supervise(
            batch, training_data.vocabulary, mask_seed=seed
        )
        bounds.append((part.weights * losses[part.labels]).sum() / part.normaliser)
    error = np.std(bounds) / math.sqrt(len(bounds))
    assert abs(np.mean(bounds) - exact) < 3 * error
    assert error < 0.02 * exact


def test_bimodal_shares_have_two_modes(training_data):
    (batch,) = batches(training_data, 1)
    config = Diffusion(objective="diffusion", rates="bimodal")
    rates = []
    for seed in range(300):
        (part,) = config.supervise(batch, training_data.vocabulary, mask_seed=seed)
        rates += [1 / float(weight) for weight in set(part.weights.tolist())]
    low = [rate for rate in rates if rate < 0.3]
    assert np.mean(low) == pytest.approx(0.12, abs=0.01)
    assert np.mean([rate for rate in rates if rate >= 0.3]) == pytest.approx(0.85, abs=0.02)
    assert not [rate for rate in rates if 0.25 < rate < 0.45]
    identity = config.determinants(0)
    assert identity != Diffusion(objective="diffusion").determinants(0)


def test_each_sequence_has_one_rate(training_data):
    plan = RowPlan(
        training_data.corpus.lengths, [BatchShape(48, 8, 1)], data_seed=0, kind="random_length"
    )
    batch = RowReader(training_data.corpus, plan, training_data.tokenizer.special_ids).batch(0)
    assert len(batch.pieces) > len(batch.packed.spans)
    (part,) = Diffusion(objective="diffusion").supervise(
        batch, training_data.vocabulary, mask_seed=0
    )
    rates = []
    for start, end in batch.packed.spans.tolist():
        weights = part.weights[(part.positions >= start) & (part.positions < end)]
        assert len(set(weights.tolist())) <= 1
        rates += [1 / weight for weight in weights[:1]]
    assert len(set(rates)) == len(rates)
    assert LEAST <= min(rates) < 0.3
    assert 0.7 < max(rates) <= 1
