"""Losses by definition: chunks, gradients, and the rates of diffusion."""

from __future__ import annotations

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import AutoModelForMaskedLM

from biphasic.data.rows import BatchShape, RowPlan, RowReader
from biphasic.objectives import loss as module
from biphasic.objectives.loss import summed_cross_entropy
from biphasic.objectives.masking import Diffusion
from biphasic.seeds import stream, uniforms
from biphasic.training import heldout
from biphasic.training.heldout import HeldoutLoss
from biphasic.training.run import first_model
from biphasic.training.step.input import summed_loss
from rounding import assert_as_exact, exactly

HIDDEN, VOCAB = 6, 50
GROUP, BLOCK = 8, 3  # rows that the patched budgets of logits hold


@pytest.fixture(autouse=True)
def small_groups_and_blocks(monkeypatch):
    monkeypatch.setattr(module, "GROUP_LOGITS", GROUP * VOCAB)
    monkeypatch.setattr(module, "BLOCK_LOGITS", BLOCK * VOCAB)


def problem(count: int, *, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    hidden = torch.randn(count, HIDDEN, generator=generator) * scale
    weight = torch.randn(VOCAB, HIDDEN, generator=generator) * 0.3
    labels = torch.randint(VOCAB, (count,), generator=generator)
    return hidden, weight, labels


def losses(function, hidden, weight, labels):
    hidden, weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    value = function(hidden, weight, labels)
    (value * 0.37).backward()  # the caller divides, so the scale must reach the gradients
    return value.detach(), hidden.grad, weight.grad


def reference(hidden, weight, labels):
    return F.cross_entropy((hidden @ weight.T).float(), labels, reduction="sum")


def in_fp64(function, *given):
    """Return what `losses` does, of a plain loss and in fp64."""
    exact = [part.double() if part.is_floating_point() else part for part in given]
    return exactly(lambda: losses(function, *exact))


def assert_as_torch(ours, plain, *given):
    """Compare a loss, or its value alone, and gradients with a plain one's, by their errors."""
    ours = ours if isinstance(ours, tuple) else (ours,)
    both = (losses(plain, *given), in_fp64(plain, *given))
    assert_as_exact(ours, *(each[: len(ours)] for each in both))


@pytest.mark.parametrize("count", [GROUP, 3 * GROUP + 5])
def test_near_torch_in_bf16(count):
    hidden, weight, labels = problem(count)
    exact = losses(reference, hidden.bfloat16().float(), weight.bfloat16().float(), labels)
    ours = losses(summed_cross_entropy, hidden.bfloat16(), weight.bfloat16(), labels)
    assert ours[0].dtype == torch.float32
    assert ours[1].dtype == ours[2].dtype == torch.bfloat16
    # bf16 keeps 8 bits: 2**-8 = 0.4 % a rounding.
    torch.testing.assert_close(ours[0], exact[0], rtol=5e-3, atol=0)
    for mine, right in zip(ours[1:], exact[1:], strict=True):
        error = (mine.float() - right).norm() / right.norm()
        assert error < 0.01


def test_chunks_do_not_change_the_result(monkeypatch):
    given = problem(45)
    chunked = losses(summed_cross_entropy, *given)
    monkeypatch.setattr(module, "GROUP_LOGITS", 1 << 21)
    whole = losses(summed_cross_entropy, *given)
    assert_as_exact(chunked, whole, in_fp64(reference, *given))


def test_huge_logits_neither_overflow_nor_vanish():
    given = problem(20, scale=1e4)
    ours = losses(summed_cross_entropy, *given)
    assert_as_torch(ours, reference, *given)
    assert all(torch.isfinite(part).all() for part in ours)


def test_never_holds_more_logits_than_a_group():
    class Spy(torch.utils._python_dispatch.TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.ndim == 2 and result.shape[1] == VOCAB:
                self.largest = max(self.largest, result.shape[0])
            return result

    hidden, weight, labels = problem(10 * GROUP + 3)
    with Spy() as spy:
        losses(summed_cross_entropy, hidden, weight, labels)
    assert spy.largest == GROUP
    with Spy() as spy:
        losses(reference, hidden, weight, labels)
    assert spy.largest == 10 * GROUP + 3  # the spy does see what the reference holds


def test_a_group_is_at_least_one_row(monkeypatch):
    monkeypatch.setattr(module, "GROUP_LOGITS", 1)
    monkeypatch.setattr(module, "BLOCK_LOGITS", 1)
    given = problem(3)
    assert_as_torch(summed_cross_entropy(*given), reference, *given)


def test_without_gradient_only_the_sum_is_made():
    given = problem(20)
    with torch.no_grad():
        value = summed_cross_entropy(*given)
    assert not value.requires_grad
    assert_as_torch(value, reference, *given)


def full_problem(count: int):
    generator = torch.Generator().manual_seed(count)
    return (*problem(count), torch.randn(VOCAB, generator=generator))


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("count", [1, GROUP - 1, GROUP, GROUP + 1, 3 * GROUP, 3 * GROUP + 5])
def test_bias_and_cap_equal_plain_autograd(count, has_bias, softcap):
    hidden, weight, labels, bias = full_problem(count)
    leaves = [hidden, weight] + [bias] * has_bias
    found = []
    for is_ours, precision in (
        (True, torch.float32),
        (False, torch.float32),
        (False, torch.float64),
    ):
        copies = [leaf.to(precision, copy=True).requires_grad_() for leaf in leaves]
        given = copies[2] if has_bias else None
        if is_ours:
            value = summed_cross_entropy(*copies[:2], labels, bias=given, softcap=softcap)
        else:
            logits = F.linear(copies[0], copies[1], given)
            logits = logits if softcap is None else softcap * (logits / softcap).tanh()
            value = F.cross_entropy(logits, labels, reduction="sum")
        (value * 0.37).backward()
        found.append([value.detach(), *(copy.grad for copy in copies)])
    assert_as_exact(*found)


def test_bias_and_cap_near_torch_in_bf16():
    hidden, weight, labels, bias = (
        part.bfloat16() if part.is_floating_point() else part for part in full_problem(29)
    )
    value = summed_cross_entropy(hidden, weight, labels, bias=bias, softcap=2.0)
    logits = 2 * (F.linear(hidden.float(), weight.float(), bias.float()) / 2).tanh()
    exact = F.cross_entropy(logits, labels, reduction="sum")
    torch.testing.assert_close(value, exact, rtol=5e-3, atol=0)


@pytest.mark.parametrize("trained", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
def test_only_trained_parameters_get_a_gradient(trained, monkeypatch):
    calls = []

    def counted(name):
        original = getattr(module, name)

        def call(*factors):
            calls.append(name)
            return original(*factors)

        monkeypatch.setattr(module, name, call)

    for name in ("product", "input_gradient", "weight_gradient"):
        counted(name)
    hidden, weight, labels, bias = full_problem(3 * GROUP)
    leaves = [hidden, weight, bias]
    for index in trained:
        leaves[index].requires_grad_()
    summed_cross_entropy(leaves[0], leaves[1], labels, bias=bias).backward()
    assert [leaf.grad is not None for leaf in leaves] == [index in trained for index in range(3)]
    # Three groups: their logits, and a product for each of the two gradients that need one.
    gradients = {0: "input_gradient", 1: "weight_gradient"}
    wanted = ["product", *(gradients[index] for index in trained if index in gradients)]
    assert sorted(calls) == sorted(3 * wanted)


def test_nothing_supervised_is_no_loss_and_no_gradient():
    hidden, weight, labels, bias = full_problem(4)
    leaves = [part.requires_grad_() for part in (hidden, weight, bias)]
    value = summed_cross_entropy(hidden[:0], weight, labels[:0], bias=bias)
    value.backward()
    assert float(value.detach()) == 0
    assert not any(leaf.grad.any() for leaf in leaves)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_weights_are_factors_of_losses(softcap):
    hidden, weight, labels = problem(3 * GROUP + 5)
    weights = torch.linspace(0, 3, len(labels))

    def ours(hidden, weight, labels):
        return summed_cross_entropy(hidden, weight, labels, softcap=softcap, weights=weights)

    def plain(hidden, weight, labels):
        logits = hidden @ weight.T
        logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        return (weights * F.cross_entropy(logits, labels, reduction="none")).sum()

    given = hidden, weight, labels
    assert_as_torch(losses(ours, *given), plain, *given)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_a_loss_of_ones_own_has_the_gradients_of_torch(softcap, weighted):
    hidden, weight, labels = problem(3 * GROUP + 5)
    factors = torch.linspace(0, 3, len(labels)) if weighted else None

    def smoothed(logits, labels):
        z_loss = 0.1 * logits.logsumexp(-1).square()
        return F.cross_entropy(logits, labels, label_smoothing=0.2, reduction="none") + z_loss

    def ours(hidden, weight, labels):
        return summed_cross_entropy(
            hidden, weight, labels, softcap=softcap, weights=factors, per_label=smoothed
        )

    def plain(hidden, weight, labels):
        logits = hidden @ weight.T
        logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        return (smoothed(logits, labels) * (1.0 if factors is None else factors)).sum()

    given = hidden, weight, labels
    assert_as_torch(losses(ours, *given), plain, *given)


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
    plan = RowPlan(data.heldout.lengths, shapes, data_seed=heldout.HELDOUT_SEED)
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
