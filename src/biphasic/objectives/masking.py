"""Masked language modelling (MLM), masked next-token prediction (MNTP) and masked diffusion.

Every token has the same probability of selection: a unit (a token, a word, a span) is selected as a
whole by one draw, whatever its length. The budget therefore counts tokens, and holds on average,
not in each sequence. The papers instead fill a fixed budget with whole units, which favours short
ones when it is nearly used up. Tokens selected as a unit are also replaced alike, as in SpanBERT:
no part of a hidden word is visible.

References: the study (arXiv 2507.00994, section 2) selects single tokens and hides them all.
Replacement: Devlin et al. 2019, arXiv:1810.04805, section 3.1 (80/10/10 is `replacement: bert`).
Whole words: its later release; Cui et al. 2019, arXiv:1906.08101, section 2.2. Spans: Joshi et al.
2019 (SpanBERT), arXiv:1907.10529, section 3.1. A linearly changing rate: Ankner et al. 2023,
arXiv:2305.15096, section 2.

MNTP: BehnamGhader et al. 2024 (LLM2Vec), arXiv:2404.05961, section 2.1. A decoder's state has
learned to predict the next token, and a decoder made bidirectional keeps doing so. They adapt with
20 % of tokens selected and `replacement: bert`, Mistral with 80 % and all of them hidden (their
released settings). The default rate here is the study's, so MLM and MNTP compare at one rate with
the same tokens hidden.

Diffusion: Sahoo et al. 2024 (MDLM), arXiv:2406.07524, section 3.2; Nie et al. 2025 (LLaDA),
arXiv:2502.09992, section 2.1; beside causal language modelling: Samuel and Charpentier 2025,
arXiv:2512.14549. The share t of hidden tokens is drawn uniformly per sequence, and each label has
the weight 1 / t. The loss, divided by the number of all tokens of the texts, is in expectation an
upper bound on their negative log-likelihood in nats per token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from biphasic.amounts import percent_number
from biphasic.data.rows import NUM_SPECIAL, Piece, RowBatch
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.supervision import Supervision, Vocabulary, word_starts
from biphasic.seeds import stream, uniforms

Probability = Annotated[float, Field(gt=0, le=1)]
Replacement = Literal["mask", "bert"]
"""Of selected tokens."""
HIDDEN, KEPT = 0.8, 0.1  # shares of `bert`; the others become random tokens


Selection = Literal["token", "word", "span"]
"""Unit of selection."""
# SpanBERT's: the length of a span in words is geometric, but at most ten, and its mean is 3.8.
SPANS = {"mean_words": 5.0, "longest_words": 10}


def span_lengths(draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """Map draws from [0, 1) to lengths of spans, in words."""
    chances = (1 - 1 / SPANS["mean_words"]) ** np.arange(SPANS["longest_words"])
    cumulative = np.cumsum(chances) / chances.sum()
    return np.searchsorted(cumulative[:-1], draws, side="right") + 1


class MaskingConfig(ObjectiveConfig):
    """Settings of masking objectives."""

    mlm_probability: Probability = 0.4
    """Probability that a token is selected."""
    final_mlm_probability: Probability | None = None
    """Probability at the last step of the phase; it changes linearly from `mlm_probability` at the
    first step. By default it is constant."""
    selection: Selection = "token"
    """Unit of selection: `token`, `word`, or `span` (up to ten words; geometric length)."""
    replacement: Replacement = "mask"
    """`mask` hides every selected token; `bert` hides 80 %, randomizes 10 % and keeps 10 %."""

    @property
    def directions(self) -> frozenset[bool]:
        """Bidirectional only."""
        return frozenset({False})

    @property
    def label_share(self) -> float:
        """Probability that a token is selected."""
        return self.mlm_probability

    @property
    def name_in_arms(self) -> str:
        """Its name, rate and unusual choices, such as `mlm40.span`."""
        name = f"{self.short_name}{percent_number(self.mlm_probability)}"
        if self.final_mlm_probability is not None:
            name += f"to{percent_number(self.final_mlm_probability)}"
        for choice, usual in ((self.selection, "token"), (self.replacement, "mask")):
            if choice != usual:
                name += f".{choice}"
        return name

    @property
    def mask_rate(self) -> float:
        """Probability that a token is selected."""
        return self.label_share

    @property
    def most_labels(self) -> float:
        """The larger of the first and the last probability."""
        return max(self.mlm_probability, self.final_mlm_probability or 0.0)

    @property
    def turns(self) -> tuple[ObjectiveConfig, ...]:
        """Itself at its highest rate."""
        highest = {"mlm_probability": self.most_labels, "final_mlm_probability": None}
        return (self.model_copy(update=highest),)

    def at(self, step: int, *, num_steps: int) -> Self:
        """Return the objective with the rate at one step of a phase."""
        if self.final_mlm_probability is None:
            return self
        passed = step / (num_steps - 1) if num_steps > 1 else 0.0
        rate = (1 - passed) * self.mlm_probability + passed * self.final_mlm_probability
        return self.model_copy(update={"mlm_probability": rate, "final_mlm_probability": None})

    def check_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Raise an error for whole words if the vocabulary does not mark word starts."""
        if self.selection != "token":
            _ = vocabulary.spellings

    def determinants(self, mask_seed: int) -> dict[str, Any]:
        """Return everything that determines inputs and labels, given the rows."""
        own = self.own_settings()
        identity = {
            "name": self.short_name,
            **{name: own[name] for name in own if name not in MaskingConfig.model_fields},
            "mlm_probability": self._rate,
            "replacement": self.replacement,
            "mask_seed": mask_seed,
        }
        if self.selection == "token":  # keeps identities from before the setting existed
            return identity
        return {**identity, "selection": SPANS if self.selection == "span" else self.selection}

    def mask(self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int) -> Supervision:
        """Select tokens to predict, maybe none, and hide them; label each at its own position."""
        is_selected, units = select(
            batch, vocabulary, self.selection, mlm_probability=self._rate, mask_seed=mask_seed
        )
        positions = np.flatnonzero(is_selected)
        shown = _replaced(
            batch, is_selected, units, vocabulary, self.replacement, mask_seed=mask_seed
        )
        return Supervision(
            rows=replace(batch.packed, input_ids=shown),
            positions=positions,
            labels=batch.packed.input_ids.reshape(-1)[positions],
            causal=False,
        )

    @property
    def _rate(self) -> float:
        if self.final_mlm_probability is not None:
            raise RuntimeError("the rate depends on the step of the phase: call `at` first")
        return self.mlm_probability


def select(
    batch: RowBatch,
    vocabulary: Vocabulary,
    selection: Selection,
    *,
    mlm_probability: float,
    mask_seed: int,
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which tokens are selected, and the first token of their units, both [num_tokens]."""
    flat = batch.packed.input_ids.reshape(-1)
    is_selected = np.zeros(flat.size, dtype=bool)
    units = np.arange(flat.size)
    begins = None if selection == "token" else word_starts(flat, vocabulary.spellings)
    for (start, end), piece in zip(batch.texts.tolist(), batch.pieces, strict=True):
        text = slice(start, end)
        draws = uniforms(_stream("mask", mask_seed, piece), end - start)
        if begins is not None:
            token_units = _unit_of_tokens(begins[text], selection, mask_seed, piece)
            units[text] = start + token_units
            # All tokens of a unit have the draw of its first one, so they are selected together.
            draws = draws[token_units]
        is_selected[text] = draws < mlm_probability
    return is_selected, units


def _unit_of_tokens(
    begins_word: NDArray[np.bool_], selection: Selection, mask_seed: int, piece: Piece
) -> NDArray[np.int64]:
    """Return the first token of each token's unit, within the piece."""
    # A chunk may start within a word; only this part of the word is available.
    words = np.cumsum(begins_word) - begins_word[:1].sum()
    firsts = np.flatnonzero(np.diff(words, prepend=-1))
    if selection == "word":
        return firsts[words]
    lengths = span_lengths(uniforms(_stream("spans", mask_seed, piece), len(firsts)))
    first_words = np.concatenate([[0], np.cumsum(lengths)])
    return firsts[first_words[np.searchsorted(first_words, words, side="right") - 1]]


def _replaced(
    batch: RowBatch,
    is_selected: NDArray[np.bool_],
    units: NDArray[np.int64],
    vocabulary: Vocabulary,
    replacement: Replacement,
    *,
    mask_seed: int,
) -> NDArray[np.int64]:
    """Return the rows' tokens after replacement: int64 [num_rows, row_length]."""
    shown = batch.packed.input_ids.copy()
    flat = shown.reshape(-1)
    if replacement == "mask":
        flat[is_selected] = vocabulary.mask_id
        return shown
    # No text has special tokens, so a random one would show that it was replaced.
    candidates = np.setdiff1d(np.arange(vocabulary.size), sorted(vocabulary.special_ids))
    for (start, end), piece in zip(batch.texts.tolist(), batch.pieces, strict=True):
        bits = _stream("replacement", mask_seed, piece)
        # The first and last number of each are for BOS and EOS, and unused.
        numbers = uniforms(bits, 2 * (end - start + NUM_SPECIAL)).reshape(2, -1)
        choices, draws = numbers[:, 1:-1]
        # A word is hidden, replaced or kept as a whole.
        choices = choices[units[start:end] - start]
        tokens, chosen = flat[start:end], is_selected[start:end]
        randomised = chosen & (choices >= HIDDEN) & (choices < 1 - KEPT)
        tokens[chosen & (choices < HIDDEN)] = vocabulary.mask_id
        tokens[randomised] = candidates[(draws[randomised] * len(candidates)).astype(np.int64)]
    return shown


def _stream(name: str, mask_seed: int, piece: Piece) -> np.random.Philox:
    return stream(name, mask_seed, piece.epoch, piece.document, piece.start)


class Mlm(MaskingConfig):
    """Masked language modelling."""

    objective: Literal["mlm"]  # type: ignore[assignment]

    @property
    def heldout_weights(self) -> dict[str, float]:
        """The held-out loss of MLM, which has a masking rate of its own."""
        return {self.objective: 1.0}

    def supervise(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        """Mask tokens; each is predicted at its own position."""
        return (self.mask(batch, vocabulary, mask_seed=mask_seed),)


class Mntp(MaskingConfig):
    """Masked next-token prediction."""

    objective: Literal["mntp"]  # type: ignore[assignment]

    def supervise(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        """Mask tokens; each is predicted one position earlier, the first of a text at BOS."""
        masked = self.mask(batch, vocabulary, mask_seed=mask_seed)
        # A document's first token follows BOS. A sequence that begins within a document has no
        # position before its first token.
        has_before = ~np.isin(masked.positions, batch.packed.spans[:, 0])
        # As a causal model was trained: the state at a position predicts the next token.
        positions, labels = masked.positions[has_before] - 1, masked.labels[has_before]
        return (replace(masked, positions=positions, labels=labels),)


class Diffusion(ObjectiveConfig):
    """Masked diffusion."""

    objective: Literal["diffusion"]  # type: ignore[assignment]
    least_rate: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    """Smallest share of hidden tokens; the largest is 1. It limits the weights."""

    @property
    def directions(self) -> frozenset[bool]:
        """Bidirectional only."""
        return frozenset({False})

    @property
    def label_share(self) -> float:
        """Half of the tokens are hidden, on average."""
        return (1 + self.least_rate) / 2

    @property
    def heldout_weights(self) -> dict[str, float]:
        """The bound alone."""
        return {"diffusion": 1.0}

    @property
    def heldout_measures(self) -> dict[str, tuple[ObjectiveConfig, int]]:
        """The bound; weights of 1 / t make it vary, so it is averaged."""
        return {"diffusion": (Diffusion(objective="diffusion"), 4)}

    def supervise(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        """Hide tokens; each is predicted at its own position, with the weight of its sequence.

        Rates and selection are a pure function of `mask_seed` and each sequence's first document.
        At one rate, MLM hides the same tokens.
        """
        pieces = zip(batch.texts.tolist(), batch.pieces, self._rates(batch, mask_seed), strict=True)
        is_hidden = np.zeros(batch.packed.input_ids.size, dtype=bool)
        weights = np.zeros(is_hidden.size, dtype=np.float32)
        for (start, end), piece, rate in pieces:
            bits = _stream("mask", mask_seed, piece)
            is_hidden[start:end] = uniforms(bits, end - start) < rate
            # A low rate hides few tokens; with this weight the sum is a bound on the likelihood.
            weights[start:end] = 1 / rate
        positions = np.flatnonzero(is_hidden)
        shown = batch.packed.input_ids.copy()
        shown.reshape(-1)[positions] = vocabulary.mask_id
        supervision = Supervision(
            rows=replace(batch.packed, input_ids=shown),
            positions=positions,
            labels=batch.packed.input_ids.reshape(-1)[positions],
            causal=False,
            weights=weights[positions],
            num_predicted=int((batch.texts[:, 1] - batch.texts[:, 0]).sum()),
        )
        return (supervision,)

    def _rates(self, batch: RowBatch, mask_seed: int) -> list[float]:
        """Return the share of hidden tokens of each piece: that of its sequence."""
        starts = np.sort(batch.packed.spans[:, 0])
        sequences = np.searchsorted(starts, batch.texts[:, 0], side="right")
        first = dict(zip(sequences[::-1].tolist(), batch.pieces[::-1], strict=True))
        rates: dict[int, float] = {}
        for sequence, piece in first.items():
            bits = _stream("diffusion", mask_seed, piece)
            draw = float(uniforms(bits, 1)[0])
            rates[sequence] = self.least_rate + (1 - self.least_rate) * draw
        return [rates[sequence] for sequence in sequences.tolist()]
