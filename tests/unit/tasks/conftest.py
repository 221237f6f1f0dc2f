"""A small tokenizer."""

from __future__ import annotations

import pytest

from biphasic.data.tokenizer import TextTokenizer, train_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> TextTokenizer:
    """A byte-level BPE of 320 tokens: long words and all rare characters take several."""
    text = "the cat sat on the mat and the dog ran to Paris with Anna \n Question Document Query: "
    return train_tokenizer([text] * 20, vocab_size=320)
