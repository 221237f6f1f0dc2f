"""Golden output: what a class that declares a version must give.

Then version and golden output stand for its code in identities. The output is that of the default
settings, and of settings that differ from them in one value.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from biphasic.conformance.rules import variants
from biphasic.errors import ConfigError, DataError

Output = tuple[str, float]
"""What must be equal, and a number that may differ by rounding."""
_TOLERANCE = 1e-3


def differences(
    settings: Any, output: Callable[[Any], Output], *, own: Iterable[str]
) -> Iterator[str]:
    """Yield how a class differs from the golden output of its version, if it declares one.

    `own` are its settings.
    """
    kind = type(settings)
    if not kind.version:
        return
    required = {name for name, field in kind.model_fields.items() if field.is_required()}
    if lacking := sorted(required.intersection(own)):
        yield f"a class with a version needs a default for each setting; '{lacking[0]}' has none"
        return
    first = kind.model_validate({name: getattr(settings, name) for name in required})
    found = " ".join(_output(first, output, own))
    if not _is_equal(kind.golden, found):
        yield (
            f"the output of version {kind.version} is '{found}', and golden is '{kind.golden}'; "
            "set golden to this output, and if numbers have changed, give another version"
        )


def _output(first: Any, output: Callable[[Any], Output], own: Iterable[str]) -> Iterator[str]:
    """Yield a digest, and the number of each of the settings."""
    content, numbers = hashlib.sha256(), list[str]()
    for settings in (first, *(other for _, other in variants(first, sorted(own)))):
        try:
            text, number = output(settings)
        except (ConfigError, DataError):
            continue  # of settings that the class refuses
        content.update(text.encode())
        numbers.append(f"{number:.6g}")
    yield content.hexdigest()[:16]
    yield from numbers


def _is_equal(golden: str, found: str) -> bool:
    pairs = list(zip(golden.split(), found.split(), strict=False))
    return len(golden.split()) == len(found.split()) and all(
        one == other
        or (number and math.isclose(float(one), float(other), rel_tol=_TOLERANCE, abs_tol=1e-6))
        for number, (one, other) in enumerate(pairs)
    )
