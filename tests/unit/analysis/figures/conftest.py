"""Everything here is drawn."""

import pytest


@pytest.fixture(autouse=True)
def undrawn(drawn: None) -> None:
    """In place of the one that leaves drawings out."""
