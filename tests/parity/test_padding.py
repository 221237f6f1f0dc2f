"""Padded rows and other directions give what transformers computes."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor
from transformers import EuroBertConfig, LlamaConfig, PreTrainedModel

from biphasic.data.packing import Batching, pack_sequences
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ModelError
from biphasic.model.compute.forward import hidden_states, padded_states
from biphasic.model.contract import check_contract
from biphasic.model.loading.build import load_encoder, load_pretrained
from biphasic.model.loading.configurations import (
    close_again,
    eurobert_config,
    is_open,
    llama_config,
    open_both_ways,
)
from biphasic.tasks.encoding import Encoder, encode_texts
from biphasic.tasks.finetune import FinetuneRun, encode_task, finetune_group
from biphasic.tasks.kinds.kind import SplitScores
from biphasic.tasks.kinds.text import AnsweredText
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, ExampleTask, TaskInfo
from families import DISTINCT, FAMILIES, save_family, tiny_config, with_head
from rounding import assert_as_exact, exactly

Documents = list[NDArray[np.int64]]

ENCODERS = ("bert", "roberta", "modernbert", "eurobert")
DECODERS = ("llama", "qwen3", "qwen2", "gemma3")
OWN_ATTENTION = ("mpnet", "deberta-v2")
BROAD = 0.1
"""Hidden states that differ by less would not show a mask that is wrong in one place."""

PACKABLE = pytest.mark.parametrize("family", [*ENCODERS, *DECODERS])


def packed_states(model: PreTrainedModel, documents: Documents) -> list[Tensor]:
    """Return the states of each document, two rows of them side by side."""
    batch = pack_sequences(documents, row_length=24, pad_id=model.config.pad_token_id)
    assert batch.num_rows < len(documents)
    states = hidden_states(model.eval(), batch, causal=False)
    return [states[start:end] for start, end in batch.spans]


def own_states(model: PreTrainedModel, documents: Documents) -> list[Tensor]:
    """Return the states of each document, padded to the longest."""
    states, spans = padded_states(model.eval(), documents, pad_id=model.config.pad_token_id)
    return [states[start:end] for start, end in spans]


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        *((family, {}) for family in (*ENCODERS, *DECODERS)),
        # Its makers switch it in the file, as for EmbeddingGemma, which halves the window.
        ("gemma3", {"use_bidirectional_attention": True, "sliding_window": 6}),
    ],
)
def test_packed_equals_padded(family, changes, saved_model, token_documents):
    folder = saved_model(family, **changes)
    ours = packed_states(load_encoder(folder), token_documents)
    model = load_encoder(folder, batching="padded")
    theirs = own_states(model, token_documents)
    assert_as_exact(ours, theirs, exactly(lambda: own_states(model.double(), token_documents)))


@pytest.mark.parametrize("family", ["qwen2", "gemma3", "modernbert"])
def test_a_window_one_wider_would_show(family, saved_model, token_documents):
    narrow, wide = (
        {"local_attention": 2 * reach} if family == "modernbert" else {"sliding_window": reach}
        for reach in (4, 5)
    )
    states = [
        own_states(load_encoder(saved_model(family, **reach), batching="padded"), token_documents)
        for reach in (narrow, wide)
    ]
    assert float((states[0][0] - states[1][0]).detach().abs().max()) > BROAD


@pytest.mark.parametrize("batching", ["packed", "padded"])
@PACKABLE
def test_families_keep_the_contract(family, batching, saved_model):
    # Wide enough for the probe to see beyond its own token.
    windows = {"qwen2": {"sliding_window": 8}, "gemma3": {"sliding_window": 8}}
    changes = {"local_attention": 32} if family == "modernbert" else windows.get(family, {})
    model = load_encoder(saved_model(family, **changes), batching=batching)
    check_contract(model, causal=False)
    # The probe does look: packed rows have a switch, and a model on its own sees both ways.
    if batching == "packed":
        check_contract(model, causal=True)
        return
    with pytest.raises(ModelError, match="attends to later tokens although"):
        check_contract(model, causal=True)


@pytest.mark.parametrize("family", OWN_ATTENTION)
def test_attention_of_another_kind_needs_padding(family, saved_model, token_documents):
    folder = saved_model(family)
    with pytest.raises(ModelError, match="batching: padded"):
        load_encoder(folder)
    model = load_encoder(folder, batching="padded")
    check_contract(model, causal=False)
    together = own_states(model, token_documents)
    alone = [own_states(model, [document])[0] for document in token_documents]
    exact = exactly(lambda: own_states(model.double(), token_documents))
    assert_as_exact(together, alone, exact)


def tiny_task() -> ExampleTask:
    """Forty sentences of one to twelve words."""
    draws = np.random.default_rng(0)
    words = ["the", "array", "of", "rows", "holds", "tokens", "and", "their", "weights"]
    texts = [" ".join(draws.choice(words, int(draws.integers(1, 13)))) for _ in range(40)]
    records = [AnsweredText(str(i), text, i % 2) for i, text in enumerate(texts)]
    splits = dict(zip(SPLITS, (records[:16], records[16:28], records[28:]), strict=True))
    info = TaskInfo("tiny", "sc", "Tiny", "accuracy", "0" * 64)
    return ExampleTask(
        info, {split: tuple(part) for split, part in splits.items()}, ("even", "odd")
    )


def finetune(
    folder: Path, tokenizer: TextTokenizer, batching: Batching
) -> tuple[list[float], dict[str, SplitScores]]:
    """Take two steps on the tiny task; return their losses and the scores by split."""
    protocol = FinetuneProtocol(batch_size=8, max_seqlen=32, batching=batching)
    task = encode_task(tiny_task(), tokenizer, protocol=protocol)
    model = load_encoder(folder, batching=batching)
    losses: list[float] = []
    [[(_, scores)]] = finetune_group(
        model,
        [FinetuneRun(task, learning_rate=1e-2, seed=0, protocol=protocol)],
        progress=lambda _run, _step, _num_steps, loss: losses.append(loss),
    )
    return losses, scores


@PACKABLE
def test_fine_tuning_gives_the_same_scores(family, saved_model, tokenizer):
    # RoBERTa counts positions by looking for its padding token.
    ids = {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_id}
    folder = saved_model(family, **ids, initializer_range=0.05)
    (losses, packed), (own_losses, padded) = (
        finetune(folder, tokenizer, batching) for batching in ("packed", "padded")
    )
    assert losses == pytest.approx(own_losses, abs=1e-4)
    assert losses[0] != losses[1]
    for split in SPLITS[1:]:
        assert packed[split].scores.tolist() == padded[split].scores.tolist()
        assert packed[split].metrics == padded[split].metrics


def test_real_weights(minilm):
    """MiniLM's mean-pooled sentences, packed, padded and as transformers alone computes them."""
    folder = Path(minilm)
    tokenizer = TextTokenizer.load(folder)
    texts = [
        "A short one.",
        "the quick brown fox jumps over the lazy dog " * 3,
        "naïve 東京 😀",
        "x",
    ]
    sequences, _ = encode_texts(texts, tokenizer, max_seqlen=128)
    packed, padded = (
        Encoder(load_encoder(folder, batching=batching).eval(), pad_id=tokenizer.pad_id)
        for batching in ("packed", "padded")
    )
    plain = transformers.AutoModel.from_pretrained(folder).eval()

    def means() -> list[Tensor]:
        rows = (torch.from_numpy(sequence)[None] for sequence in sequences)
        return [plain(row).last_hidden_state[0].mean(0) for row in rows]

    with torch.no_grad():
        theirs = means()
        plain.double()
        exact = exactly(means)
        for ours in (packed, padded):
            assert_as_exact(ours.pooled(sequences), theirs, exact)


EVERY = pytest.mark.parametrize("family", DISTINCT)


def write_open(source: Path, target: Path) -> Path:
    """Copy a folder to one that says `is_causal: false`, as an export does."""
    config = transformers.AutoConfig.from_pretrained(source)
    open_both_ways(config)
    kind = transformers.AutoModelForMaskedLM if "MaskedLM" in config.architectures[0] else None
    kind = kind or transformers.AutoModelForCausalLM
    kind.from_pretrained(source, config=config).save_pretrained(target)
    return target


class Wanted(NamedTuple):
    """The states of each document in fp32 and in fp64."""

    states: list[Tensor]
    exact: list[Tensor]


def wanted_states(model: PreTrainedModel, documents: Documents) -> Wanted:
    exact = deepcopy(model).double()
    return Wanted(packed_states(model, documents), exactly(lambda: packed_states(exact, documents)))


def assert_same(states: list[Tensor], wanted: Wanted) -> None:
    assert_as_exact(states, *wanted)


@EVERY
def test_an_open_folder_means_the_same_to_everyone(family, tmp_path, token_documents):
    source = save_family(family, tmp_path / "source")
    wanted = wanted_states(load_pretrained(source), token_documents)
    folder = write_open(source, tmp_path / "open")

    plain = transformers.AutoModel.from_pretrained(folder)
    assert_same(own_states(plain, token_documents), wanted)
    with torch.no_grad():  # without a mask
        rows = (torch.from_numpy(document)[None] for document in token_documents)
        alone = [plain.eval()(input_ids=row).last_hidden_state[0] for row in rows]
    assert_same(alone, wanted)

    assert_same(own_states(load_encoder(folder, batching="padded"), token_documents), wanted)
    assert_same(packed_states(load_encoder(folder), token_documents), wanted)
    again = load_pretrained(folder)
    assert_same(packed_states(again, token_documents), wanted)
    assert not is_open(again.config)
    assert_same(
        packed_states(load_pretrained(write_open(folder, tmp_path / "twice")), token_documents),
        wanted,
    )


@pytest.mark.parametrize("family", ["qwen2", "mistral", "gemma2", "gemma3", "phi3"])
def test_opening_narrows_a_window_once_and_closing_widens_it(family):
    config = tiny_config(family)
    before, window = config.to_dict(), config.sliding_window
    for _ in range(2):
        open_both_ways(config)
        assert (config.is_causal, config.sliding_window) == (False, window - 1)
    for _ in range(2):
        close_again(config)
        assert config.sliding_window == window
        assert not is_open(config)
    assert config.to_dict() == {**before, "use_cache": False}


def test_windows_of_encoders_stay():
    config = tiny_config("modernbert")
    open_both_ways(config)
    assert config.local_attention == 10
    close_again(config)
    assert config.local_attention == 10


@pytest.mark.parametrize("switch", [True, False])
def test_gemma_3_with_its_makers_switch(switch, tmp_path, token_documents):
    """`use_bidirectional_attention` halves the window in the file."""
    source = save_family(
        "gemma3", tmp_path / "source", use_bidirectional_attention=switch, sliding_window=8
    )
    wanted = wanted_states(load_pretrained(source), token_documents)
    folder = write_open(source, tmp_path / "open")
    assert_same(own_states(transformers.AutoModel.from_pretrained(folder), token_documents), wanted)
    assert_same(packed_states(load_encoder(folder), token_documents), wanted)
    assert_same(packed_states(load_pretrained(folder), token_documents), wanted)


class TestEuroBert:
    """Llama-shaped weights under EuroBERT's name."""

    @pytest.mark.parametrize(
        ("family", "changes"),
        [
            ("llama", {}),
            ("llama", {"attention_bias": True}),
            ("llama", {"head_dim": 16}),
            ("llama", {"hidden_act": "gelu", "rms_norm_eps": 0.1}),
            ("llama3", {}),
            ("smollm2", {}),
        ],
    )
    def test_same_states_and_logits(self, family, changes, tmp_path, token_documents):
        source = save_family(family, tmp_path / "source", **changes)
        model = load_pretrained(source)
        config = eurobert_config(model.config)
        assert config is not None
        assert config.model_type == "eurobert"
        theirs, report = transformers.EuroBertForMaskedLM.from_pretrained(
            source, config=config, output_loading_info=True
        )
        assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys"))
        wanted = wanted_states(model, token_documents)
        assert_same(own_states(theirs, token_documents), wanted)
        if config.tie_word_embeddings:
            assert theirs.lm_head.weight is theirs.model.embed_tokens.weight
        with torch.no_grad():
            tokens = torch.from_numpy(token_documents[0])[None]
            ours = model.lm_head(wanted.states[0])
            logits = theirs.eval()(input_ids=tokens).logits[0]
            exact = exactly(lambda: theirs.double()(input_ids=tokens).logits[0])
        assert_as_exact([ours], [logits], [exact])

    def test_nothing_of_the_configuration_is_lost(self):
        """Every setting that both have is the same, but for those with other defaults."""
        config = tiny_config("llama3", attention_dropout=0.1, initializer_range=0.3)
        config.mask_token_id = 7
        native = eurobert_config(config)
        assert native is not None
        ours, theirs = config.to_dict(), native.to_dict()
        free = {"model_type", "architectures", "transformers_version", "pretraining_tp"}
        for name in (ours.keys() & theirs.keys()) - free:
            assert theirs[name] == ours[name], name
        assert native.rope_parameters is not config.rope_parameters

    @pytest.mark.parametrize(
        "family", [family for family in FAMILIES if FAMILIES[family].config != "LlamaConfig"]
    )
    def test_other_families_are_none(self, family):
        assert eurobert_config(tiny_config(family)) is None

    def test_biases_of_the_feed_forward_layers_are_none(self):
        """EuroBERT has a biased head then, which a Llama has no weights for."""
        assert eurobert_config(tiny_config("llama", mlp_bias=True)) is None

        class Other(LlamaConfig):
            model_type = "other"

        assert eurobert_config(Other()) is None
        assert eurobert_config(EuroBertConfig()) is None

    def test_biases_of_an_encoder_are_those_of_its_decoder(self):
        encoder = with_head(tiny_config("eurobert", mlp_bias=True))
        decoder = with_head(llama_config(encoder.config))
        left = decoder.load_state_dict(encoder.state_dict(), strict=False)
        assert (left.missing_keys, left.unexpected_keys) == ([], ["lm_head.bias"])
