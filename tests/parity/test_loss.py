"""The grouped loss against torch's own cross-entropy."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from biphasic.objectives import loss as module
from biphasic.objectives.loss import summed_cross_entropy
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
