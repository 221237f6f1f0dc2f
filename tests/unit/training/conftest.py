"""Training that takes a second."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def small_heldout(monkeypatch):
    """Watch on 256 tokens: evaluation would cost more than training at this size."""
    monkeypatch.setattr("biphasic.training.heldout.HELDOUT_TOKENS", 256)
