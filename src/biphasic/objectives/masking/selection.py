"""Selects the tokens to predict: single tokens, whole words, or spans of words.

Every token has the same probability of selection: a unit (a token, a word, a span) is selected as a
whole by one draw, whatever its length. The budget therefore counts tokens, and holds on average,
not in each sequence. The papers instead fill a fixed budget with whole units, which favours short
ones when it is nearly used up.

References: whole words: Devlin et al. 2019, arXiv:1810.04805, as released later; Cui et al. 2019,
arXiv:1906.08101, section 2.2. Spans: Joshi et al. 2019, arXiv:1907.10529, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, PositiveInt

from biphasic.config import Config
from biphasic.data.rows import NUM_SPECIAL, Piece, RowBatch
from biphasic.objectives.supervision import Vocabulary
from biphasic.objectives.words import word_starts
from biphasic.seeds import stream, uniforms


class SpanConfig(Config):
    """Spans of whole words, of geometric length; the defaults are SpanBERT's."""

    mean_words: Annotated[float, Field(ge=1)] = 5.0
    """Mean length of a span before long ones are excluded: 1 / p of the geometric distribution."""
    longest_words: PositiveInt = 10
    """Maximum length of a span; with the defaults, the mean is then 3.8 words."""

    def lengths(self, draws: NDArray[np.float64]) -> NDArray[np.int64]:
        """Map draws from [0, 1) to span lengths, in words."""
        chances = (1 - 1 / self.mean_words) ** np.arange(self.longest_words)
        cumulative = np.cumsum(chances) / chances.sum()
        return np.searchsorted(cumulative[:-1], draws, side="right") + 1


def _check_lengths(selection: str | SpanConfig) -> str | SpanConfig:
    """Check that the mean length does not exceed the maximum; the message starts with the field."""
    if isinstance(selection, SpanConfig) and selection.mean_words > selection.longest_words:
        raise ValueError(
            f"mean_words {selection.mean_words:g} is above longest_words "
            f"{selection.longest_words}, so most spans would be excluded; raise longest_words"
        )
    return selection


Selection = Annotated[Literal["token", "word", "span"] | SpanConfig, AfterValidator(_check_lengths)]
"""Unit of selection; `span` means `SpanConfig` with its defaults."""


@dataclass(frozen=True)
class Selected:
    """The tokens to predict.

    Attributes:
        is_selected: bool [num_rows * row_length].
        units: int64 [num_rows * row_length]; first token of each token's unit.
    """

    is_selected: NDArray[np.bool_]
    units: NDArray[np.int64]


def select(
    batch: RowBatch,
    vocabulary: Vocabulary,
    selection: Selection,
    *,
    mlm_probability: float,
    mask_seed: int,
) -> Selected:
    """Select tokens of rows; never special tokens.

    The choice is a pure function of `mask_seed` and of epoch, document and chunk of a piece; it
    does not depend on the row or step in which the piece appears. A lower probability selects a
    subset.

    Raises:
        ConfigError: Words or spans are requested, but the vocabulary does not mark word starts.
    """
    flat = batch.packed.input_ids.reshape(-1)
    is_selected = np.zeros(flat.size, dtype=bool)
    units = np.arange(flat.size)
    begins = None if selection == "token" else word_starts(flat, vocabulary.spellings)
    for (start, end), piece in zip(batch.packed.spans.tolist(), batch.pieces, strict=True):
        text = slice(start + 1, end - 1)
        draws = uniforms(_stream("mask", mask_seed, piece), end - start - NUM_SPECIAL)
        if begins is not None:
            token_units = _unit_of_tokens(begins[text], selection, mask_seed, piece)
            units[text] = start + 1 + token_units
            draws = draws[token_units]
        is_selected[text] = draws < mlm_probability
    return Selected(is_selected, units)


def _unit_of_tokens(
    begins_word: NDArray[np.bool_], selection: Selection, mask_seed: int, piece: Piece
) -> NDArray[np.int64]:
    """Return the first token of each token's unit, within the piece."""
    # A chunk may start within a word; only this part of the word is available.
    words = np.cumsum(begins_word) - begins_word[:1].sum()
    firsts = np.flatnonzero(np.diff(words, prepend=-1))
    if selection == "word":
        return firsts[words]
    spans = selection if isinstance(selection, SpanConfig) else SpanConfig()
    lengths = spans.lengths(uniforms(_stream("spans", mask_seed, piece), len(firsts)))
    first_words = np.concatenate([[0], np.cumsum(lengths)])
    return firsts[first_words[np.searchsorted(first_words, words, side="right") - 1]]


def _stream(name: str, mask_seed: int, piece: Piece) -> np.random.Philox:
    return stream(name, mask_seed, piece.epoch, piece.document, piece.start)
