"""A step in several passes."""

from typing import Any

import pytest
from safetensors.torch import load_file

from biphasic.errors import ConfigError
from biphasic.files import read_json
from biphasic.training import loop
from short_runs import CLM, MIX, MLM, assert_close, details, metrics

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("phase", [MIX, MLM, CLM])
def test_several_passes_train_the_same(train, make_recipe, phase):
    recipe = make_recipe(phase, precision="fp32", rows_per_step=8)
    whole = train(recipe, "whole")
    before = load_file(train(make_recipe()) / "model.safetensors")
    for tokens in (32, 100):  # one row, three rows
        parts = train(recipe, str(tokens), max_tokens_per_pass=tokens)
        assert_close(whole, parts)
        for name, weight in load_file(parts / "model.safetensors").items():
            assert weight.ndim == 1 or float((weight - before[name]).abs().max()) > 1e-3
        exact = ("ledger", "rows_sha256", "identity")
        assert all(details(whole)[key] == details(parts)[key] for key in exact)
        for line, again in zip(metrics(whole), metrics(parts), strict=True):
            floats = {key for key in line if key in {"loss", "gradient_norm", "heldout"}}
            assert all(line[key] == again[key] for key in line.keys() - floats)
            for key in floats:
                assert again[key] == pytest.approx(line[key], rel=1e-5)


def test_a_pass_holds_no_more_than_it_may(train, make_recipe, monkeypatch):
    seen: list[tuple[int, bool]] = []
    original = loop.pass_loss

    def spy(model, given, **options):
        seen.append((given.input_ids.numel(), given.causal))
        return original(model, given, **options)

    monkeypatch.setattr(loop, "pass_loss", spy)
    longer = {**MLM, "steps": 1, "max_seqlen": 64, "rows_per_step": 4}
    recipe = make_recipe({**MIX, "steps": 1}, longer, rows_per_step=8)
    train(recipe, max_tokens_per_pass=100)
    # Six rows of 32 by MLM in two passes, two by CLM; then four rows of 64, one by one.
    assert seen == [(96, False), (96, False), (64, True)] + [(64, False)] * 4


def test_gradients_of_passes_add_up_in_fp32(train, make_recipe):
    """Working weights are in bf16, where 64 sums of like size would stall."""
    recipe = make_recipe({**MLM, "steps": 1}, rows_per_step=64)
    exact = make_recipe({**MLM, "steps": 1}, rows_per_step=64, precision="fp32")
    moments = {
        name: load_file(folder / "optimizer.safetensors")[
            "model.layers.0.mlp.up_proj.weight.exp_avg"
        ]
        for name, folder in {
            "exact": train(exact),
            "whole": train(recipe, "whole"),
            "parts": train(recipe, "p", max_tokens_per_pass=32),
        }.items()
    }
    error = {
        name: float((each - moments["exact"]).norm() / moments["exact"].norm())
        for name, each in moments.items()
    }
    assert error["parts"] < max(1.5 * error["whole"], 0.02)


def test_a_pass_that_holds_no_row_is_refused(tmp_path, train, make_recipe):
    recipe = make_recipe(CLM, {**MLM, "max_seqlen": 64, "rows_per_step": 2})
    message = r"max_tokens_per_pass: 40 tokens are fewer than a row of 64 \(max_seqlen\); set 64"
    with pytest.raises(ConfigError, match=message):
        train(recipe, max_tokens_per_pass=40)
    assert not (tmp_path / "states").exists()


def test_a_state_names_how_it_was_computed(train, make_recipe):
    settings: dict[str, Any] = {"max_tokens_per_pass": 64, "read_back_every": 2}
    folder = train(make_recipe({**CLM, "steps": 1}), **settings)
    kept = read_json(folder / "state.json")["compute"]
    expected = {
        "processes": 1,
        "shard": "none",
        "shard_size": None,
        "activation_checkpointing": False,
        "compile": False,
        "predicted_only": True,
        "cpu_kernels": True,
    }
    assert kept == {**settings, **expected}


def test_held_out_rows_must_fit_a_pass_too(tmp_path, train, make_recipe):
    short = {**CLM, "max_seqlen": 16}
    with pytest.raises(ConfigError, match="fewer than a row of 32"):
        train(make_recipe(short), max_tokens_per_pass=20)
    assert not list(tmp_path.rglob("*.safetensors"))
