"""Merging of two models of one architecture, such as a decoder and what it was adapted to.

Continued training forgets some of what a model knew; a merge of its weights with those from before
brings some of it back.

References: Wortsman et al. 2022, arXiv:2203.05482 (means of weights); Goddard et al. 2024,
arXiv:2403.13257, section 3 (spherical interpolation of weights).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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
) -> Path:
    """Write a model whose weights lie between those of two models.

    Tokenizer and configuration are those of `adapted`, and so are rows of embeddings that `base`
    lacks. Each tensor is interpolated in fp32. `merge.json` has the identities of both models, and
    that of the merge, a hash of these, the weight and the method.

    Args:
        base: Folder of a state or model, or a hub id.
        adapted: The other model, of the same architecture.
        out: Folder to write; it can be used like any model.
        weight: Share of `adapted`, from 0 to 1.
        method: `linear`, or `spherical`: along the arc between the two tensors as vectors.

    Raises:
        ConfigError: A setting is invalid, or `out` exists.
        ModelError: The models have different architectures.

    Example:
        >>> from biphasic.export.merge import merge_models
        >>> merge_models("decoder", "decoder", "merged", weight=0.3).name
        'merged'
    """
    from biphasic.model.loading.build import load_pretrained  # noqa: PLC0415
    from biphasic.training.state import save_tensors  # noqa: PLC0415

    out = expanded(out)
    refuse_existing(out)
    if not 0 <= weight <= 1:
        raise ConfigError(f"weight: {weight:g} is not between 0 and 1")
    if method not in get_args(Method):
        raise ConfigError(f"method: '{method}' is not one of {', '.join(get_args(Method))}")
    sides = [fetch_model(each) for each in (base, adapted)]
    models = [load_pretrained(side.folder) for side in sides]
    first, second = (dict(model.named_parameters()) for model in models)
    # As it was saved: loading for training changes attention. Weights are written in fp32.
    config = {**read_json(sides[1].folder / "config.json"), "dtype": "float32"}
    merged = merge_tensors(first, second, weight=weight, method=method)
    identities = {"base": sides[0].identity, "adapted": sides[1].identity}
    settings = {**identities, "weight": weight, "method": method}
    record = {"format": _FORMAT, "identity": digest(settings), **settings, "biphasic": __version__}
    with complete_folder(out, merge=record["identity"]) as partial:
        save_tensors(merged, partial / "model.safetensors", {"format": "pt"})
        write_json(partial / "config.json", config)
        write_json(partial / RECORD, record)
        TextTokenizer.load(sides[1].folder).save_with_model(partial)
    return out


def merge_tensors(
    base: Mapping[str, Any], adapted: Mapping[str, Any], *, weight: float, method: Method
) -> dict[str, Any]:
    """Return tensors by name between those of two models; rows that `base` lacks are kept."""
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
        merged[name][:num_rows] = _between(before, after[:num_rows], weight, method)
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
