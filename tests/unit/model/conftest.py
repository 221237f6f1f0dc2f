"""A model that tests of models share."""

import pytest
from transformers import PreTrainedModel

from biphasic.model.loading.build import architecture_config, new_model
from biphasic.model.shape import PRESETS


@pytest.fixture
def model() -> PreTrainedModel:
    """The smallest preset, with a layer between the first and the last."""
    ids = {"bos": 1, "eos": 2, "pad": 0, "mask": 3}
    config = architecture_config(PRESETS["pico"], vocab_size=300, max_seqlen=64, special_ids=ids)
    config.num_hidden_layers = 3
    return new_model(config, init_seed=0)
