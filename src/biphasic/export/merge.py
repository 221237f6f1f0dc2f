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
from typing import Any, Literal, get_args

from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, ModelError
from biphasic.export.output import refuse_existing
from biphasic.files import complete_folder, digest, expanded, read_json, write_json
from biphasic.model.loading.hub import fetch_model
from biphasic.version import __version__

Method = Literal["linear", "spherical"]
RECORD = "merge.json"
_FORMAT = "biphasic.merge/1"
_LEAST_ANGLE = 1e-4


def merge_models(
    base: Path | str,
    adapted: Path | str,
    out: Path | str,
    *,
    weight: float = 0.5,
    method: Method = "linear",
    groups: Mapping[str, float] | None = None,
) -> Path:
    """Write a model whose weights lie between those of two models.

    Tokenizer and configuration are those of `adapted`, and so are rows of embeddings that `base`
    lacks. Each tensor is interpolated in fp32. `merge.json` has the identities of both models, and
    that of the merge, a hash of these, the weights and the method. The same models and settings
    give the same bytes, so the folder has one identity wherever a study or `evaluate` names it.

    Args:
        base: Folder of a state or model, or a hub id.
        adapted: The other model, of the same architecture.
        out: Folder to write; it can be used like any model.
        weight: Share of `adapted`, from 0 to 1.
        method: `linear`, or `spherical`: along the arc between the two tensors as vectors.
        groups: Shares of single groups, by name: a layer as `3`, several as `0-5` (they count from
            0), `embeddings`, or `rest`, which is the last norm and the head. A tied head is among
            the embeddings.

    Raises:
        ConfigError: A setting is invalid, a group has no weights, or `out` exists.
        ModelError: The models have different architectures.

    Example:
        >>> from biphasic import merge_models
        >>> merge_models("decoder", "decoder", "merged", weight=0.3).name
        'merged'
    """
    from biphasic.model.loading.build import load_pretrained  # noqa: PLC0415
    from biphasic.training.state import save_tensors  # noqa: PLC0415

    out = expanded(out)
    refuse_existing(out)
    groups = dict(groups or {})
    for name, share in {"weight": weight, **groups}.items():
        if not 0 <= share <= 1:
            raise ConfigError(f"{name}: {share:g} is not between 0 and 1")
    if method not in get_args(Method):
        raise ConfigError(f"method: '{method}' is not one of {', '.join(get_args(Method))}")
    sides = [fetch_model(each) for each in (base, adapted)]
    models = [load_pretrained(side.folder, head_for=()) for side in sides]
    first, second = (dict(model.named_parameters()) for model in models)
    # As it was saved: loading for training changes attention. Weights are written in fp32.
    config = {**read_json(sides[1].folder / "config.json"), "dtype": "float32"}
    weights = dict.fromkeys(second, weight) | _weights_of(second, groups)
    merged = merge_tensors(first, second, weights=weights, method=method)
    identities = {"base": sides[0].identity, "adapted": sides[1].identity}
    settings = {**identities, "weight": weight, "method": method}
    if groups:
        settings["groups"] = groups
    record = {"format": _FORMAT, "identity": digest(settings), **settings, "biphasic": __version__}
    with complete_folder(out, merge=record["identity"]) as partial:
        save_tensors(merged, partial / "model.safetensors", {"format": "pt"})
        write_json(partial / "config.json", config)
        write_json(partial / RECORD, record)
        TextTokenizer.load(sides[1].folder).save_with_model(partial)
    return out


def _weights_of(names: Iterable[str], groups: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each tensor that is in a group."""
    groups_of = {name: _group_of(name) for name in names}
    weights: dict[str, float] = {}
    for group, share in groups.items():
        wanted = _places(group)
        found = [name for name, place in groups_of.items() if place in wanted]
        if not found:
            raise ConfigError(f"group '{group}': the models have no such weights")
        if twice := next((name for name in found if name in weights), None):
            raise ConfigError(f"group '{group}': {twice} is in another group, too")
        weights.update(dict.fromkeys(found, share))
    return weights


def _places(group: str) -> frozenset[int | str]:
    """Return the layers of a group, or its name."""
    if group in ("embeddings", "rest"):
        return frozenset({group})
    layers = re.fullmatch(r"(\d+)(?:-(\d+))?", group)
    if layers is None:
        raise ConfigError(f"group '{group}': give a layer as 3, layers as 0-5, embeddings, or rest")
    first, last = int(layers[1]), int(layers[2] or layers[1])
    return frozenset(range(first, last + 1))


def _group_of(name: str) -> int | str:
    """Return the layer that a tensor is in, or the name of its group outside of layers."""
    if numbered := re.search(r"\.(\d+)\.", name):
        return int(numbered[1])
    return "embeddings" if "embed" in name or ".wte." in name or ".wpe." in name else "rest"


def merge_tensors(
    base: Mapping[str, Any],
    adapted: Mapping[str, Any],
    *,
    weights: Mapping[str, float],
    method: Method,
) -> dict[str, Any]:
    """Return tensors by name between those of two models; rows that `base` lacks are kept.

    `weights` has the share of `adapted` for each tensor.
    """
    if other := sorted(base.keys() ^ adapted.keys()):
        raise ModelError(
            f"the models have different weights, e.g. {other[0]}; merge models of one architecture"
        )
    merged: dict[str, Any] = {}
    for name, tensor in adapted.items():
        before, after = base[name].detach(), tensor.detach()
        num_rows = len(before) if before.ndim else 0
        if before.shape[1:] != after.shape[1:] or (before.ndim and num_rows > len(after)):
            raise ModelError(
                f"{name} has the shapes {tuple(before.shape)} and {tuple(after.shape)}; merge "
                "models of one architecture"
            )
        merged[name] = after.clone()
        merged[name][:num_rows] = _between(before, after[:num_rows], weights[name], method)
    return merged


def _between(before: Any, after: Any, weight: float, method: Method) -> Any:
    """Return the tensor at a share of the way from one to another."""
    shares = 1 - weight, weight
    if method == "spherical":
        lengths = float(before.norm()) * float(after.norm())
        cosine = float((before * after).sum()) / lengths if lengths else 1.0
        angle = math.acos(min(max(cosine, -1.0), 1.0))
        # The sine of a small angle, or of a half turn, leaves no digits.
        if _LEAST_ANGLE < angle < math.pi - _LEAST_ANGLE:
            shares = tuple(math.sin(share * angle) / math.sin(angle) for share in shares)
    return shares[0] * before + shares[1] * after
