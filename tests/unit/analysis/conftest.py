"""Puts the fake study's writer within reach, and leaves drawings out where no test needs them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from warm import draw_nothing


@pytest.fixture
def drawn() -> None:
    """Reports have their drawings."""


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Reports have empty drawings, unless a test asks for `drawn`."""
    with pytest.MonkeyPatch.context() as patch:
        if "drawn" not in request.fixturenames:
            draw_nothing(patch)
        yield
