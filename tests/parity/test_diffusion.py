"""Masked diffusion against a plain loop over documents, and its bound against known likelihoods."""

from __future__ import annotations

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

from biphasic.data.rows import BatchShape, RowPlan, RowReader
from biphasic.objectives.masking import Diffusion
from biphasic.seeds import stream, uniforms
from biphasic.training import heldout as module
from biphasic.training.heldout import HeldoutLoss
from biphasic.training.run import first_model
from biphasic.training.step.input import summed_loss

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


@torch.no_grad()
def loop(plain, data, batch, seed):
    """Sum the weighted losses of each document, read alone; count its tokens."""
    total, count = 0.0, 0
    for (start, end), piece in zip(batch.packed.spans.tolist(), batch.pieces, strict=True):
        ids = batch.packed.input_ids.reshape(-1)[start:end]
        place = (seed, piece.epoch, piece.document, piece.start)
        rate = LEAST + (1 - LEAST) * uniforms(stream("diffusion", *place), 1)[0]
        draws = uniforms(stream("mask", *place), len(ids) - 2)
        shown, count = ids.copy(), count + len(ids) - 2
        hidden = 1 + np.flatnonzero(draws < rate)  # BOS comes first
        shown[hidden] = data.tokenizer.mask_id
        logits = plain(torch.from_numpy(shown)[None]).logits[0].double()
        log_chances = logits.log_softmax(-1)
        for position in hidden.tolist():
            total -= float(log_chances[position, ids[position]]) / rate
    return total, count


def test_the_loss_of_a_step_is_that_of_a_loop_over_documents(training_data, model, plain):
    config = Diffusion(objective="diffusion")
    for batch in batches(training_data):
        (part,) = config.supervise(batch, training_data.vocabulary, mask_seed=3)
        total, count = loop(plain, training_data, batch, 3)
        assert summed_loss(model, part).item() == pytest.approx(total, rel=1e-5)
        assert part.normaliser == count


def test_the_heldout_bound_is_that_of_a_loop_over_documents(training_data, model, plain):
    heldout = HeldoutLoss(training_data, max_seqlen=32, rows_per_batch=4)
    each = [
        loop(plain, training_data, batch, seed)
        for batch in batches(training_data, len(heldout._batches))
        for seed in range(4)
    ]
    config = Diffusion(objective="diffusion")
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
