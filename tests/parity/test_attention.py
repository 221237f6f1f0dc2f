"""Our attention function and its backends against attention by its definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import varlen

from biphasic.errors import ModelError
from biphasic.model.compute import attention
from biphasic.model.compute.attention import (
    attention_arguments,
    backend,
    block_mask,
    packed_attention,
    varlen_options,
)
from rounding import assert_as_exact

ROW_LENGTH, NUM_HEADS, HEAD_DIM = 10, 4, 8
# Two rows: 3 + 7 tokens, then 6 + 1 + 3.
CU_SEQLENS = torch.tensor([0, 3, 10, 16, 17, 20], dtype=torch.int32)
MAX_SEQLEN = 7

CAUSAL = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
GROUPS = pytest.mark.parametrize("num_key_heads", [1, 2, 4])
WINDOWS = pytest.mark.parametrize("sliding_window", [None, 1, 3])


def make_states(num_key_heads: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return query, key and value that require gradients."""
    draws = torch.Generator().manual_seed(num_key_heads)
    return [
        torch.randn(2, heads, ROW_LENGTH, HEAD_DIM, generator=draws)
        .mul(2)
        .to(dtype)
        .requires_grad_()
        for heads in (NUM_HEADS, num_key_heads, num_key_heads)
    ]


def arguments(*, causal: bool = True, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Return what the model's call passes down to each layer."""
    return attention_arguments(
        CU_SEQLENS, max_seqlen=MAX_SEQLEN, shape=(2, ROW_LENGTH), causal=causal, dtype=dtype
    )


def attend(states: list[Tensor], *, causal: bool, **options: Any) -> Tensor:
    """Call our function as a model's layer does."""
    passed = {**arguments(causal=causal, dtype=states[0].dtype), **options}
    output, weights = packed_attention(nn.Identity(), *states, None, **passed)
    assert weights is None
    assert output.shape == (2, ROW_LENGTH, NUM_HEADS, HEAD_DIM)
    return output


def expected(
    reference: Callable[..., Tensor],
    states: list[Tensor],
    *,
    causal: bool,
    sliding_window: int | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Return the reference in the states' precision, laid out as our function's output."""
    flat = (part.transpose(1, 2).flatten(0, 1) for part in states)
    left = -1 if sliding_window is None else sliding_window - 1
    reach = (left, 0 if causal else left)
    output = reference(*flat, CU_SEQLENS, reach=reach, scale=scaling, softcap=softcap)
    return output.view(2, ROW_LENGTH, NUM_HEADS, HEAD_DIM)


def assert_same(
    actual: Tensor, reference: Callable[..., Tensor], states: list[Tensor], **options: Any
) -> None:
    """Compare outputs and gradients with the definition's in the same precision and in fp64."""
    dtype = states[0].dtype
    direction = torch.randn(actual.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = [[actual, *torch.autograd.grad(actual, states, direction)]]
    for precision in (dtype, torch.float64):
        inputs = [part.detach().to(precision).requires_grad_() for part in states]
        output = expected(reference, inputs, **options)
        gradients = torch.autograd.grad(output, inputs, direction.to(precision))
        found.append([output, *gradients])
    # A token that reads itself alone has a weight of one, and gradients of this size cancel.
    of_weights = float((direction * output.detach()).sum(-1).abs().max())
    largest = max(float(part.detach().abs().max()) for part in states)
    assert_as_exact(*found, cancelled=of_weights * largest * HEAD_DIM**-0.5)


@CAUSAL
@GROUPS
@WINDOWS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["sdpa", "dense"])
def test_equals_the_definition(dtype, sliding_window, num_key_heads, causal, reference_attention):
    states = make_states(num_key_heads, dtype)
    output = attend(states, causal=causal, sliding_window=sliding_window)
    assert_same(output, reference_attention, states, causal=causal, sliding_window=sliding_window)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["sdpa", "dense"])
def test_scores_are_scaled_as_the_layer_says(dtype, reference_attention):
    states = make_states(2, dtype)
    output = attend(states, causal=True, scaling=0.9)
    assert_same(output, reference_attention, states, causal=True, scaling=0.9)


@CAUSAL
@WINDOWS
@pytest.mark.parametrize("has_mask", [True, False], ids=["cpu", "as-on-cuda"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_capped_scores_equal_the_definition(
    dtype, has_mask, sliding_window, causal, reference_attention
):
    """On CUDA in half precision the batch brings no mask; one is built where scores are capped."""
    states = make_states(2, dtype)
    options: dict[str, Any] = {"sliding_window": sliding_window, "softcap": 1.5}
    output = attend(states, causal=causal, **options, **({} if has_mask else {"block_mask": None}))
    assert_same(output, reference_attention, states, causal=causal, **options)
    uncapped = attend(states, causal=causal, sliding_window=sliding_window)
    assert sliding_window == 1 or float((output - uncapped).detach().abs().max()) > 0.1


@CAUSAL
def test_dense_and_sdpa_are_one_function(causal, reference_attention):
    states = [part.detach() for part in make_states(NUM_HEADS)]
    mask = block_mask(CU_SEQLENS, shape=(2, ROW_LENGTH), causal=causal, dtype=torch.float32)
    dense = attention._dense(*states, mask, scaling=None, dropout=0.0)
    exact = expected(reference_attention, [part.double() for part in states], causal=causal)
    assert_as_exact([dense], [attend(states, causal=causal)], [exact])


def test_dropout_drops_attention_weights():
    for dtype in (torch.float32, torch.bfloat16):
        states = make_states(2, dtype)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            dropped = attend(states, causal=False, dropout=0.5)
        assert not torch.equal(dropped, attend(states, causal=False))
        assert torch.equal(attend(states, causal=False, dropout=1.0), torch.zeros_like(dropped))


def test_block_mask_is_open_within_segments_alone():
    cu_seqlens = torch.tensor([0, 2, 3, 6], dtype=torch.int32)  # rows of 3: 2 + 1, then 3
    closed = float("-inf")
    both = block_mask(cu_seqlens, shape=(2, 3), causal=False, dtype=torch.float32)
    assert both.tolist() == [
        [[[0, 0, closed], [0, 0, closed], [closed, closed, 0]]],
        [[[0, 0, 0], [0, 0, 0], [0, 0, 0]]],
    ]
    before = block_mask(cu_seqlens, shape=(2, 3), causal=True, dtype=torch.bfloat16)
    assert before.dtype == torch.bfloat16
    assert before.tolist() == [
        [[[0, closed, closed], [0, 0, closed], [closed, closed, 0]]],
        [[[0, closed, closed], [0, 0, closed], [0, 0, 0]]],
    ]


def test_backend_follows_device_and_precision():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert backend(cpu, torch.float32) == "sdpa"
    assert backend(cpu, torch.bfloat16) == "dense"
    assert backend(cpu, torch.float32, drops=True) == "dense"
    assert backend(cuda, torch.float32, drops=True) == "sdpa"
    assert backend(cuda, torch.float32) == "sdpa"
    assert backend(cuda, torch.bfloat16) == backend(cuda, torch.float16) == "varlen"


class TestRefusals:
    """What our function does not compute it refuses."""

    @pytest.mark.parametrize("missing", ["cu_seqlens", "max_seqlen", "causal"])
    def test_missing_arguments(self, missing):
        with pytest.raises(ModelError, match=r"Identity was called without cu_seqlens"):
            packed_attention(nn.Identity(), *make_states(2), None, **{**arguments(), missing: None})

    def test_mask_beside_segments(self):
        mask = torch.zeros(2, 1, ROW_LENGTH, ROW_LENGTH)
        with pytest.raises(ModelError, match="attention_mask"):
            packed_attention(nn.Identity(), *make_states(2), mask, **arguments())

    def test_sinks(self):
        extra = {"s_aux": torch.zeros(NUM_HEADS)}
        with pytest.raises(ModelError, match="Identity has attention sinks"):
            attend(make_states(2), causal=True, **extra)

    def test_what_other_backends_need_is_ignored(self):
        states = make_states(2)
        output = attend(states, causal=True, softcap=None, position_ids=torch.zeros(2, 10))
        assert torch.equal(output, attend(states, causal=True))


class TestVarlenOptions:
    """How causality, window and scale are spelled for an installed torch."""

    NEW = frozenset({"query", "scale", "window_size", "enable_gqa"})  # torch 2.13
    OLD = frozenset({"query", "scale", "is_causal"})

    @pytest.mark.parametrize(
        ("causal", "sliding_window", "window_size"),
        [
            (True, None, (-1, 0)),
            (False, None, (-1, -1)),
            (True, 4, (3, 0)),  # itself and the three before it
            (False, 4, (3, 3)),
            (True, 1, (0, 0)),
        ],
    )
    def test_new(self, causal, sliding_window, window_size):
        options = varlen_options(
            set(self.NEW), causal=causal, scaling=None, sliding_window=sliding_window
        )
        assert options == {"window_size": window_size}

    @CAUSAL
    def test_old(self, causal):
        options = varlen_options(set(self.OLD), causal=causal, scaling=None, sliding_window=None)
        assert options == {"is_causal": causal}

    def test_scale_is_passed_on(self):
        for accepted in (self.NEW, self.OLD):
            options = varlen_options(set(accepted), causal=True, scaling=0.5, sliding_window=None)
            assert options["scale"] == 0.5

    def test_old_torch_has_no_windows(self):
        with pytest.raises(ModelError, match=r"sliding windows need torch 2\.13"):
            varlen_options(set(self.OLD), causal=True, scaling=None, sliding_window=4)

    @CAUSAL
    def test_unknown_torch_is_refused(self, causal):
        with pytest.raises(ModelError, match="neither window_size nor is_causal"):
            varlen_options({"query", "scale"}, causal=causal, scaling=None, sliding_window=None)

    def test_the_installed_torch_is_known(self):
        import inspect

        accepted = set(inspect.signature(varlen.varlen_attn).parameters)
        assert varlen_options(accepted, causal=True, scaling=None, sliding_window=None)


class TestVarlen:
    """The path of the variable-length kernel, with a kernel that runs on a CPU."""

    @pytest.fixture(params=["new", "old"])
    def calls(
        self,
        request: pytest.FixtureRequest,
        monkeypatch: pytest.MonkeyPatch,
        reference_attention: Callable[..., Tensor],
    ) -> list[dict[str, Any]]:
        """Replace the kernel by the reference under a new or old signature; record its calls."""
        calls: list[dict[str, Any]] = []

        def compute(
            flat: tuple[Tensor, ...], borders: tuple[Any, ...], reach: tuple[int, int],
            scale: float | None, *, enable_gqa: bool,
        ) -> Tensor:  # fmt: skip
            cu_seq_q, cu_seq_k, max_q, max_k = borders
            assert cu_seq_q is cu_seq_k
            assert cu_seq_q.dtype == torch.int32
            assert (max_q, max_k) == (MAX_SEQLEN, MAX_SEQLEN)
            assert all(part.is_contiguous() for part in flat)
            assert (flat[0].shape[1] != flat[1].shape[1]) == enable_gqa
            calls.append({"reach": reach, "key_heads": flat[1].shape[1]})
            return reference_attention(*flat, cu_seq_q, reach=reach, scale=scale)

        def new(
            query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *,
            scale=None, window_size=(-1, -1), enable_gqa=False,
        ) -> Tensor:  # fmt: skip
            borders = (cu_seq_q, cu_seq_k, max_q, max_k)
            return compute((query, key, value), borders, window_size, scale, enable_gqa=enable_gqa)

        def old(
            query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, scale=None
        ) -> Tensor:
            borders, reach = (cu_seq_q, cu_seq_k, max_q, max_k), (-1, 0 if is_causal else -1)
            return compute((query, key, value), borders, reach, scale, enable_gqa=False)

        monkeypatch.setattr(varlen, "varlen_attn", {"new": new, "old": old}[request.param])
        return calls

    @CAUSAL
    @GROUPS
    @WINDOWS
    def test_equals_the_definition(
        self, sliding_window, num_key_heads, causal, calls, request, reference_attention
    ):
        is_old = "old" in request.node.callspec.id.split("-")
        states = make_states(num_key_heads)
        options = {"causal": causal, "sliding_window": sliding_window, "scaling": 0.7}
        if is_old and sliding_window is not None:
            with pytest.raises(ModelError, match="sliding windows need torch"):
                attend(states, **options, block_mask=None)
            return
        output = attend(states, **options, block_mask=None)
        assert_same(output, reference_attention, states, **options)
        assert len(calls) == 1
        assert calls[0]["key_heads"] == (NUM_HEADS if is_old else num_key_heads)

    def test_no_mask_is_built_for_it(self, monkeypatch):
        monkeypatch.setattr(attention, "backend", lambda *_: "varlen")
        passed = arguments(dtype=torch.bfloat16)
        assert passed["block_mask"] is None
        assert passed["cu_seqlens"] is CU_SEQLENS
        assert (passed["max_seqlen"], passed["causal"]) == (MAX_SEQLEN, True)

    def test_dropout_that_it_cannot_compute_is_refused(self, calls):
        options = {"causal": False, "sliding_window": None, "scaling": None}
        with pytest.raises(ModelError, match=r"dropout 0\.1.*batching: padded"):
            attend(make_states(NUM_HEADS), **options, block_mask=None, dropout=0.1)
        assert calls == []
