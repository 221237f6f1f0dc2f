"""Parameters that do not train."""

import pytest
from torch import nn

from biphasic.errors import ConfigError
from biphasic.training.step.frozen import freeze, frozen_names

NAMES = ["model.embed_tokens.weight", "model.layers.0.mlp.weight", "model.layers.1.mlp.weight"]


def test_patterns_choose_names():
    assert frozen_names(NAMES, []) == set()
    assert frozen_names(NAMES, ["model.layers.0.*"]) == {NAMES[1]}
    assert frozen_names(NAMES, ["*mlp*"]) == set(NAMES[1:])
    assert frozen_names(NAMES, ["*embed*", "model.layers.[1]*"]) == {NAMES[0], NAMES[2]}


def test_a_pattern_that_fits_nothing_is_refused():
    with pytest.raises(ConfigError, match="no parameter's name matches"):
        frozen_names(NAMES, ["*embed*", "model.layer.0.*"])


def test_freezing_everything_is_refused():
    with pytest.raises(ConfigError, match="nothing would train"):
        frozen_names(NAMES, ["*"])


def test_freezing_is_undone_by_the_next_phase():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    freeze(model, ["0.*"])
    assert [p.requires_grad for p in model.parameters()] == [False, False, True, True]
    freeze(model, ["1.bias"])
    assert [p.requires_grad for p in model.parameters()] == [True, True, True, False]
