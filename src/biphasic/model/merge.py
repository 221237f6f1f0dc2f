"""Weights between those of two models of one architecture.

References: Wortsman et al. 2022, arXiv:2203.05482 (means of weights); Goddard et al. 2024,
arXiv:2403.13257, section 3 (spherical interpolation of weights).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from biphasic.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from torch import Tensor

Method = Literal["linear", "spherical"]
_LEAST_ANGLE = 1e-4


def shares_of(names: Iterable[str], weight: float, groups: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each tensor: that of its group, or else `weight`."""
    places = {name: _place(name) for name in names}
    shares: dict[str, float] = {}
    for group, share in groups.items():
        members = group_members(group)
        found = [name for name, place in places.items() if place in members]
        if absent := sorted(members.difference(places.values()), key=str):
            raise ConfigError(f"group '{group}': the models have no weights of {absent[0]}")
        if twice := next((name for name in found if name in shares), None):
            raise ConfigError(f"group '{group}': {twice} is in another group, too")
        shares.update(dict.fromkeys(found, share))
    return dict.fromkeys(places, weight) | shares


def group_members(group: str) -> frozenset[int | str]:
    """Return the layers of a group, or its name."""
    if group in ("embeddings", "rest"):
        return frozenset({group})
    layers = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", group)
    first, last = (int(layers[1]), int(layers[2] or layers[1])) if layers else (1, 0)
    if first > last:
        raise ConfigError(f"group '{group}': give a layer as 3, layers as 0-5, embeddings, or rest")
    return frozenset(range(first, last + 1))


def _place(name: str) -> int | str:
    """Return the layer that a tensor is in, or the name of its group outside of layers."""
    if numbered := re.search(r"\.(\d+)\.", name):
        return int(numbered[1])
    return "embeddings" if "embed" in name or ".wte." in name or ".wpe." in name else "rest"


def check_shapes(
    base: Mapping[str, tuple[int, ...]], adapted: Mapping[str, tuple[int, ...]]
) -> None:
    """Check that weights can be merged; `base` may lack rows."""
    if other := sorted(base.keys() ^ adapted.keys()):
        raise ModelError(
            f"the models have different weights, e.g. {other[0]}; merge models of one architecture"
        )
    for name, after in adapted.items():
        before = base[name]
        if before[1:] != after[1:] or before[:1] > after[:1]:
            raise ModelError(
                f"{name} has the shapes {before} and {after}; merge models of one architecture"
            )


def merge_tensors(
    base: Mapping[str, Tensor],
    adapted: Mapping[str, Tensor],
    *,
    shares: Mapping[str, float],
    method: Method,
) -> dict[str, Tensor]:
    """Return tensors by name between those of two models; rows that `base` lacks are kept.

    `shares` has the share of `adapted` for each tensor.
    """
    check_shapes(*({n: tuple(t.shape) for n, t in side.items()} for side in (base, adapted)))
    merged: dict[str, Tensor] = {}
    for name, tensor in adapted.items():
        before, after = base[name].detach(), tensor.detach()
        merged[name] = after.clone()
        if after.is_floating_point():  # Integer buffers are tables, such as those of hash routers.
            rows = merged[name][: len(before)] if after.ndim else merged[name]
            rows.copy_(_between(before, rows, shares[name], method))
    return merged


def _between(before: Tensor, after: Tensor, share: float, method: Method) -> Tensor:
    """Return the tensor at a share of the way from one to another."""
    shares = 1 - share, share
    if method == "spherical":
        lengths = float(before.norm()) * float(after.norm())
        cosine = float((before * after).sum()) / lengths if lengths else 1.0
        angle = math.acos(min(max(cosine, -1.0), 1.0))
        # The sine of a small angle, or of a half turn, leaves no digits.
        if _LEAST_ANGLE < angle < math.pi - _LEAST_ANGLE:
            shares = math.sin((1 - share) * angle), math.sin(share * angle)
            shares = tuple(each / math.sin(angle) for each in shares)
    return shares[0] * before + shares[1] * after
