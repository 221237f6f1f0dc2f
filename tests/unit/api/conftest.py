"""Small models of every kind that people have: encoders, decoders, states, fine-tuned folders."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "export"))

from export_states import write_state

from tiny_use import write_head, write_model


@pytest.fixture(scope="session")
def encoder(tmp_path_factory) -> Path:
    """An encoder in the hub's format; never change its files."""
    return write_model(tmp_path_factory.mktemp("api") / "eurobert", "eurobert")


@pytest.fixture(scope="session")
def decoder(tmp_path_factory) -> Path:
    """A decoder; never change its files."""
    return write_model(tmp_path_factory.mktemp("api") / "llama", "llama")


@pytest.fixture
def finetuned(encoder, tmp_path) -> Path:
    """A classifier with a random head."""
    folder = shutil.copytree(encoder, tmp_path / "sorter")
    write_head(folder, "sc", fields=("text",))
    return folder


@pytest.fixture
def state(tmp_path, tokenizer) -> Path:
    """A state of ours, whose last objective was MLM."""
    return write_state(tmp_path / "store", tokenizer)
