"""Finished models to train on: rows for new tokens, and one clear line for what does not fit."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from biphasic.data.packing import pack_sequences
from biphasic.errors import ModelError
from biphasic.model.compute.forward import hidden_states
from biphasic.model.head import has_head
from biphasic.model.loading.build import load_encoder, load_pretrained, load_weights, new_model
from biphasic.model.loading.configurations import close_again
from families import DISTINCT, save_family, tiny_config
from mini_study import edit_json

pytestmark = pytest.mark.slow

EVERY = pytest.mark.parametrize("family", DISTINCT)
Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    return lambda family, **changes: save_family(family, tmp_path / family, **changes)


class TestRows:
    """One row more for each token that the model does not know."""

    @EVERY
    def test_new_rows_are_the_mean_of_the_others(self, family, save):
        folder = save(family)
        plain, grown = load_pretrained(folder), load_pretrained(folder, num_embeddings=100)
        assert grown.config.vocab_size == 100
        layers = [
            (model.get_input_embeddings(), model.get_output_embeddings())
            for model in (plain, grown)
        ]
        for before, after in zip(*layers, strict=True):
            tables = list(before.parameters(recurse=False))
            for old, new in zip(tables, after.parameters(recurse=False), strict=True):
                assert len(new) == 100
                assert torch.equal(new[:97], old)
                mean = old.mean(0, keepdim=True).expand_as(new[97:])
                torch.testing.assert_close(new[97:], mean)
        is_tied = plain.config.tie_word_embeddings
        input_layer, output_layer = layers[1]
        assert (output_layer.weight is input_layer.weight) == is_tied
        names = [name for name, _ in plain.named_parameters()]
        assert [name for name, _ in grown.named_parameters()] == names

    @EVERY
    def test_growing_draws_nothing_and_leaves_the_rest(self, family, save):
        folder = save(family)
        torch.manual_seed(5)
        before = torch.get_rng_state()
        one, other = (load_pretrained(folder, num_embeddings=99) for _ in range(2))
        assert torch.equal(torch.get_rng_state(), before)
        assert all(map(torch.equal, one.parameters(), other.parameters()))
        plain = load_pretrained(folder)
        batch = pack_sequences([np.arange(4, 14)], row_length=10, pad_id=0)
        states = [hidden_states(model.eval(), batch, causal=True) for model in (plain, one)]
        assert torch.equal(*states)

    def test_rows_beyond_the_tokenizer_stay(self, save):
        """Qwen has more rows than its tokenizer has entries."""
        model = load_pretrained(save("qwen3"), num_embeddings=50)
        assert len(model.get_input_embeddings().weight) == 97


class TestRefusals:
    """Nothing is drawn at random, nothing left over, nothing cut."""

    def check(
        self, folder: Path, reason: str, load: Callable[[Path], object] = load_pretrained
    ) -> None:
        with pytest.raises(ModelError, match=reason) as error:
            load(folder)
        assert str(error.value).startswith(f"{folder}: ")
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 400

    @pytest.mark.parametrize(
        ("kind", "reason"),
        [
            ("bert", r"weights are missing \(\d, first cls\.predictions"),
            ("roberta", r"weights are missing \(\d, first lm_head"),
            ("modernbert", r"weights are missing \(\d, first "),
            ("eurobert", r"weights are missing \(1, first lm_head\.weight\)"),
            ("llama", r"weights are missing \(1, first lm_head\.weight\)"),
        ],
    )
    def test_bodies_without_their_heads(self, kind, reason, tmp_path):
        transformers.AutoModel.from_config(tiny_config(kind)).save_pretrained(tmp_path)
        self.check(tmp_path, rf"{reason}.*; it was saved without its language-model head, needed")
        assert not has_head(load_pretrained(tmp_path, num_embeddings=99, head_for=()))

    @pytest.mark.parametrize("family", ["smollm2", "gemma3", "eurobert"])
    def test_a_body_with_a_tied_head_is_whole(self, family, tmp_path):
        body = transformers.AutoModel.from_config(tiny_config(family, tie_word_embeddings=True))
        body.save_pretrained(tmp_path)
        model = load_pretrained(tmp_path)
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
        assert torch.equal(model.get_input_embeddings().weight, body.get_input_embeddings().weight)

    def test_other_shapes(self, save):
        folder = save("qwen3")
        edit_json(folder / "config.json", intermediate_size=40)
        self.check(
            folder,
            r"cannot be loaded \(9 weights have other shapes than config\.json says, first "
            r"model\.layers\.0\.mlp\.down_proj\.weight: \[32, 48\] stored, \[32, 40\] expected\)",
        )

    def test_layers_that_the_configuration_does_not_have(self, save):
        folder = save("qwen3")
        edit_json(folder / "config.json", num_hidden_layers=2, layer_types=None)
        self.check(folder, r"does not use 11 weights, first model\.layers\.2\.")
        self.check(folder, r"does not use 11 weights, first \S*layers\.2\.", load_encoder)

    def test_biases_that_the_configuration_does_not_have(self, save):
        folder = save("qwen3", attention_bias=True)
        edit_json(folder / "config.json", attention_bias=False)
        self.check(folder, r"does not use 12 weights, first model\.layers\.0\.self_attn\.k_")
        self.check(folder, r"does not use 12 weights, first \S*\.0\.self_attn\.k_", load_encoder)

    def test_heads_may_be_numbered(self, save):
        path = save("bert") / "model.safetensors"
        weights = load_file(path)
        weights["classifier.0.weight"] = torch.ones(2, 32)
        save_file(weights, path, {"format": "pt"})
        assert load_pretrained(path.parent)
        assert load_encoder(path.parent)

    def test_masks_of_older_versions_may_be_left_over(self, tmp_path):
        config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=99)
        transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
        path = tmp_path / "model.safetensors"
        weights = load_file(path)
        weights["transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)
        save_file(weights, path, {"format": "pt"})
        assert load_pretrained(tmp_path)
        assert load_encoder(tmp_path)
        weights["transformer.h.0.attn.c_attn.other"] = torch.ones(2)
        save_file(weights, path, {"format": "pt"})
        self.check(tmp_path, r"does not use 1 weights", load_encoder)

    def test_a_missing_file_of_several(self, save):
        folder = save("llama")
        names = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
        assert len(set(names.values())) > 3
        (folder / max(names.values())).unlink()
        self.check(folder, "cannot be loaded")

    def test_a_model_without_a_language_model_head(self, tmp_path):
        config = transformers.CLIPTextConfig(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
        )
        transformers.CLIPTextModel(config).save_pretrained(tmp_path)
        self.check(tmp_path, "no language-model head for type 'clip_text_model'")


class TestWeights:
    """A state's weights in a model of its shape."""

    @EVERY
    def test_a_model_of_any_family_is_rebuilt(self, family, save, tmp_path):
        trained = load_pretrained(save(family))
        tensors = {name: weight.detach().clone() for name, weight in trained.named_parameters()}
        trained.config.save_pretrained(tmp_path / "state")
        config = transformers.AutoConfig.from_pretrained(tmp_path / "state")
        close_again(config)
        model = new_model(config, init_seed=3)
        load_weights(model, tensors)
        batch = pack_sequences([np.arange(4, 14)], row_length=10, pad_id=0)
        for causal in (True, False):
            states = [hidden_states(each.eval(), batch, causal=causal) for each in (trained, model)]
            assert torch.equal(*states)
        assert all(map(torch.equal, trained.parameters(), model.parameters()))

    def test_names_must_be_the_same(self, save):
        model = load_pretrained(save("smollm2"))
        tensors = dict(model.named_parameters())
        assert "lm_head.weight" not in tensors
        before = [parameter.clone() for parameter in model.parameters()]
        for wrong in (
            {**tensors, "lm_head.weight": torch.zeros(97, 32)},
            {name: tensor for name, tensor in tensors.items() if name != "model.norm.weight"},
        ):
            with pytest.raises(ModelError, match="1 are missing or unknown"):
                load_weights(model, wrong)
        wrong = {**tensors, "model.norm.weight": torch.zeros(1)}
        with pytest.raises(ModelError, match=r"norm\.weight is \[1\], .* has \[32\]"):
            load_weights(model, wrong)
        assert all(map(torch.equal, before, model.parameters()))
