"""Training that takes a second."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _unprobed(unprobed: None) -> None:
    pass
