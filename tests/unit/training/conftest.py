"""Training that takes a second."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def small_heldout(monkeypatch):
    """Watch on 256 tokens: evaluation would cost more than training at this size."""
    monkeypatch.setattr("biphasic.training.records.heldout.HELDOUT_TOKENS", 256)
