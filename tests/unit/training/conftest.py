"""Training that takes a second."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _unprobed(unprobed: None) -> None:
    pass
