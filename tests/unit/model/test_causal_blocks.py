"""Causal attention in blocks: the same states and gradients, from fewer scores."""

import numpy as np
import pytest
import torch

from biphasic.data.packing import pack_sequences
from biphasic.model.compute import attention
from biphasic.model.compute.attention import attention_arguments, packed_attention
from biphasic.model.loading.build import new_model
from biphasic.objectives.supervision import Supervision
from biphasic.training.step.passes import Pass, pass_loss
from families import tiny_config

OPTIONS = [{}, {"scaling": 0.3}, {"sliding_window": 40}, {"across": True}]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 4e-2}


def attend(rows, shape, *, dtype=torch.float32, **options):
    """Return the output and the gradients of queries, keys and values."""
    draws = torch.Generator().manual_seed(0)
    states = [torch.randn(shape, generator=draws).to(dtype) for _ in range(4)]
    *inputs, gradient = (state.transpose(1, 2) for state in states)
    if options.pop("across", False):  # neighbours in a head are not neighbours in memory
        inputs = [each.mT.contiguous().mT for each in inputs]
    inputs = [each.requires_grad_() for each in inputs]
    segments = torch.from_numpy(rows.cu_seqlens)
    arguments = attention_arguments(
        segments, max_seqlen=rows.max_seqlen, shape=rows.input_ids.shape, dtype=dtype,
        causal=options.pop("causal", True), causal_blocks=options.pop("causal_blocks"),
    )  # fmt: skip
    output, _ = packed_attention(torch.nn.Module(), *inputs, None, **arguments, **options)
    output.backward(gradient.transpose(1, 2))
    return [output.detach(), *(each.grad for each in inputs)]


def rows_of(*lengths, row_length):
    return pack_sequences([np.arange(n) % 50 for n in lengths], row_length=row_length, pad_id=0)


@pytest.fixture
def scores(monkeypatch):
    """Scores that were computed, in parts of those of all pairs of tokens."""
    counts: list[float] = []
    original = attention._blocks

    def counted(mask, size):
        blocks = original(mask, size)
        counts.append(sum(part.numel() for _, _, part in blocks) / mask.numel())
        return blocks

    monkeypatch.setattr(attention, "_blocks", counted)
    return counts


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("row_length", [40, 64, 300, 512])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_states_and_gradients_are_those_of_all_scores(row_length, dtype, options):
    rows = rows_of(row_length, 30, 10, row_length - 9, row_length=row_length)
    shape = (*rows.input_ids.shape, 3, 16)
    whole, cut = (
        attend(rows, shape, dtype=dtype, causal_blocks=blocks, **options)
        for blocks in (False, True)
    )
    for expected, actual in zip(whole, cut, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 0.5625), (torch.bfloat16, 0.75)])
def test_scores_of_later_blocks_are_left_out(scores, dtype, share):
    rows = rows_of(512, 512, row_length=512)
    attend(rows, (*rows.input_ids.shape, 2, 16), dtype=dtype, causal_blocks=True)
    assert set(scores) == {share}


@pytest.mark.parametrize(
    "options", [{"causal": False, "causal_blocks": True}, {"causal_blocks": False}], ids=str
)
def test_other_passes_compute_all_scores_to_the_last_bit(options, scores):
    rows = rows_of(512, 100, row_length=512)
    shape = (*rows.input_ids.shape, 2, 16)
    for dtype in TOLERANCE:
        attend(rows, shape, dtype=dtype, **options)
    assert scores == [1.0]  # of bf16; torch's own function does not use blocks


def test_dropped_weights_are_the_same_ones():
    rows = rows_of(300, row_length=300)
    outputs = []
    for blocks in (False, True):
        torch.manual_seed(0)
        outputs.append(
            attend(rows, (1, 300, 2, 16), causal_blocks=blocks, dropout=0.5, dtype=torch.bfloat16)
        )
    for expected, actual in zip(*outputs, strict=True):
        assert torch.equal(expected, actual)


def test_capped_scores_are_cut_too(scores):
    rows = rows_of(200, 50, row_length=512)
    shape = (*rows.input_ids.shape, 2, 16)
    whole, cut = (
        attend(rows, shape, causal_blocks=blocks, softcap=5.0) for blocks in (False, True)
    )
    assert scores == [1.0, 0.75]
    for expected, actual in zip(whole, cut, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("family", ["eurobert", "qwen3", "gemma2"])
def test_a_family_s_loss_and_gradients_are_those_of_all_scores(family, scores):
    model = new_model(tiny_config(family), init_seed=1)
    rows = rows_of(300, 150, 20, row_length=300)
    positions = np.arange(100)
    given = Pass.of(Supervision(rows, positions, positions % 50, causal=True), first_position=0)
    found = []
    for blocks in (False, True):
        model.zero_grad()
        loss = pass_loss(model, given, causal_blocks=blocks)
        loss.backward()
        found.append([loss.detach(), *(each.grad for each in model.parameters())])
    assert min(scores) < 1
    for expected, actual in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head_dim", [64, 256])
def test_no_more_is_kept_for_the_backward_pass(head_dim):
    rows = rows_of(300, 300, row_length=300)
    kept: list[dict[int, torch.UntypedStorage]] = []

    def keep(state):
        kept[-1][state.untyped_storage().data_ptr()] = state.untyped_storage()
        return state

    for blocks in (False, True):
        kept.append({})
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda state: state):
            attend(rows, (2, 300, 2, head_dim), dtype=torch.bfloat16, causal_blocks=blocks)
    whole, cut = (sum(storage.nbytes() for storage in each.values()) for each in kept)
    assert cut < whole
