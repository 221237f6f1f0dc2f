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
"""Of hidden states, logits and embeddings: of the largest, or of 1 where all are smaller."""
_ROUNDING = 1e-3
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
        precision: What both computed in.
    """

    alone: float
    many: float
    logits: float | None
    embeddings: float | None
    transformers: str
    precision: str = "fp32"

    @property
    def differences(self) -> dict[str, float]:
        """By what differs."""
        found = {
            "hidden states": self.alone,
            "hidden states in a padded batch": self.many,
            "logits": self.logits,
            "embeddings": self.embeddings,
        }
        return {what: largest for what, largest in found.items() if largest is not None}

    @property
    def is_ours(self) -> bool:
        """Tell whether all are within `TOLERANCE`; NaN is not."""
        return all(largest <= TOLERANCE for largest in self.differences.values())

    @property
    def may_be_rounding(self) -> bool:
        """Tell whether fp32 could round so much in a deep model, or a wide one."""
        return all(largest <= _ROUNDING for largest in self.differences.values())


def refuse_differences(found: Reloaded) -> None:
    """Refuse an export that gives something else than our own reading.

    Raises:
        ModelError: Names what differs most.
    """
    if not found.is_ours:
        what, largest = max(
            found.differences.items(), key=lambda item: (item[1] != item[1], item[1])
        )
        raise ModelError(
            f"the exported model, loaded by transformers, differs from ours: {what} by "
            f"{largest:.1e}, allowed {TOLERANCE:.0e} ({found.precision})"
        )


def check_export(
    folder: Path,
    reference: Reference,
    *,
    tokenizer_roles: dict[str, int],
    head: str | None = None,
    logits: Tensor | None = None,
    has_pooling: bool = False,
    is_double: bool = False,
) -> Reloaded:
    """Load an exported folder in a fresh process without biphasic, and measure differences.

    Args:
        folder: The export.
        reference: Our own reading of the model.
        tokenizer_roles: Ids of `mask` and `pad`.
        head: Name of transformers' class with the language-model head; None where it has none.
        logits: Its logits for `reference.probe`, fp32 [length, vocab_size].
        has_pooling: Whether sentence-transformers reads the folder.
        is_double: Compute hidden states in fp64, as the reference was.

    Raises:
        ModelError: The folder cannot be loaded, is causal, or gives other token ids; says what.
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
        "embedded": reference.embedded if has_pooling else [],
        "dtype": "float64" if is_double else "float32",
    }
    report, found = _ask(request)
    if report["has_biphasic"]:
        raise ModelError("the check of the export imported biphasic; it proves nothing")
    _compare_ids(report["ids"], reference, tokenizer_roles)
    _require_both_ways(found, reference)
    return Reloaded(
        alone=_largest(_sequences(found, "alone"), reference.alone),
        many=_largest(_sequences(found, "many"), reference.many),
        logits=None if logits is None else _largest([found["logits"]], [logits]),
        embeddings=_largest([found["embeddings"]], [reference.embeddings]) if has_pooling else None,
        transformers=report["transformers"],
        precision="fp64" if is_double else "fp32",
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


def _largest(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference as a share of the largest value, or of 1.

    Raises:
        ModelError: Shapes differ.
    """
    differences = []
    for theirs, ours in zip(found, expected, strict=True):
        if theirs.shape != ours.shape:
            raise ModelError(
                f"the exported model gives {list(theirs.shape)} numbers instead of "
                f"{list(ours.shape)}"
            )
        scale = ours.abs().max().clamp(min=1.0)
        differences.append((theirs - ours).abs().max() / scale)
    return torch.stack(differences).max().item()  # NaN wins
