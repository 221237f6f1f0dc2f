"""Checks of the arguments of public functions; the options of their commands share the ranges."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from biphasic.amounts import MOST_BITS
from biphasic.errors import ConfigError

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
Range = tuple[float, float | None]  # the least and the greatest value, if there is one

# By the name of an argument, in every function that has it.
_RANGES: dict[str, Range] = {
    "batch_tokens": (1, None),
    "checkpoint_every": (0, None),
    "example_tokens": (1, None),
    "gpus": (0, None),
    "heldout_every": (0, None),
    "max_seqlen": (8, None),
    "per_gpu": (1, None),
    "rate": (1.0, None),
    "samples": (0, None),
    "skip_steps": (0, None),
    "spread": (0.001, None),
    "steps": (1, None),
    "threads": (1, None),
    "tries": (1, None),
    "workers": (1, None),
}
_FOUND = "_biphasic_ranges"


def check_arguments(
    **own: Range,
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Check the arguments that a function is called with: a ConfigError names the first wrong one.

    Numbers must be in the ranges of all functions with an argument of this name, or in the
    function's own. What has no default must not be None, and a sequence no text.
    """
    both = _RANGES | own

    def add(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        names = inspect.signature(function).parameters
        needed = [
            name
            for name, one in names.items()
            if one.default is one.empty and "None" not in str(one.annotation)
        ]
        several = [
            name for name, one in names.items() if str(one.annotation).startswith("Sequence[")
        ]
        ranges = {name: both[name] for name in names if name in both}

        @wraps(function)
        def checked(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
            given = dict(zip(names, args, strict=False)) | options
            for name in needed:
                if given.get(name, ...) is None:  # Python itself names one that is not given
                    raise ConfigError(f"{name}: is None; give a value")
            for name in several:
                if isinstance(one := given.get(name), str | Path):  # a text is read as its letters
                    raise ConfigError(f"{name}: give a list, as ['{one}']")
            for name, number in _numbers(given):
                if isinstance(number, int) and number.bit_length() > MOST_BITS:
                    raise ConfigError(f"{name}: a number with too many digits")
                if name in ranges:
                    least, most = ranges[name]
                    if not (math.isfinite(number) and least <= number <= (most or number)):
                        wanted = f"{least:g} or more" if most is None else f"{least:g} to {most:g}"
                        raise ConfigError(f"{name}: {number:g}; give {wanted}")
            return function(*args, **options)

        setattr(checked, _FOUND, ranges)
        return checked

    return add


def _numbers(given: Mapping[str, object]) -> Iterator[tuple[str, int | float]]:
    """Yield the numbers among arguments, by name; other types are refused where they are used."""
    for name, value in given.items():
        for number in value if isinstance(value, list | tuple) else (value,):
            if isinstance(number, int | float):
                yield name, number


def ranges_of(function: Callable[..., object]) -> dict[str, Range]:
    """Return the ranges that `check_arguments` gave a function, by argument."""
    return getattr(function, _FOUND, {})
