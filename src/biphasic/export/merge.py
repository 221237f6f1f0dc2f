"""Merging of two models of one architecture, such as a decoder and what it was adapted to.

Continued training forgets some of what a model knew; a merge of its weights with those from before
brings some of it back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from biphasic.config import Config
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ModelError
from biphasic.export.output import refuse_existing
from biphasic.files import digest, read_json, write_json
from biphasic.locks import sole_writer
from biphasic.model.loading.hub import fetch_model
from biphasic.model.merge import Method, check_shapes, group_members, merge_tensors, shares_of
from biphasic.store import MODEL, complete_folder, is_complete
from biphasic.study.inputs.models import token_difference
from biphasic.version import __version__

RECORD = "merge.json"
_FORMAT = "biphasic.merge/1"
Share = Annotated[float, Field(ge=0, le=1)]


def _check_groups(groups: dict[str, float]) -> dict[str, float]:
    for group in groups:
        group_members(group)
    return groups


class Merge(Config):
    """How two models are merged."""

    weight: Share = 0.5
    """Share of the adapted model."""
    method: Method = "linear"
    """`linear`, or `spherical`: along the arc between two tensors."""
    groups: Annotated[dict[str, Share], AfterValidator(_check_groups)] = Field(default_factory=dict)
    """Shares of single groups: a layer as `3`, layers as `0-5`, `embeddings`, or `rest`."""


def write_merge(base: Path | str, adapted: Path | str, out: Path, merge: Merge) -> Path:
    """Write the model between two models; see `merge_models`."""
    from biphasic.model.loading.build import empty_body, load_pretrained, saved_tensors  # noqa: PLC0415
    from biphasic.training.state import save_tensors  # noqa: PLC0415

    if not is_complete(out):
        refuse_existing(out)
    sides = [fetch_model(each) for each in (base, adapted)]
    tokenizer = TextTokenizer.load(sides[1].folder)
    if difference := token_difference(sides[0].folder, tokenizer):
        named = f"{sides[0].folder}: {difference} that of {sides[1].folder}"
        raise ModelError(f"{named}; merge models of one tokenizer")
    identities = {"base": sides[0].identity, "adapted": sides[1].identity}
    # Merges without groups have the identities that they had before there were groups.
    settings = {**identities, **merge.model_dump(exclude=set() if merge.groups else {"groups"})}
    record = {"format": _FORMAT, "identity": digest(settings), **settings, "biphasic": __version__}
    with sole_writer(out):
        if is_complete(out):
            made = MODEL.open(out).verify().manifest
            if made.get("merge") == record["identity"]:
                return out
        refuse_existing(out)
        bodies = [empty_body(side.folder).named_parameters() for side in sides]  # without weights
        check_shapes(*({name: tuple(tensor.shape) for name, tensor in body} for body in bodies))
        models = [load_pretrained(side.folder, head_for=()) for side in sides]
        before, after = map(saved_tensors, models)
        shares = shares_of(after, merge.weight, merge.groups)
        merged = merge_tensors(before, after, shares=shares, method=merge.method)
        # As it was saved: loading for training changes attention. Weights are written in fp32.
        config = {**read_json(sides[1].folder / "config.json"), "dtype": "float32"}
        with complete_folder(out, merge=record["identity"]) as partial:
            save_tensors(merged, partial / "model.safetensors", {"format": "pt"})
            write_json(partial / "config.json", config)
            write_json(partial / RECORD, record)
            tokenizer.save_with_model(partial)
    return out
