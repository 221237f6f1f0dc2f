"""Layers and attention on a CPU by our own code; `use_own_layers` puts the layers into a model.

Linear layers are multiplied by the fastest library (`products.py`). Gradients of a LayerNorm's
weights, and of small embeddings, are summed in fp32: torch adds up bf16 gradients one token after
the other in bf16, where a sum that is 256 times as large as what is added no longer grows (with
16,384 tokens in a pass, a gradient had 0.58 of its size).

Other kernels round differently from torch's, and only training uses them, with
`compute.cpu_kernels`: held-out losses and fine-tuning then do not depend on the setting. Norms
like Llama's need fewer tensors. In EuroBERT's layers, rotary embeddings take three passes over
queries and keys instead of five, and gradients of a layer's input, through products that share it,
are summed by the products themselves.

Dropout takes 16 random bits per element: torch draws 64 and converts them to a fraction one by one,
a tenth of MiniLM's fine-tuning time. Probabilities are rounded to multiples of 2**-16, and kept
elements are scaled by the rounded probability, so expectations are exact. Pretraining uses none, as
in the study (arXiv 2507.00994, Appendix A), so a run depends on its seeds alone; a model's
configuration keeps the probabilities for fine-tuning.

Attention reads one document at a time: no scores of other documents, or of later tokens. torch's
kernels compute all scores of a row and hide most of them by a mask. Here, queries and keys
of a document are multiplied by plain products, whose results fit in a core's cache. Where a mask
remains (in causal passes, and with sliding windows), a document is read in blocks of queries, each
with the keys that it may see. Weights are kept for the backward pass; for many keys that would take
too much memory, so torch's kernel reads such blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.eurobert.modeling_eurobert import EuroBertAttention, EuroBertMLP
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from biphasic.model.cpu.products import (
    FastLinear,
    add_input_gradient,
    product,
    weight_gradient,
    widens_bf16,
)
from biphasic.model.shape import KEPT_KEYS

# Tables with few rows, such as those of token types, have long sums. Those of words stay in fp32
# (`training/step/optimizer.py`).
_FEW_ROWS = 64
_ARE_ON = ContextVar("cpu_kernels", default=False)


@contextmanager
def cpu_kernels(are_on: bool) -> Iterator[None]:
    """Use our kernels in forward and backward passes on a CPU, or torch's."""
    token = _ARE_ON.set(are_on)
    try:
        yield
    finally:
        _ARE_ON.reset(token)


def uses_cpu_kernels(states: Tensor) -> bool:
    """Return whether our kernels compute these states."""
    # torch.compile makes kernels of its own.
    return not torch.compiler.is_compiling() and states.device.type == "cpu" and _ARE_ON.get()


def use_own_layers(model: nn.Module) -> None:
    """Compute layers of known kinds by our own code, with the same weights, names and precision."""
    for module in model.modules():
        # Exact classes only: a subclass may compute something else in its `forward`.
        kind = type(module)
        if kind is nn.Linear:
            module.__class__ = FastLinear
        elif kind is nn.LayerNorm and module.weight is not None:
            module.__class__ = _LayerNorm
        elif kind is nn.Embedding and cast(nn.Embedding, module).num_embeddings <= _FEW_ROWS:
            module.__class__ = _Embedding
        elif kind is EuroBertAttention:
            module.__class__ = _FastEuroBertAttention
        elif kind is EuroBertMLP:
            module.__class__ = _FastEuroBertMLP
        elif _is_llamas(kind):
            module.__class__ = _FastRMSNorm


def _is_llamas(kind: type[nn.Module]) -> bool:
    """Return whether a class has the code of Llama's norm: many families have a copy of it."""
    code, llamas = getattr(kind.forward, "__code__", None), LlamaRMSNorm.forward.__code__
    # Bytecode refers to names and constants by their numbers, so equal code alone proves nothing.
    parts = ("co_code", "co_names", "co_consts")
    return code is not None and all(getattr(code, p) == getattr(llamas, p) for p in parts)


def _is_ours(states: Tensor) -> bool:
    return states.dtype == torch.float32 and uses_cpu_kernels(states)


class _FastRMSNorm(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        if not (self.weight.dtype == torch.float32 and _is_ours(hidden_states)):
            return super().forward(hidden_states)
        return _ShortNorm.apply(hidden_states, self.weight, self.variance_epsilon)


class _ShortNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        # A norm needs no tensor of squares, which would be as large as the states.
        lengths = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True)
        factors = lengths.square_().div_(inputs.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(inputs, weight, factors)
        return (inputs * factors).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        inputs, weight, factors = ctx.saved_tensors
        # By hand, from the input and a factor per token: autograd would keep the normed states,
        # too.
        # With n = x f and f = (mean(x^2) + epsilon)^(-1/2), the gradient of w n to x is
        # f (g w - n mean(g w n)).
        normed = inputs * factors
        products = gradient * normed
        of_weight = products.sum(tuple(range(inputs.ndim - 1)))
        shares = (products @ weight).div_(-inputs.shape[-1])[..., None]
        of_inputs = (gradient * weight).addcmul_(normed, shares).mul_(factors)
        return of_inputs, of_weight, None


def _sums_in_fp32(inputs: Tensor) -> bool:
    is_on_cpu = inputs.dtype == torch.bfloat16 and inputs.device.type == "cpu"
    return is_on_cpu and torch.is_grad_enabled() and not torch.compiler.is_compiling()


class _LayerNorm(nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        if not _sums_in_fp32(input):
            return super().forward(input)
        return _Normed.apply(input, self.weight, self.bias, self.eps)


class _Normed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float
    ) -> Tensor:
        output, mean, factor = torch.native_layer_norm(inputs, weight.shape, weight, bias, epsilon)
        ctx.save_for_backward(inputs, weight, bias, mean, factor)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        inputs, weight, bias, mean, factor = ctx.saved_tensors
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        of_input = of_weight = of_bias = None
        if needs_input:
            only_input = [True, False, False]
            of_input, *_ = torch.ops.aten.native_layer_norm_backward(
                gradient, inputs, weight.shape, mean, factor, weight, bias, only_input
            )
        # torch would sum these over all tokens in bf16.
        tokens = tuple(range(inputs.ndim - weight.ndim))
        if needs_weight:
            normed = inputs.float().sub_(mean).mul_(factor)
            of_weight = normed.mul_(gradient).sum(tokens).to(weight.dtype)
        if bias is not None and needs_bias:
            of_bias = gradient.sum(tokens, dtype=torch.float32).to(bias.dtype)
        return of_input, of_weight, of_bias, None


class _Embedding(nn.Embedding):
    def forward(self, input: Tensor) -> Tensor:
        # torch gives the row of padding no gradient, which `_Looked` does not do.
        if self.padding_idx is not None or not _sums_in_fp32(self.weight):
            return super().forward(input)
        return _Looked.apply(input, self.weight)


class _Looked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return nn.functional.embedding(rows, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        # In fp32: a row of a small table is the sum over thousands of tokens.
        sums = weight.new_zeros(weight.shape, dtype=torch.float32)
        by_token = gradients[0].reshape(-1, weight.shape[1]).float()
        return None, sums.index_add_(0, rows.reshape(-1), by_token).to(weight.dtype)


class _FastEuroBertAttention(EuroBertAttention):
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        # transformers 5.24 renamed the first.
        past = {name: options.pop(name) for name in ("past_key_values", "cache") if name in options}
        if not _is_ours(hidden_states) or any(keys is not None for keys in past.values()):
            return super().forward(
                hidden_states, position_embeddings, attention_mask, **past, **options
            )
        cosines, sines = (part.unsqueeze(1) for part in position_embeddings)
        query, key, value = (
            states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for states in _products(hidden_states, self.q_proj, self.k_proj, self.v_proj)
        )
        # By name, as in transformers: padded rows use the model's own attention here, too.
        attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        attended, weights = attend(
            self,
            _Rotated.apply(query, cosines, sines),
            _Rotated.apply(key, cosines, sines),
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **options,
        )
        return self.o_proj(attended.flatten(2)), weights


class _FastEuroBertMLP(EuroBertMLP):
    def forward(self, x: Tensor) -> Tensor:
        if not _is_ours(x):
            return super().forward(x)
        gate, up = _products(x, self.gate_proj, self.up_proj)
        return self.down_proj(self.act_fn(gate) * up)


def _products(input: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """Return what each linear layer makes of the same input."""
    # A layer with LoRA is more than its weight.
    if any(type(layer) is not FastLinear or layer.bias is not None for layer in layers):
        return tuple(layer(input) for layer in layers)
    return _Products.apply(input, *(layer.weight for layer in layers))


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(input, *weights)
        inputs = input.flatten(0, -2)
        return tuple(
            # As in `products.py`, results are no views.
            torch.ops.aten._unsafe_view(product(inputs, weight), (*input.shape[:-1], len(weight)))
            for weight in weights
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        input, *weights = ctx.saved_tensors
        needs_input, *need_weight = ctx.needs_input_grad
        inputs = input.flatten(0, -2)
        by_token = [gradient.flatten(0, -2) for gradient in gradients]
        of_input = None
        if needs_input:
            # Summed into one buffer: autograd would write a gradient for each layer and add them.
            for gradient, weight in zip(by_token, weights, strict=True):
                of_input = add_input_gradient(of_input, gradient, weight)
        of_weights = (
            weight_gradient(gradient, inputs) if needs else None
            for gradient, needs in zip(by_token, need_weight, strict=True)
        )
        return None if of_input is None else of_input.view(input.shape), *of_weights


class _Rotated(torch.autograd.Function):
    """Rotary embeddings of queries or keys."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, sines)
        half = states.shape[-1] // 2
        # By halves in place: transformers' `rotate_half` copies all states before it multiplies.
        rotated = states * cosines
        rotated[..., :half].addcmul_(states[..., half:], sines[..., :half], value=-1)
        rotated[..., half:].addcmul_(states[..., :half], sines[..., half:])
        return rotated

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        cosines, sines = ctx.saved_tensors
        half = gradient.shape[-1] // 2
        # The transpose of a rotation turns back: the sines change their signs.
        total = gradient * cosines
        total[..., :half].addcmul_(gradient[..., half:], sines[..., half:])
        total[..., half:].addcmul_(gradient[..., :half], sines[..., :half], value=-1)
        return total, None, None


_RANGE = 1 << 16  # of the random numbers, which start at minus half of it


def switch_off_dropout(model: nn.Module) -> None:
    """Disable a model's dropout and noise in training mode, without changing its configuration."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            # Of attention weights, whole layers (OPT), and inputs of routers (Mixtral).
            if ("drop" in name or name == "jitter_noise") and isinstance(value, float):
                setattr(module, name, 0.0)


def speed_up_dropout(model: nn.Module) -> None:
    """Make a model's dropout layers use this implementation."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = _CpuDropout


def dropout(input: Tensor, chance: float) -> Tensor:
    """Return a tensor with elements dropped at random and the others scaled up."""
    # It uses torch's global generator; `chance` is the probability of dropping an element.
    dropped = round(chance * _RANGE)
    if input.device.type != "cpu" or not 0 < dropped < _RANGE:
        return functional.dropout(input, chance)
    size = input.numel()
    # Each 64-bit number gives four.
    # From the lowest number on: by default torch leaves the sign at 0, and one in four would never
    # be negative.
    bits = torch.empty(-(-size // 4), dtype=torch.int64).random_(-(1 << 63), None)
    is_kept = bits.view(torch.int16)[:size].view(input.shape) >= dropped - _RANGE // 2
    return input * is_kept.to(input.dtype).mul_(_RANGE / (_RANGE - dropped))


class _CpuDropout(nn.Dropout):
    """`nn.Dropout`, but never in place."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p) if self.training and self.p else input


# Queries in a block. Blocks of 64 are the fastest in fp32; small products in bf16 are slow.
_FP32_BLOCK, _BF16_BLOCK = 64, 256
# A document costs some 40 microseconds, in which a row's kernel computes about so many scores.
_SCORES_PER_DOCUMENT = 2000


def reads_documents(shape: tuple[int, int], *, num_documents: int, dtype: torch.dtype) -> bool:
    """Return whether reading by document is faster than reading whole rows, (number, length)."""
    num_rows, row_length = shape
    # Small products in bf16 are slow, so short rows are read at once.
    if dtype == torch.bfloat16 and row_length <= KEPT_KEYS:
        return False
    # Many short documents in short rows: the calls for each cost more than hidden scores.
    return num_rows * row_length**2 >= _SCORES_PER_DOCUMENT * num_documents


def attend_by_document(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    *,
    causal: bool,
    window: int | None,
    scaling: float | None,
) -> Tensor:
    """Return [num_rows, row_length, num_heads, head_dim], from as many key heads as query heads."""
    # `cu_seqlens` and `window` are those of `packed_attention`.
    dtype = query.dtype
    if widens_bf16(query.device, dtype):
        query, key, value = query.float(), key.float(), value.float()
    blocks = tuple(_blocks(cu_seqlens, query, causal=causal, window=window))
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _ByDocument.apply(query, key, value, blocks, factor).to(dtype)


class _Block(NamedTuple):
    row: int
    queries: tuple[int, int]  # the first one, and their number
    keys: tuple[int, int]
    hidden: Tensor | None  # [num_queries, num_keys], 0 or -inf
    is_first_write: bool  # whether the backward pass, which is reversed, meets its keys first


def _blocks(
    cu_seqlens: Tensor, query: Tensor, *, causal: bool, window: int | None
) -> Iterator[_Block]:
    row_length = query.shape[2]
    size, band = row_length, None
    if causal or window is not None:
        size = _FP32_BLOCK if query.dtype == torch.float32 else _BF16_BLOCK
        band = _band(size, row_length, query.dtype, causal=causal, window=window)
    reach = row_length if window is None else window - 1
    for flat_start, flat_end in pairwise(cu_seqlens.tolist()):
        row, start = divmod(flat_start, row_length)
        end = flat_end - row * row_length
        for first in range(start, end, size):
            last = min(first + size, end)
            low, high = max(first - reach, start), last if causal else min(last + reach, end)
            hidden = None
            if band is not None:
                # Masks depend on distances alone, so those of all blocks are views of one band.
                shift = row_length - first
                hidden = band[: last - first, shift + low : shift + high]
            # In reverse, a document's last block comes first. Without windows it sees all keys of
            # the document and overwrites their totals, which then need no zeros.
            is_first_write = window is None and high == end
            yield _Block(row, (first, last - first), (low, high - low), hidden, is_first_write)


@lru_cache(maxsize=16)  # row lengths of pairs of texts differ by step
def _band(
    size: int, row_length: int, dtype: torch.dtype, *, causal: bool, window: int | None
) -> Tensor:
    """Return 0 where query i sees the key `j - row_length` tokens after query 0, and else -inf."""
    distance = torch.arange(size + 2 * row_length) - row_length - torch.arange(size)[:, None]
    hidden = distance > 0 if causal else torch.zeros_like(distance, dtype=torch.bool)
    if window is not None:
        hidden |= distance.abs() >= window
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


class _ByDocument(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - as autograd passes them
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        blocks: tuple[_Block, ...],
        factor: float,
    ) -> Tensor:
        output = _like(value)
        by_token = output.transpose(1, 2)
        has_kernel = _has_kernel(query, key, value)
        saved: list[Tensor] = []  # weights, or what torch's kernel keeps
        rows = [states.unbind() for states in (query, key, value, output)]
        for row, queries, keys, hidden, _ in blocks:
            read, *seen, written = (states[row] for states in rows)
            parts = read.narrow(1, *queries), *(states.narrow(1, *keys) for states in seen)
            if has_kernel and keys[1] > KEPT_KEYS:
                attended, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                    *(part[None] for part in parts), attn_mask=hidden, scale=factor
                )
                attended = attended[0]
                saved.append(sums)
            else:
                scores = _product(parts[0], parts[1].mT, factor, hidden)
                # In place: nothing reads the scores again.
                saved.append(torch.softmax(scores, -1, out=scores))
                attended = torch.bmm(scores, parts[2])
            written.narrow(1, *queries).copy_(attended)
        ctx.save_for_backward(query, key, value, output, *saved)
        ctx.blocks, ctx.factor = blocks, factor
        return by_token

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        *states, output = saved[:4]
        has_kernel = _has_kernel(*states)
        totals = tuple(map(_like, states))
        if not ctx.blocks[-1].is_first_write:  # as with all windows
            totals[1].zero_()
            totals[2].zero_()
        by_head = gradients[0].transpose(1, 2)
        rows = [tensor.unbind() for tensor in (*states, output, by_head, *totals)]
        for (row, queries, keys, hidden, is_first_write), weights in zip(
            reversed(ctx.blocks), reversed(saved[4:]), strict=True
        ):
            query, key, value, attended, of_attended, *of_row = (tensor[row] for tensor in rows)
            parts = query.narrow(1, *queries), key.narrow(1, *keys), value.narrow(1, *keys)
            of_attended = of_attended.narrow(1, *queries)
            if has_kernel and keys[1] > KEPT_KEYS:
                gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                    of_attended[None], *(part[None] for part in parts),
                    attended.narrow(1, *queries)[None], weights, 0.0, False,
                    attn_mask=hidden, scale=ctx.factor,
                )  # fmt: skip
                gradients = tuple(part[0] for part in gradients)
            else:
                gradients = _gradients(of_attended, parts, weights, ctx.factor)
            write = Tensor.copy_ if is_first_write else Tensor.add_
            for total, part, place, put in zip(
                of_row, gradients, (queries, keys, keys), (Tensor.copy_, write, write), strict=True
            ):
                put(total.narrow(1, *place), part)
        return *totals, None, None


def _gradients(
    gradient: Tensor, parts: tuple[Tensor, Tensor, Tensor], weights: Tensor, factor: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, [num_heads, num_tokens, head_dim] each."""
    query, key, value = parts
    of_weights = torch.bmm(gradient, value.mT)
    of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype)
    return (
        _product(of_scores, key, factor),
        _product(of_scores.mT, query, factor),
        torch.bmm(weights.mT, gradient),
    )


def _product(left: Tensor, right: Tensor, factor: float, added: Tensor | None = None) -> Tensor:
    """Return `factor * left @ right + added`, for each head."""
    if added is None:
        # With `beta=0` torch never reads the first tensor, so it may be empty. Scaling within the
        # product saves a pass over the scores.
        return torch.baddbmm(left.new_empty(()), left, right, beta=0, alpha=factor)
    return torch.baddbmm(added.expand(len(left), -1, -1), left, right, alpha=factor)


def _like(states: Tensor) -> Tensor:
    """Return an empty tensor whose heads lie side by side for each token."""
    # The layers around attention join the heads of a token, which needs no copy in this order.
    by_token = states.transpose(1, 2)
    return torch.empty_like(by_token, memory_format=torch.contiguous_format).transpose(1, 2)


def _has_kernel(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether torch's kernel reads blocks of these states correctly, and fast."""
    states = (query, key, value)
    is_fit = query.shape == value.shape and all(state.stride(-1) == 1 for state in states)
    return is_fit and query.dtype == torch.float32
