"""Replaces the tokens to predict.

Reference: Devlin et al. 2019, arXiv:1810.04805, section 3.1: most are hidden, some are replaced by
random tokens, some are kept. Tokens selected as a unit are treated alike, as in SpanBERT (Joshi et
al. 2019, arXiv:1907.10529, section 3.1): no part of a hidden word is visible.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from biphasic.config import Config
from biphasic.data.rows import RowBatch
from biphasic.objectives.masking.selection import Selected
from biphasic.objectives.supervision import Vocabulary
from biphasic.seeds import stream, uniforms

Share = Annotated[float, Field(ge=0, le=1)]


class ReplacementShares(Config):
    """Shares of the replacements of selected tokens; they sum to 1."""

    mask: Share
    """Share that is replaced by the mask token."""
    random: Share = 0.0
    """Share that is replaced by a random token, excluding special tokens."""
    keep: Share = 0.0
    """Share that is kept unchanged, and is still predicted."""


BY_NAME = {
    "mask": ReplacementShares(mask=1.0),
    "bert": ReplacementShares(mask=0.8, random=0.1, keep=0.1),
}


def _check_shares(replacement: str | ReplacementShares) -> str | ReplacementShares:
    """Refuse shares that hide nothing or do not sum to 1."""
    if isinstance(replacement, str):
        return replacement
    total = replacement.mask + replacement.random + replacement.keep
    if not math.isclose(total, 1, abs_tol=1e-6):
        raise ValueError(f"the sum of mask, random and keep is {total:g}, not 1")
    if replacement.keep == 1:
        raise ValueError("keep 1 would show every token that is to be predicted")
    return replacement


Replacement = Annotated[Literal["mask", "bert"] | ReplacementShares, AfterValidator(_check_shares)]
"""`mask` hides every selected token; `bert` hides 80 %, randomizes 10 % and keeps 10 %."""


def shares_of(replacement: Replacement) -> ReplacementShares:
    """Return the shares of a replacement."""
    return BY_NAME[replacement] if isinstance(replacement, str) else replacement


def replacement_identity(replacement: Replacement) -> str | dict[str, Any]:
    """Return a replacement for hashing: its name, if it has one."""
    shares = shares_of(replacement)
    names = [name for name, named in BY_NAME.items() if named == shares]
    return names[0] if names else shares.model_dump()


def replace_selected(
    batch: RowBatch,
    selected: Selected,
    vocabulary: Vocabulary,
    shares: ReplacementShares,
    *,
    mask_seed: int,
) -> NDArray[np.int64]:
    """Return the rows' tokens after replacement: int64 [num_rows, row_length].

    The result is a pure function of `mask_seed` and of epoch, document and chunk of each piece.
    """
    shown = batch.packed.input_ids.copy()
    flat = shown.reshape(-1)
    if shares.mask == 1:
        flat[selected.is_selected] = vocabulary.mask_id
        return shown
    candidates = np.setdiff1d(np.arange(vocabulary.size), sorted(vocabulary.special_ids))
    for (start, end), piece in zip(batch.packed.spans.tolist(), batch.pieces, strict=True):
        bits = stream("replacement", mask_seed, piece.epoch, piece.document, piece.start)
        fates, draws = uniforms(bits, 2 * (end - start)).reshape(2, -1)
        fates = fates[selected.units[start:end] - start]
        tokens, chosen = flat[start:end], selected.is_selected[start:end]
        randomised = chosen & (fates >= shares.mask) & (fates < 1 - shares.keep)
        tokens[chosen & (fates < shares.mask)] = vocabulary.mask_id
        tokens[randomised] = candidates[(draws[randomised] * len(candidates)).astype(np.int64)]
    return shown
