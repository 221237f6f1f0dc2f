"""Whole models: packed against alone, against transformers' own attention and loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import varlen
from transformers import PreTrainedModel

from biphasic.data.packing import PackedBatch, pack_sequences
from biphasic.data.rows import Piece, RowBatch
from biphasic.errors import ModelError
from biphasic.model.compute import attention
from biphasic.model.compute.forward import hidden_states
from biphasic.objectives.clm import Clm
from biphasic.objectives.masking import Mlm
from biphasic.objectives.supervision import Supervision, Vocabulary
from biphasic.training.step.input import summed_loss
from biphasic.training.step.optimizer import set_precision
from biphasic.training.step.weights import MasterWeights
from families import replaced_attention
from rounding import assert_as_exact, exactly

pytestmark = pytest.mark.slow

Documents = list[NDArray[np.int64]]

FAMILIES = ("llama", "qwen3", "eurobert", "modernbert")
WINDOWED = ("gemma3", "qwen2")
BROAD = 0.1
"""Hidden states that differ by less would not show a leak."""

CAUSAL = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
FAMILY = pytest.mark.parametrize("family", FAMILIES)
ANY_FAMILY = pytest.mark.parametrize("family", [*FAMILIES, *WINDOWED])
PRECISION = pytest.mark.parametrize("precision", ["fp32", "bf16"])


def alone(model: PreTrainedModel, document: NDArray[np.int64], *, causal: bool) -> Tensor:
    """Return the hidden states of one document in a row of its own length."""
    batch = pack_sequences([document], row_length=len(document), pad_id=0)
    return hidden_states(model, batch, causal=causal)


def in_fp64(model: PreTrainedModel, function: Callable[[PreTrainedModel], Any]) -> Any:
    """Return what a function makes of the same model in fp64."""
    exact = deepcopy(model).double()
    return exactly(lambda: function(exact))


def input_gradient(
    model: PreTrainedModel, batch: PackedBatch, positions: slice, *, causal: bool
) -> Tensor:
    """Return the gradient of some hidden states with respect to all input embeddings, by token."""
    leaves: list[Tensor] = []

    def detach(_module: object, _inputs: object, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[0]

    hook = model.get_input_embeddings().register_forward_hook(detach)
    try:
        states = hidden_states(model, batch, causal=causal)[positions].float()
    finally:
        hook.remove()
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad((states * weights).sum(), leaves)
    return gradient.flatten(0, 1)


class TestPacking:
    """A packed document is as if alone."""

    @CAUSAL
    @PRECISION
    @ANY_FAMILY
    def test_packed_equals_alone(
        self, family, precision, causal, tiny_model, token_documents, packed
    ):
        model = tiny_model(family)
        set_precision(model, precision)
        together = hidden_states(model, packed, causal=causal)
        assert together.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
        for document, (start, end) in zip(token_documents, packed.spans, strict=True):
            single = alone(model, document, causal=causal)
            exact = in_fp64(model, lambda model, d=document: alone(model, d, causal=causal))
            assert_as_exact([together[start:end]], [single], [exact])

    @CAUSAL
    @FAMILY
    def test_a_leak_would_show(
        self, family, causal, monkeypatch, tiny_model, token_documents, packed
    ):
        """The models are such that one mask for the whole row changes much."""
        model = tiny_model(family)
        whole_rows = torch.arange(0, 3 * packed.row_length, packed.row_length, dtype=torch.int32)
        build_mask = attention.block_mask
        monkeypatch.setattr(
            attention, "block_mask", lambda _, **options: build_mask(whole_rows, **options)
        )
        together = hidden_states(model, packed, causal=causal)
        start, end = packed.spans[2]
        monkeypatch.undo()
        assert start % packed.row_length  # not the first of its row
        difference = together[start:end] - alone(model, token_documents[2], causal=causal)
        assert float(difference.detach().abs().max()) > BROAD

    @CAUSAL
    @PRECISION
    @ANY_FAMILY
    def test_no_gradient_crosses_documents(self, family, precision, causal, tiny_model, packed):
        model = tiny_model(family)
        set_precision(model, precision)
        segments = zip(packed.cu_seqlens[:-1].tolist(), packed.cu_seqlens[1:].tolist(), strict=True)
        for start, end in segments:
            gradient = input_gradient(model, packed, slice(start, end), causal=causal)
            inside = gradient[start:end].clone()
            gradient[start:end] = 0
            assert not gradient.any()  # exactly zero, padding included
            assert bool(inside.any(-1).all())

    @CAUSAL
    @FAMILY
    def test_direction_of_sight(self, family, causal, tiny_model, packed):
        """The first token's state depends on later tokens if and only if nothing is causal."""
        start, end = packed.spans[0].tolist()
        first = slice(start, start + 1)
        gradient = input_gradient(tiny_model(family), packed, first, causal=causal)
        seen = gradient[start:end].any(-1).tolist()
        assert seen == [True] + [not causal] * (end - start - 1)


class TestOwnAttention:
    """For one document without padding we compute what transformers computes."""

    @pytest.mark.parametrize("implementation", ["sdpa", "eager"])
    @pytest.mark.parametrize(
        ("family", "changes", "causal"),
        [
            ("llama", {}, True),
            ("llama", {"is_causal": False}, False),
            ("llama", {"num_key_value_heads": 1}, True),
            ("llama", {"num_key_value_heads": 4}, True),
            ("qwen3", {}, True),
            ("qwen3", {"is_causal": False}, False),
            ("eurobert", {}, False),
            ("modernbert", {}, False),
            ("gemma3", {}, True),
            ("gemma3", {"use_bidirectional_attention": True}, False),
            ("qwen2", {}, True),
        ],
    )
    def test_same_hidden_states(
        self, family, changes, causal, implementation, tiny_model, token_documents, own_attention
    ):
        model = tiny_model(family, **changes)
        tokens = torch.from_numpy(token_documents[0])[None]

        def states(model: PreTrainedModel) -> Tensor:
            return model.base_model(input_ids=tokens).last_hidden_state[0]

        theirs = own_attention(model, implementation)
        ours = alone(model, token_documents[0], causal=causal)
        assert_as_exact([ours], [states(theirs)], [in_fp64(theirs, states)])

    @pytest.mark.parametrize("family", ["gemma3", "qwen2", "modernbert"])
    def test_windows_are_seen(self, family, tiny_model, token_documents):
        """The equality above would not hold if windows were ignored."""
        causal = family != "modernbert"
        wide = {"local_attention": 128} if family == "modernbert" else {"sliding_window": 64}
        narrow, broad = tiny_model(family), tiny_model(family, **wide)
        broad.load_state_dict(narrow.state_dict())
        states = [alone(model, token_documents[0], causal=causal) for model in (narrow, broad)]
        assert float((states[0] - states[1]).detach().abs().max()) > BROAD

    def test_modernbert_window_reaches_half_of_local_attention(self, tiny_model):
        model = tiny_model("modernbert", num_hidden_layers=2)  # the second layer is local
        batch = pack_sequences([np.arange(4, 19)], row_length=15, pad_id=0)
        layer = model.base_model.layers[1].attn
        seen: list[Tensor] = []
        layer.register_forward_hook(lambda _m, _i, output: seen.append(output[0]))
        noisy = torch.zeros(1, 15, 32).index_fill(1, torch.tensor([7]), 1.0)
        hidden_states(model, batch, causal=False)
        layer.register_forward_pre_hook(lambda _m, inputs: (inputs[0] + noisy, *inputs[1:]))
        hidden_states(model, batch, causal=False)
        changed = (seen[0] != seen[1])[0].any(-1)
        assert changed.nonzero().flatten().tolist() == list(range(7 - 4, 7 + 4 + 1))


@pytest.fixture
def calls() -> Iterator[list[tuple[object, dict[str, Any]]]]:
    """Record the layer and arguments of each call of our function."""
    recorded: list[tuple[object, dict[str, Any]]] = []

    def record(ours: Any, module: object, *states: Any, **options: Any) -> Any:
        recorded.append((module, options))
        return ours(module, *states, **options)

    with replaced_attention(record):
        yield recorded


@pytest.fixture
def broken() -> Iterator[None]:
    """Put a function that returns nothing but zeros in the place of ours."""

    def zeros(_ours: Any, _module: object, query: Tensor, *_: Any, **__: Any) -> Any:
        return torch.zeros_like(query).transpose(1, 2), None

    with replaced_attention(zeros):
        yield


def attention_layers(model: PreTrainedModel) -> list[object]:
    """Return the modules that attend, in order."""
    layers = model.base_model.layers
    return [getattr(layer, "self_attn", None) or layer.attn for layer in layers]


def weight_gradients(model: PreTrainedModel, batch: PackedBatch, *, causal: bool) -> list[Tensor]:
    """Return the gradients of a scalar of the hidden states."""
    model.zero_grad()
    states = hidden_states(model, batch, causal=causal)
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(0))
    (states * weights).sum().backward()
    return [weight.grad for weight in model.base_model.parameters() if weight.grad is not None]


class TestCalls:
    """Our function is called in every layer with its arguments."""

    @CAUSAL
    @pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
    @ANY_FAMILY
    def test_every_layer_calls_it(self, family, checkpointing, causal, tiny_model, packed, calls):
        model = tiny_model(family, attention_dropout=0.0).train()
        layers = attention_layers(model)
        if checkpointing:
            model.activation_checkpointing_enable()
        weight_gradients(model, packed, causal=causal)
        # Checkpointed layers are computed again, from the last to the first.
        again = layers[::-1] if checkpointing else []
        assert [id(module) for module, _ in calls] == [id(layer) for layer in layers + again]
        for module, options in calls:
            assert torch.equal(options["cu_seqlens"], torch.from_numpy(packed.cu_seqlens))
            assert options["max_seqlen"] == packed.max_seqlen
            assert options["causal"] is causal
            assert options["block_mask"].shape == (2, 1, packed.row_length, packed.row_length)
            assert options.get("sliding_window") == getattr(module, "sliding_window", None)

    @CAUSAL
    @ANY_FAMILY
    def test_checkpointing_changes_no_gradient(self, family, causal, tiny_model, packed):
        model = tiny_model(family).train()
        plain = weight_gradients(model, packed, causal=causal)
        model.activation_checkpointing_enable()
        checkpointed = weight_gradients(model, packed, causal=causal)
        assert len(plain) == len(checkpointed) > 10
        assert all(map(torch.equal, plain, checkpointed))

    def test_compiled_models_call_it(self, request, tiny_model, packed):
        """EuroBERT's, causal and with checkpointing: tests/unit/training/test_compiled.py."""
        # Two layers, one of each kind.
        model, plain = (tiny_model("modernbert", num_hidden_layers=2).train() for _ in range(2))
        torch.compiler.reset()
        model.base_model.compile(backend="aot_eager", fullgraph=True)

        def states_and_gradients(model: PreTrainedModel) -> list[Tensor]:
            states = hidden_states(model, packed, causal=False).detach()
            return [states, *weight_gradients(model, packed, causal=False)]

        compiled, (states, *gradients) = map(states_and_gradients, (model, plain))
        exact = in_fp64(plain, states_and_gradients)
        assert_as_exact(compiled, [states, *gradients], exact)

        # With a broken function both must go wrong in the same way: so every layer calls it.
        torch.compiler.reset()
        request.getfixturevalue("broken")
        with torch.no_grad():
            shattered = hidden_states(plain, packed, causal=False)
            assert float((shattered - states).abs().max()) > BROAD
            exact = in_fp64(plain, lambda model: hidden_states(model, packed, causal=False))
            compiled = hidden_states(model, packed, causal=False)
            assert_as_exact([compiled], [shattered], [exact])

    @ANY_FAMILY
    def test_a_mask_that_hides_tokens_is_refused(self, family, tiny_model, packed):
        model = tiny_model(family)
        input_ids = torch.from_numpy(packed.input_ids)
        arguments = attention.attention_arguments(
            torch.from_numpy(packed.cu_seqlens), max_seqlen=packed.max_seqlen,
            shape=packed.input_ids.shape, causal=False, dtype=torch.float32,
        )  # fmt: skip
        logits = model(input_ids=input_ids, **arguments).logits
        # Some families make one that hides nothing.
        mask = torch.ones_like(input_ids)
        unhidden = model(input_ids=input_ids, attention_mask=mask, **arguments).logits
        assert torch.equal(unhidden, logits)
        with pytest.raises(ModelError, match="attention_mask"):
            model(input_ids=input_ids, attention_mask=(input_ids != 0).long(), **arguments)


@CAUSAL
@ANY_FAMILY
def test_variable_length_kernel_gives_the_same_states(
    family, causal, monkeypatch, tiny_model, packed, reference_attention
):
    """Whole models on the path of the CUDA kernel, which the reference stands in for."""
    num_calls = 0

    def stand_in(
        query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, *borders: Any,
        scale: float | None = None, window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        nonlocal num_calls
        num_calls += 1
        return reference_attention(query, key, value, cu_seq_q, reach=window_size, scale=scale)

    def states(model: PreTrainedModel) -> Tensor:
        return hidden_states(model, packed, causal=causal)

    model = tiny_model(family)
    plain, exact = states(model), in_fp64(model, states)
    monkeypatch.setattr(attention, "backend", lambda *_: "varlen")
    monkeypatch.setattr(varlen, "varlen_attn", stand_in)
    assert_as_exact([states(model)], [plain], [exact])
    assert num_calls == 3  # one for each layer


def row_batch(token_documents: Documents, *, row_length: int = 24) -> RowBatch:
    """Pack documents as a training step reads them: from BOS to EOS."""
    framed = [np.array([1, *document[1:-1], 2]) for document in token_documents]
    batch = pack_sequences(framed, row_length=row_length, pad_id=0)
    pieces = tuple(Piece(0, index, 0, len(each) - 2) for index, each in enumerate(framed))
    return RowBatch(batch, pieces, batch.spans + np.array([1, -1]))


VOCABULARY = Vocabulary(size=97, mask_id=3, special_ids=frozenset({0, 1, 2, 3}))


def supervise(batch: RowBatch, objective: str) -> Supervision:
    """Label a batch."""
    chosen = Clm(objective="clm") if objective == "clm" else Mlm(objective="mlm")
    (supervision,) = chosen.supervise(batch, VOCABULARY, mask_seed=0)
    return supervision


class TestAccumulation:
    """Several micro-batches make one batch."""

    @pytest.mark.parametrize("objective", ["clm", "mlm"])
    @PRECISION
    def test_micro_batches_equal_one_batch(self, precision, objective, tiny_model, token_documents):
        whole = row_batch(token_documents[:3])  # in the last no token is masked
        total = len(supervise(whole, objective).labels)
        gradients = []
        for batches in ([whole], [row_part(whole, index) for index in range(3)]):
            model = tiny_model("eurobert")
            weights = set_precision(model, precision)
            for batch in batches:
                supervision = supervise(batch, objective)
                loss = summed_loss(model, supervision)
                (loss / total).backward()
                weights.gather_gradients()
            gradients.append(gradient_by_name(weights))
        once, accumulated = gradients
        assert once.keys() == accumulated.keys()
        tolerance = {"fp32": 1e-5, "bf16": 5e-2}[precision]
        for name, gradient in once.items():
            assert gradient.dtype == torch.float32
            norm = float((gradient - accumulated[name]).norm() / gradient.norm())
            assert norm <= tolerance, name


def row_part(whole: RowBatch, index: int) -> RowBatch:
    """Return one document of a batch as a batch of its own, its provenance kept."""
    start, end = whole.packed.spans[index]
    tokens = whole.packed.input_ids.reshape(-1)[start:end]
    packed = pack_sequences([tokens], row_length=whole.packed.row_length, pad_id=0)
    return RowBatch(packed, (whole.pieces[index],), packed.spans + np.array([1, -1]))


def gradient_by_name(weights: MasterWeights) -> dict[str, Tensor]:
    """Return the gathered gradients."""
    return {
        name: master.grad for name, master in weights.masters.items() if master.grad is not None
    }
