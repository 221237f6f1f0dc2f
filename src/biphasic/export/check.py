"""Final check of an export: loaded without biphasic, it must reproduce the reference outputs.

A fresh, isolated process that cannot import biphasic loads the folder with transformers alone
(`reload.py`); this module compares its outputs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from biphasic.errors import ModelError
from biphasic.export.formats.hf import WrittenModel
from biphasic.export.reference import PAIR, TEXTS, Reference
from biphasic.files import read_json, write_json

TOLERANCE = 1e-5
"""For hidden states, logits and embeddings: relative to the largest value, or to 1 if smaller."""
_ROUNDING = 1e-3
"""Larger differences are refused at once: fp32 rounding in a deep or wide model is smaller."""
_SCRIPT = Path(__file__).with_name("reload.py")
_HIDDEN, _PADDED = "hidden states", "hidden states in a padded batch"


@dataclass(frozen=True)
class Reloaded:
    """Differences between an export and the reference.

    Attributes:
        differences: By what was compared, relative to the largest value, or to 1 if all values are
            smaller.
        transformers: Version used for the check.
        precision: Compute precision of hidden states and embeddings, on both sides.
    """

    differences: dict[str, float]
    transformers: str
    precision: str = "fp32"

    @property
    def hidden_states(self) -> float:
        """Largest difference of hidden states."""
        return max(self.differences[_HIDDEN], self.differences[_PADDED])


def check_export(
    folder: Path,
    reference: Reference,
    written: WrittenModel,
    *,
    tokenizer_roles: dict[str, int],
    has_pooling: bool,
    read_double: Callable[[], Reference],
) -> Reloaded:
    """Load an exported folder in a fresh process without biphasic, and measure differences.

    Both sides compute in fp32. If rounding may explain a difference of hidden states or embeddings,
    both compute these again in fp64; `read_double` then returns our side.

    Raises:
        ModelError: The folder cannot be loaded, is causal, gives other token ids, or differs from
            the reference.
    """
    logits = written.logits
    probe = reference.probe
    other = next(token for token in reference.sequences[-1] if token not in probe)
    request = {
        "folder": str(folder.resolve()),
        "sequences": reference.sequences,
        "changed": [*probe[:-2], other, probe[-1]],
        "probe": probe,
        "pad_id": tokenizer_roles["pad"],
        "texts": TEXTS,
        "pair": PAIR,
        "spelt": reference.spelt,
        "head": written.architecture if logits is not None else None,
        "embedded": reference.embedded if has_pooling else [],
        "tolerance": TOLERANCE,
        "rounding": _ROUNDING,
    }
    ways = {"alone": reference.alone, "many": reference.many}
    expected = {
        f"{way}.{number}": states for way, all in ways.items() for number, states in enumerate(all)
    }
    if has_pooling:
        expected["embeddings"] = reference.embeddings
    report, found = _ask(request, expected)
    if report["has_biphasic"]:
        raise ModelError("the export check imported biphasic, so its result is invalid")
    _compare_ids(report["ids"], reference, tokenizer_roles)
    _require_both_ways(found["fp32"], reference)
    differences = _differences(found["fp32"], reference, logits, has_pooling=has_pooling)
    precision = "fp32"
    if "fp64" in found:
        differences |= _differences(found["fp64"], read_double(), has_pooling=has_pooling)
        precision = "fp64"
    reloaded = Reloaded(differences, report["transformers"], precision)
    _refuse_differences(reloaded)
    return reloaded


def _differences(
    tensors: dict[str, Tensor],
    reference: Reference,
    logits: Tensor | None = None,
    *,
    has_pooling: bool,
) -> dict[str, float]:
    differences = {
        _HIDDEN: _largest(_sequences(tensors, "alone"), reference.alone),
        _PADDED: _largest(_sequences(tensors, "many"), reference.many),
    }
    if logits is not None:
        differences["logits"] = _largest([tensors["logits"]], [logits])
    if has_pooling:
        differences["embeddings"] = _largest([tensors["embeddings"]], [reference.embeddings])
    return differences


def _refuse_differences(reloaded: Reloaded) -> None:
    what, largest = max(
        reloaded.differences.items(), key=lambda item: (item[1] != item[1], item[1])
    )
    if not largest <= TOLERANCE:  # NaN is not
        raise ModelError(
            f"the exported model, loaded by transformers, differs from ours: {what} by "
            f"{largest:.1e}, allowed {TOLERANCE:.0e} ({reloaded.precision})"
        )


def _ask(
    request: dict[str, Any], expected: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """Run the script in a separate process; return its report, and its outputs by precision."""
    packages = Path(transformers.__file__).parents[1]
    with tempfile.TemporaryDirectory(prefix="biphasic-check-") as name:
        work = Path(name)
        write_json(work / "request.json", request)
        save_file(expected, work / "expected.safetensors")
        done = subprocess.run(  # noqa: S603 - our own script, no shell
            [sys.executable, "-I", str(_SCRIPT), str(work), str(packages)],
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            # The device affects rounding, and others may be using a GPU.
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["it wrote nothing"]
            raise ModelError(
                f"transformers cannot use the exported folder ({lines[-1]}); nothing was written"
            )
        outputs = {path.stem: load_file(path) for path in work.glob("fp*.safetensors")}
        return read_json(work / "found.json"), outputs


def _compare_ids(
    actual: dict[str, list[list[int]]], reference: Reference, roles: dict[str, int]
) -> None:
    expected = {
        "texts": reference.text_ids,
        "pair": [reference.pair_ids],
        "spelt": [reference.spelt_ids],
        "roles": [[roles["mask"], roles["pad"]]],
    }
    for name, ids in expected.items():
        for place, (theirs, ours) in enumerate(zip(actual[name], ids, strict=True)):
            if theirs != ours:
                what = repr(TEXTS[place][:40]) if name == "texts" else f"the {name}"
                raise ModelError(
                    f"transformers' AutoTokenizer gives other ids for {what} than training "
                    f"({theirs[:8]}... instead of {ours[:8]}...): it may have a tokenizer class "
                    "for this type of model, which does not read this tokenizer.json"
                )


def _require_both_ways(tensors: dict[str, Tensor], reference: Reference) -> None:
    """Check that a changed token changes every state before it."""
    before = len(reference.probe) - 2
    moved = (tensors["changed"] - tensors["alone.0"])[:before].abs().amax(-1)
    if not bool((moved > 0).all()):
        raise ModelError(
            "transformers runs the exported model causally: a token's state does not depend on "
            "those after it"
        )


def _sequences(tensors: dict[str, Tensor], way: str) -> list[Tensor]:
    return [
        tensors[f"{way}.{number}"] for number in range(sum(key.startswith(way) for key in tensors))
    ]


def _largest(actual: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference relative to the largest value, or to 1."""
    differences = []
    for theirs, ours in zip(actual, expected, strict=True):
        if theirs.shape != ours.shape:
            raise ModelError(
                f"the exported model gives {list(theirs.shape)} numbers instead of "
                f"{list(ours.shape)}"
            )
        scale = ours.abs().max().clamp(min=1.0)
        differences.append((theirs - ours).abs().max() / scale)
    return torch.stack(differences).max().item()  # NaN wins
