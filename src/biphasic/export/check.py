"""The last look at an export: loaded by a stranger, it must give what we know it gives.

A fresh, isolated process that cannot import biphasic loads the folder with transformers alone
(`reload.py`); what it finds is compared here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from biphasic.errors import ModelError
from biphasic.export.reference import PAIR, TEXTS, Reference
from biphasic.files import read_json, write_json

TOLERANCE = 1e-5
"""Of hidden states and embeddings in fp32: of the largest, or of 1 where all are smaller."""
_SCRIPT = Path(__file__).with_name("reload.py")


@dataclass(frozen=True)
class Reloaded:
    """How far an export was found from our own reading.

    Differences are shares of the largest value, or of 1.

    Attributes:
        alone: Of hidden states of sequences one by one, without padding.
        many: Of the same in one padded batch.
        logits: Of the language-model head; None where there is none.
        embeddings: Of sentence-transformers' means; None where that was not asked for.
        transformers: The release that found it.
    """

    alone: float
    many: float
    logits: float | None
    embeddings: float | None
    transformers: str


def check_export(
    folder: Path,
    reference: Reference,
    *,
    tokenizer_roles: dict[str, int],
    head: str | None = None,
    logits: Tensor | None = None,
    has_pooling: bool = False,
) -> Reloaded:
    """Load an exported folder in a fresh process without biphasic, and compare.

    Args:
        folder: The export.
        reference: Our own reading of the model.
        tokenizer_roles: Ids of `mask` and `pad`.
        head: Name of transformers' class with the language-model head; None where it has none.
        logits: Its logits for `reference.probe`, fp32 [length, vocab_size].
        has_pooling: Whether sentence-transformers reads the folder.

    Raises:
        ModelError: The folder cannot be loaded, or gives anything else; says what.
    """
    changed = _change_later_token(reference)
    request = {
        "folder": str(folder.resolve()),
        "sequences": reference.sequences,
        "changed": changed,
        "probe": reference.probe,
        "pad_id": tokenizer_roles["pad"],
        "texts": TEXTS,
        "pair": PAIR,
        "spelt": reference.spelt,
        "head": head,
        "embeddings": has_pooling,
    }
    report, found = _ask(request)
    if report["has_biphasic"]:
        raise ModelError("the check of the export imported biphasic; it proves nothing")
    _compare_ids(report["ids"], reference, tokenizer_roles)
    _require_both_ways(found, reference)
    return Reloaded(
        alone=_largest("alone", _sequences(found, "alone"), reference.alone),
        many=_largest("in a padded batch", _sequences(found, "many"), reference.many),
        logits=None if logits is None else _largest("logits", [found["logits"]], [logits]),
        embeddings=_largest("embeddings", [found["embeddings"]], [reference.embeddings])
        if has_pooling
        else None,
        transformers=report["transformers"],
    )


def _ask(request: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Run the script in a process of its own.

    Raises:
        ModelError: It failed; the last line it wrote says why.
    """
    packages = Path(transformers.__file__).parents[1]
    with tempfile.TemporaryDirectory(prefix="biphasic-check-") as name:
        work = Path(name)
        write_json(work / "request.json", request)
        done = subprocess.run(  # noqa: S603 - our own script, no shell
            [sys.executable, "-I", str(_SCRIPT), str(work), str(packages)],
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            # Where this runs decides about rounding; a GPU may be in use by others.
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["it wrote nothing"]
            raise ModelError(
                f"transformers cannot use the exported folder ({lines[-1]}); nothing was written"
            )
        return read_json(work / "found.json"), load_file(work / "found.safetensors")


def _change_later_token(reference: Reference) -> list[int]:
    """Return the probe with its last token but one replaced by another of the long sequence."""
    probe = list(reference.probe)
    others = (token for token in reference.sequences[-1] if token not in probe)
    probe[-2] = next(others)
    return probe


def _compare_ids(
    found: dict[str, list[list[int]]], reference: Reference, roles: dict[str, int]
) -> None:
    expected = {
        "texts": reference.text_ids,
        "pair": [reference.pair_ids],
        "spelt": [reference.spelt_ids],
        "roles": [[roles["mask"], roles["pad"]]],
    }
    for name, ids in expected.items():
        for place, (theirs, ours) in enumerate(zip(found[name], ids, strict=True)):
            if theirs != ours:
                what = repr(TEXTS[place][:40]) if name == "texts" else f"the {name}"
                raise ModelError(
                    f"transformers' AutoTokenizer gives other ids for {what} than training "
                    f"({theirs[:8]}... instead of {ours[:8]}...): it may know this type of model "
                    "by a tokenizer class of its own, which does not read this tokenizer.json"
                )


def _require_both_ways(found: dict[str, Tensor], reference: Reference) -> None:
    """Check that every state before a changed token is another.

    Raises:
        ModelError: Some token does not see those after it.
    """
    before = len(reference.probe) - 2
    moved = (found["changed"] - found["alone.0"])[:before].abs().amax(-1)
    if not bool((moved > 0).all()):
        raise ModelError(
            "transformers runs the exported model causally: a token's state does not depend on "
            "those after it"
        )


def _sequences(found: dict[str, Tensor], way: str) -> list[Tensor]:
    return [found[f"{way}.{number}"] for number in range(sum(key.startswith(way) for key in found))]


def _largest(what: str, found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference as a share of the largest value, or of 1.

    Raises:
        ModelError: It is beyond `TOLERANCE`, or shapes differ.
    """
    differences = []
    for theirs, ours in zip(found, expected, strict=True):
        if theirs.shape != ours.shape:
            raise ModelError(f"{what}: shape {list(theirs.shape)} instead of {list(ours.shape)}")
        scale = ours.abs().max().clamp(min=1.0)
        differences.append(float((theirs - ours).abs().max() / scale))
    largest = torch.tensor(differences).max().item()
    if not largest <= TOLERANCE:  # NaN is not
        raise ModelError(
            f"the exported model, loaded by transformers, differs from ours: {what} by "
            f"{largest:.1e}, allowed {TOLERANCE:.0e}"
        )
    return largest
