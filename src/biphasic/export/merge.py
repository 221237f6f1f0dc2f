"""Merging of two models of one architecture, such as a decoder and what it was adapted to.

Continued training forgets some of what a model knew; a merge of its weights with those from before
brings some of it back.

References: Wortsman et al. 2022, arXiv:2203.05482 (means of weights); Goddard et al. 2024,
arXiv:2403.13257, section 3 (spherical interpolation of weights).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, ModelError
from biphasic.export.output import refuse_existing
from biphasic.files import digest, read_json, write_json
from biphasic.locks import sole_writer
from biphasic.model.loading.hub import fetch_model
from biphasic.store import MODEL, complete_folder, is_complete
from biphasic.study.inputs.models import token_difference
from biphasic.version import __version__

if TYPE_CHECKING:
    from torch import Tensor


RECORD = "merge.json"
_FORMAT = "biphasic.merge/1"
Method = Literal["linear", "spherical"]
_LEAST_ANGLE = 1e-4


def write_merge(
    base: Path | str,
    adapted: Path | str,
    out: Path,
    *,
    weight: float,
    method: Method,
    groups: Mapping[str, float],
) -> Path:
    """Write the model between two models; see `merge_models`."""
    from biphasic.model.loading.build import empty_body, load_pretrained, saved_tensors  # noqa: PLC0415
    from biphasic.training.state import save_tensors  # noqa: PLC0415

    for group, share in groups.items():
        _group_members(group)
        if not 0 <= share <= 1:
            raise ConfigError(f"group '{group}': {share:g}; give 0 to 1")
    if not is_complete(out):
        refuse_existing(out)
    sides = [fetch_model(model) for model in (base, adapted)]
    tokenizer = TextTokenizer.load(sides[1].folder)
    if difference := token_difference(sides[0].folder, tokenizer):
        named = f"{sides[0].folder}: {difference} that of {sides[1].folder}"
        raise ModelError(f"{named}; merge models of one tokenizer")
    identities = {"base": sides[0].identity, "adapted": sides[1].identity}
    # Merges without groups have the identities that they had before there were groups.
    settings: dict[str, Any] = {**identities, "weight": float(weight), "method": method}
    if groups:
        settings["groups"] = {group: float(share) for group, share in groups.items()}
    record = {"format": _FORMAT, "identity": digest(settings), **settings, "biphasic": __version__}
    with sole_writer(out):
        if is_complete(out):
            made = MODEL.open(out).verify().manifest
            if made.get("merge") == record["identity"]:
                return out
        refuse_existing(out)
        bodies = [empty_body(side.folder).named_parameters() for side in sides]  # without weights
        _check_shapes(*({name: tuple(tensor.shape) for name, tensor in body} for body in bodies))
        models = [load_pretrained(side.folder, head_for=()) for side in sides]
        before, after = map(saved_tensors, models)
        shares = shares_of(after, weight, groups)
        merged = merge_tensors(before, after, shares=shares, method=method)
        # As it was saved: loading for training changes attention. Weights are written in fp32.
        config = {**read_json(sides[1].folder / "config.json"), "dtype": "float32"}
        with complete_folder(out, merge=record["identity"]) as partial:
            save_tensors(merged, partial / "model.safetensors", {"format": "pt"})
            write_json(partial / "config.json", config)
            write_json(partial / RECORD, record)
            tokenizer.save_with_model(partial)
    return out


def shares_of(names: Iterable[str], weight: float, groups: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each tensor: that of its group, or else `weight`."""
    places = {name: _place(name) for name in names}
    shares: dict[str, float] = {}
    for group, share in groups.items():
        members = _group_members(group)
        names_of_group = [name for name, place in places.items() if place in members]
        if absent := sorted(members.difference(places.values()), key=str):
            raise ConfigError(f"group '{group}': the models have no weights of {absent[0]}")
        if twice := next((name for name in names_of_group if name in shares), None):
            raise ConfigError(f"group '{group}': {twice} is in another group, too")
        shares.update(dict.fromkeys(names_of_group, share))
    return dict.fromkeys(places, weight) | shares


def _group_members(group: str) -> frozenset[int | str]:
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


def _check_shapes(
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
    _check_shapes(*({n: tuple(t.shape) for n, t in side.items()} for side in (base, adapted)))
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
            shares = tuple(share / math.sin(angle) for share in shares)
    return shares[0] * before + shares[1] * after
