"""Tables of what is refused: what is given, the error, what its one line names, and its remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest


def refusals(rows: Mapping[str, tuple[Any, ...]]) -> pytest.MarkDecorator:
    """Run a test for each row: `what: (given, error, names, remedy)`; parts may be left out."""
    return pytest.mark.parametrize(
        ("given", "error", "parts"),
        [(given, error, parts) for given, error, *parts in rows.values()],
        ids=list(rows),
    )


def refused(
    error: type[BaseException],
    parts: tuple[str, ...] | list[str],
    act: Callable[..., object],
    *given: Any,
    **options: Any,
) -> str:
    """Act, which must raise this error; its one line has all parts in their order."""
    with pytest.raises(error) as caught:
        act(*given, **options)
    message = rest = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in rest, message
        rest = rest.partition(part)[2]
    return message
