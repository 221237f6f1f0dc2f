"""Merging of two models of one architecture, such as a decoder and what it was adapted to.

Continued training forgets some of what a model knew; a merge of its weights with those from before
brings some of it back. A run merges its own states in a phase (`objectives/merge.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from biphasic.config import parse_config
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ModelError
from biphasic.export.output import refuse_existing
from biphasic.files import complete_folder, digest, expanded, read_json, write_json
from biphasic.model.loading.hub import fetch_model
from biphasic.model.merge import Method, check_shapes
from biphasic.objectives.merge import Merge
from biphasic.study.inputs.models import token_difference
from biphasic.version import __version__

RECORD = "merge.json"
_FORMAT = "biphasic.merge/1"


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
        ModelError: The models have different tokenizers or architectures.

    Example:
        >>> from biphasic import merge_models
        >>> merge_models("decoder", "decoder", "merged", weight=0.3).name
        'merged'
    """
    from biphasic.model.loading.build import load_pretrained  # noqa: PLC0415
    from biphasic.training.state import save_tensors  # noqa: PLC0415

    out = expanded(out)
    refuse_existing(out)
    settings = {"weight": weight, "method": method, "groups": dict(groups or {})}
    merge = parse_config(Merge, {"objective": "merge", **settings}, where="merge")
    sides = [fetch_model(each) for each in (base, adapted)]
    _check_fit(*(side.folder for side in sides))
    models = [load_pretrained(side.folder, head_for=()) for side in sides]
    merged = merge.between(*(dict(model.named_parameters()) for model in models))
    # As it was saved: loading for training changes attention. Weights are written in fp32.
    config = {**read_json(sides[1].folder / "config.json"), "dtype": "float32"}
    identities = {"base": sides[0].identity, "adapted": sides[1].identity}
    settings = {**identities, **merge.settings()}
    record = {"format": _FORMAT, "identity": digest(settings), **settings, "biphasic": __version__}
    with complete_folder(out, merge=record["identity"]) as partial:
        save_tensors(merged, partial / "model.safetensors", {"format": "pt"})
        write_json(partial / "config.json", config)
        write_json(partial / RECORD, record)
        TextTokenizer.load(sides[1].folder).save_with_model(partial)
    return out


def _check_fit(base: Path, adapted: Path) -> None:
    """Check the models' tokenizers and shapes, before their weights are read."""
    from biphasic.model.loading.build import empty_body  # noqa: PLC0415

    if difference := token_difference(base, TextTokenizer.load(adapted)):
        raise ModelError(f"{base}: {difference} that of {adapted}; merge models of one tokenizer")
    bodies = [empty_body(folder).named_parameters() for folder in (base, adapted)]
    check_shapes(*({name: tuple(tensor.shape) for name, tensor in body} for body in bodies))
