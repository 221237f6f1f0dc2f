"""Every family: contract, losses and packing against transformers' own classes.

What is measured here fills the table of `docs/families.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close
from transformers import EuroBertConfig, ModernBertConfig, PretrainedConfig, PreTrainedModel

from biphasic.data.packing import PackedBatch, pack_sequences
from biphasic.errors import ModelError
from biphasic.model.compute.forward import hidden_states
from biphasic.model.contract import check_contract
from biphasic.model.loading.build import load_pretrained, new_model
from biphasic.model.loading.configurations import is_decoder, open_both_ways
from biphasic.objectives.supervision import Supervision
from biphasic.training.step.input import summed_loss
from biphasic.training.step.optimizer import set_precision
from families import DISTINCT, FAMILIES, REFUSED, record, save_family, tiny_config

pytestmark = pytest.mark.slow

Documents = list[NDArray[np.int64]]
Folder = Callable[[str], Path]

TOLERANCE = 1e-5
MASK = 3
EVERY = pytest.mark.parametrize("family", DISTINCT)
CAUSAL = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Save each family once."""
    saved: dict[str, Path] = {}

    def find(family: str) -> Path:
        if family not in saved:
            saved[family] = save_family(family, tmp_path_factory.mktemp("families") / family)
        return saved[family]

    return find


def packed_with(documents: Documents, family: str) -> PackedBatch:
    pad_id = tiny_config(family).pad_token_id
    return pack_sequences(documents, row_length=24, pad_id=pad_id)


def supervise(batch: PackedBatch, *, causal: bool) -> Supervision:
    """Label every token but the first of a document, or hide every third."""
    flat = batch.input_ids.reshape(-1)
    inside = np.concatenate([np.arange(start + 1, end) for start, end in batch.spans])
    if causal:
        return Supervision(rows=batch, positions=inside - 1, labels=flat[inside], causal=True)
    hidden, shown = inside[::3], flat.copy()
    shown[hidden] = MASK
    rows = PackedBatch(shown.reshape(batch.input_ids.shape), batch.position_ids,
                       batch.cu_seqlens, batch.spans)  # fmt: skip
    return Supervision(rows=rows, positions=hidden, labels=flat[hidden], causal=False)


def reference(folder: Path, config: PretrainedConfig, kind: object) -> PreTrainedModel:
    """Load a folder as transformers alone would, behind an attention of its own."""
    return kind.from_pretrained(folder, config=config, dtype=torch.float32).eval()  # type: ignore[attr-defined]


def causal_reference(folder: Path) -> PreTrainedModel:
    """Return the same weights in a class that transformers trains causally.

    ModernBERT has none; its own class takes causal masks (`own_loss`).
    """
    config = transformers.AutoConfig.from_pretrained(folder)
    if isinstance(config, EuroBertConfig):
        names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                 "num_attention_heads", "num_key_value_heads", "rms_norm_eps",
                 "rope_parameters", "pad_token_id")  # fmt: skip
        llama = transformers.LlamaConfig(**{name: getattr(config, name) for name in names})
        return reference(folder, llama, transformers.LlamaForCausalLM)
    if isinstance(config, ModernBertConfig):
        return reference(folder, config, transformers.ModernBertForMaskedLM)
    if not is_decoder(config):
        config.is_decoder = True
    return reference(folder, config, transformers.AutoModelForCausalLM)


def masked_reference(folder: Path) -> PreTrainedModel:
    """Return the family's own masked-LM class; a decoder's own class, opened both ways."""
    config = transformers.AutoConfig.from_pretrained(folder)
    if is_decoder(config):
        open_both_ways(config)
        return reference(folder, config, transformers.AutoModelForCausalLM)
    return reference(folder, config, transformers.AutoModelForMaskedLM)


def own_loss(theirs: PreTrainedModel, supervision: Supervision) -> Tensor:
    """Sum the model's own losses, document by document, each alone in its row.

    Where its class has the loss of the other objective, or none, it is taken from the logits.
    """
    flat = supervision.rows.input_ids.reshape(-1)
    labels = np.full(flat.size, -100)
    labels[supervision.positions] = supervision.labels
    has_loss = supervision.causal != ("MaskedLM" in type(theirs).__name__)
    total = torch.zeros(())
    for start, end in supervision.rows.spans:
        tokens = torch.from_numpy(flat[start:end])[None]
        wanted = torch.from_numpy(labels[start:end])[None]
        count = int((wanted != -100).sum())
        if has_loss:
            # A causal loss shifts labels itself.
            given = wanted.roll(1) if supervision.causal else wanted
            total = total + theirs(input_ids=tokens, labels=given).loss * count
            continue
        masks = causal_masks(theirs, end - start) if supervision.causal else {}
        logits = theirs(input_ids=tokens, **masks).logits[0]
        total = total + functional.cross_entropy(logits, wanted[0], reduction="sum")
    return total


def causal_masks(theirs: PreTrainedModel, length: int) -> dict[str, dict[str, Tensor]]:
    """Write out who sees whom in ModernBERT's two kinds of layers, causally."""
    steps = torch.arange(length)
    back = steps[:, None] - steps[None, :]
    reach = theirs.config.local_attention // 2
    return {
        "attention_mask": {
            "full_attention": (back >= 0)[None, None],
            "sliding_attention": ((back >= 0) & (back <= reach))[None, None],
        }
    }


def compare_training(
    ours: PreTrainedModel, theirs: PreTrainedModel, supervision: Supervision
) -> float:
    """Return the difference of the mean losses; gradients must agree too."""
    count = len(supervision.labels)
    loss, wanted = summed_loss(ours, supervision) / count, own_loss(theirs, supervision) / count
    loss.backward()
    wanted.backward()
    references = dict(theirs.named_parameters())
    compared = 0
    for name, parameter in ours.named_parameters():
        gradient, other = parameter.grad, references[name].grad
        if gradient is None and other is None:  # what no token reaches
            continue
        assert gradient is not None, name
        assert other is not None, name
        # A bias of all keys changes no attention: its gradient is rounding alone.
        scale = max(float(other.abs().max()), 1e-2)
        assert_close(
            gradient, other, atol=2e-5 * scale, rtol=0, msg=lambda text, n=name: f"{n} {text}"
        )
        compared += 1
    assert compared > 20
    return float((loss - wanted).detach().abs())


@EVERY
def test_contract_holds_in_both_directions(family, folder):
    model = load_pretrained(folder(family))
    for causal in (True, False):
        check_contract(model, causal=causal)
    record(family, "contract", "kept")


@EVERY
def test_contract_holds_before_and_after_training(family, token_documents):
    """Weights that are small, as new ones are, and others that training has driven far."""
    model = new_model(tiny_config(family, initializer_range=0.02), init_seed=0)
    batch = packed_with(token_documents, family)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for causal in (True, False):
        check_contract(model, causal=causal)
    for _ in range(12):
        loss = summed_loss(model, supervise(batch, causal=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    for causal in (True, False):
        check_contract(model, causal=causal)
    set_precision(model, "bf16")
    for causal in (True, False):
        check_contract(model, causal=causal)


@EVERY
def test_causal_loss_is_transformers_own(family, folder, token_documents):
    supervision = supervise(packed_with(token_documents, family), causal=True)
    ours = load_pretrained(folder(family)).eval()
    difference = compare_training(ours, causal_reference(folder(family)), supervision)
    record(family, "clm", difference)
    assert difference <= TOLERANCE


@EVERY
def test_masked_loss_is_transformers_own(family, folder, token_documents):
    supervision = supervise(packed_with(token_documents, family), causal=False)
    ours = load_pretrained(folder(family)).eval()
    difference = compare_training(ours, masked_reference(folder(family)), supervision)
    record(family, "mlm", difference)
    assert difference <= TOLERANCE


@CAUSAL
@EVERY
@torch.no_grad()
def test_packed_equals_alone(family, causal, folder, token_documents):
    model = load_pretrained(folder(family)).eval()
    batch = packed_with(token_documents, family)
    together = hidden_states(model, batch, causal=causal)
    differences = []
    for document, (start, end) in zip(token_documents, batch.spans, strict=True):
        alone = pack_sequences([document], row_length=len(document), pad_id=0)
        states = hidden_states(model, alone, causal=causal)
        differences.append(float((together[start:end] - states).abs().max()))
    record(family, "packed", max(differences))
    assert max(differences) <= TOLERANCE


REASONS = {
    "stablelm": r"layer 0 \(StableLmAttention\) was called without cu_seqlens",
    "nemotron": r"layer 0 \(NemotronAttention\) was called without cu_seqlens",
    "gpt_neo": r"GPTNeoModel computes attention itself \(h\.0\.attn\)",
    "bloom": r"BloomModel computes attention itself \(h\.0\.self_attention\)",
    "granite": "GraniteForCausalLM: its language-model head does more than a product",
    "cohere": "CohereForCausalLM: its language-model head does more than a product",
}


@pytest.mark.parametrize("family", REFUSED)
def test_what_we_cannot_train_is_refused_by_name(family, folder):
    with pytest.raises(ModelError, match=REASONS[family]) as error:
        load_pretrained(folder(family))
    assert "\n" not in str(error.value)
    record(family, "refused", str(error.value).removeprefix(f"{folder(family)}: "))


@pytest.mark.parametrize("family", ["gemma2", "modernbert", "bert"])
def test_a_head_without_its_parts_would_show(family, folder, token_documents):
    """The equality of losses would not hold for a head that is a product alone."""
    model = load_pretrained(folder(family)).eval()
    supervision = supervise(packed_with(token_documents, family), causal=False)
    whole = float(summed_loss(model, supervision).detach())
    states = hidden_states(model, supervision.rows, causal=False)[supervision.positions]
    logits = states @ model.get_output_embeddings().weight.T
    bare = functional.cross_entropy(logits, torch.from_numpy(supervision.labels), reduction="sum")
    assert abs(whole - float(bare.detach())) > 0.1


def test_small_models_are_configured_as_they_say():
    """Tied and untied, windows narrower than the documents, scaled rotary positions."""
    configs = {family: tiny_config(family) for family in FAMILIES}
    assert {config.tie_word_embeddings for config in configs.values()} == {True, False}
    kinds = {
        (deepcopy(getattr(config, "rope_parameters", None)) or {}).get("rope_type")
        for config in configs.values()
    }
    assert {"llama3", "yarn", "longrope", "default"} <= kinds
    windows = [getattr(config, "sliding_window", None) for config in configs.values()]
    assert sorted(window for window in windows if window) == [5, 6, 6, 6, 6, 6, 6]
