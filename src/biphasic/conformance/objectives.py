"""The rules of objectives, on rows of a small text and a small model."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise

import numpy as np
import torch
from transformers import PreTrainedModel

from biphasic.conformance.golden import Output, differences
from biphasic.conformance.rules import Rule, check_rules, variants
from biphasic.data.packing import PackedBatch, lay_out
from biphasic.data.rows import Piece, RowBatch
from biphasic.data.tokens.tokenizer import TextTokenizer, train_tokenizer
from biphasic.distributed import ProcessGroup
from biphasic.errors import ConfigError, DataError
from biphasic.files import canonical_json
from biphasic.model.loading.build import architecture_config, new_model
from biphasic.model.presets import PRESETS
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.supervision import Supervision, Vocabulary, problems
from biphasic.seeds import stream, uniforms
from biphasic.training.step.input import passes_of
from biphasic.training.step.passes import summed_loss

STEPS = 4
ROWS = 8
ROW_LENGTH = 48
_MASK_SEED = 1
_LONGEST = 18
_TOLERANCE = 1e-4
_WORDS = (
    "the", "array", "of", "rows", "holds", "tokens", "and", "weights", "returns", "a", "copy",
    "unless", "axis", "is", "given",
)  # fmt: skip

Parts = tuple[Supervision, ...]


@dataclass(frozen=True)
class Case:
    """An objective with settings, in a phase of a few steps."""

    settings: ObjectiveConfig

    def fresh(self, step: int = 0) -> ObjectiveConfig:
        """Return the objective of a step, as a process that has just started has it."""
        again = type(self.settings).model_validate_json(self.settings.model_dump_json())
        return again.at(step, num_steps=STEPS)

    def parts(self, step: int = 0, *, mask_seed: int = _MASK_SEED) -> Parts:
        """Return what the objective makes of the rows of a step."""
        return self.fresh(step).supervise(_batch(step), _vocabulary(), mask_seed=mask_seed)


def check_objective(settings: ObjectiveConfig) -> None:
    """Check that an objective keeps all rules.

    Raises:
        ConfigError: It breaks a rule, which the message names.

    Example:
        >>> from biphasic.objectives.mlm import Mlm
        >>> check_objective(Mlm(objective="mlm"))
    """
    if settings.reading is not None:
        raise ConfigError(
            "reads pairs; the rules are only for objectives that read a corpus",
            about=settings.short_name,
        )
    check_rules(Case(settings), RULES, where=settings.short_name)


def _problems(rule: str, case: Case) -> Iterator[str]:
    """Yield what training refuses, too."""
    for step in range(STEPS):
        given = (case.parts(step), _batch(step), _vocabulary(), case.settings.directions)
        yield from (problem for broken, problem in problems(*given) if broken == rule)


def _specials(case: Case) -> Iterator[str]:
    """BOS and EOS are neither hidden nor predicted, unless `predicts_specials` says so."""
    if case.settings.predicts_specials:
        return
    specials = sorted(_vocabulary().special_ids)
    for part, rows in _each_part(case):
        if np.any(np.isin(part.labels, specials)):
            yield "a label is BOS or EOS; use batch.texts, which has neither"
        is_special = np.isin(rows.input_ids, specials)
        if np.any(is_special & (part.rows.input_ids != rows.input_ids)):
            yield "BOS or EOS is replaced in the input; use batch.texts, which has neither"


def _pure(case: Case) -> Iterator[str]:
    """The same rows and seed give the same, whatever was drawn before; the batch stays as it is."""
    before = _batch(0).sha256()
    first = _digest(case.parts())
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        if _digest(case.parts()) != first:
            yield "a second call gives other labels or inputs; draw from biphasic.seeds"
    if _batch(0).sha256() != before:
        _batch.cache_clear()
        yield "supervise changes the batch; copy input_ids first"


def _draws(case: Case) -> Iterator[str]:
    """Places that are drawn depend on the documents, not only on where these are in the rows."""
    steps = range(STEPS)
    if all(_places(case, step) == _places(case, step, _MASK_SEED + 1) for step in steps):
        return
    if all(_places(case, step) == _places(case, step, others=True) for step in steps):
        yield (
            "other documents of the same lengths have labels at the same places; draw from "
            "biphasic.seeds.stream with epoch, document and start of each of batch.pieces"
        )


def _resume(case: Case) -> Iterator[str]:
    """A step is the same after other steps as in a process that begins with it."""
    went_on = case.fresh()
    if not _is_steady(case):
        return
    for step in range(STEPS):
        parts = went_on.supervise(_batch(step), _vocabulary(), mask_seed=_MASK_SEED)
        if _digest(parts) != _digest(case.parts(step)):
            yield f"step {step} differs after earlier steps; keep nothing between steps"


def _passes(case: Case) -> Iterator[str]:
    """The summed loss is the same for any number of passes and of ranks."""
    parts = case.parts()
    whole = sum(_loss(part) for part in parts)
    ways: dict[str, list[Supervision]] = {
        f"passes of {rows} rows": [piece for part in parts for piece in part.split(rows)]
        for rows in (1, 3)
    }
    ways["two ranks"] = [
        piece for rank in (0, 1) for piece in passes_of(parts, ProcessGroup(rank, 2), None)
    ]
    for name, pieces in ways.items():
        divided = sum(_loss(piece) for piece in pieces if len(piece.labels))
        if not math.isclose(whole, divided, rel_tol=_TOLERANCE):
            yield f"the summed loss is {whole:.6g} in one pass and {divided:.6g} in {name}"


def _finite(case: Case) -> Iterator[str]:
    """The loss of each step is finite and not negative."""
    for step in range(STEPS):
        loss = sum(_loss(part) for part in case.parts(step))
        if not (math.isfinite(loss) and loss >= 0):
            yield f"the loss of step {step} is {loss}"


def _determinants(case: Case) -> Iterator[str]:
    """Settings and seeds that change inputs, labels or loss also change the identity."""
    settings, before = case.settings, _made(case)
    if _identity(case) != _identity(Case(case.fresh() if _is_steady(case) else settings)):
        yield "the identity of the same settings differs between calls"
    if _identity(case) == _identity(case, _MASK_SEED + 1) and before != _made(case, _MASK_SEED + 1):
        yield "another mask_seed gives other labels, but the same identity"
    for change, other in variants(settings, settings.own_settings()):
        if not isinstance(other, ObjectiveConfig):
            continue
        varied = Case(other)
        try:
            other.check_vocabulary(_vocabulary())
            after = _made(varied)
        except (ConfigError, DataError):
            continue  # of other settings, which the objective refuses
        if after != before and _identity(varied) == _identity(case):
            yield f"{change} gives other labels or another loss, but the same identity"


def output(settings: ObjectiveConfig) -> Output:
    """Return what an objective makes of all steps: inputs and labels, and the summed loss."""
    steps = [Case(settings).parts(step) for step in range(STEPS)]
    return "".join(map(_digest, steps)), sum(_loss(part) for parts in steps for part in parts)


def golden(case: Case) -> Iterator[str]:
    """A class that declares a version gives its golden output."""
    return differences(case.settings, output, own=case.settings.own_settings())


RULES: dict[str, Rule[Case]] = {
    "rows": partial(_problems, "rows"),
    "positions": partial(_problems, "positions"),
    "specials": _specials,
    "directions": partial(_problems, "directions"),
    "pure": _pure,
    "draws": _draws,
    "resume": _resume,
    "passes": _passes,
    "finite": _finite,
    "determinants": _determinants,
    "golden": golden,
}
"""The rules by name, in the order of their checks."""


def _each_part(case: Case) -> Iterator[tuple[Supervision, PackedBatch]]:
    """Yield the parts of all steps, with the rows that each was made from."""
    for step in range(STEPS):
        first = 0
        for part in case.parts(step):
            first %= ROWS
            yield part, _batch(step).packed.part(first, first + part.rows.num_rows)
            first += part.rows.num_rows


def _is_steady(case: Case) -> bool:
    return case.settings.at(0, num_steps=STEPS) is case.settings


def _identity(case: Case, mask_seed: int = _MASK_SEED) -> str:
    return canonical_json([case.fresh(step).identity(mask_seed) for step in range(STEPS)])


def _made(case: Case, mask_seed: int = _MASK_SEED) -> list[str]:
    """Return what the objective makes of all steps, with the loss of each part."""
    steps = [case.parts(step, mask_seed=mask_seed) for step in range(STEPS)]
    return [f"{_digest(parts)} {[_loss(part) for part in parts]!r}" for parts in steps]


def _places(
    case: Case, step: int, mask_seed: int = _MASK_SEED, *, others: bool = False
) -> list[list[int]]:
    """Return the positions of labels in a step's rows, or in those of other documents."""
    batch = _batch(step)
    if others:
        input_ids = batch.packed.input_ids.copy()
        for start, end in batch.texts:
            input_ids.reshape(-1)[start:end] = input_ids.reshape(-1)[start:end][::-1]
        pieces = tuple(
            replace(piece, epoch=piece.epoch + 1, document=piece.document + 1)
            for piece in batch.pieces
        )
        batch = replace(batch, packed=replace(batch.packed, input_ids=input_ids), pieces=pieces)
    parts = case.fresh(step).supervise(batch, _vocabulary(), mask_seed=mask_seed)
    return [part.positions.tolist() for part in parts]


def _digest(parts: Parts) -> str:
    content = hashlib.sha256()
    for part in parts:
        content.update(f"{part.causal} {part.rows.input_ids.shape}".encode())
        arrays = (part.rows.input_ids, part.rows.cu_seqlens, part.positions, part.labels)
        for array in (*arrays, part.weights):
            if array is not None:
                content.update(np.ascontiguousarray(array).tobytes())
    return content.hexdigest()


@torch.no_grad()
def _loss(part: Supervision) -> float:
    return float(summed_loss(_model(), part))


@cache
def _tokenizer() -> TextTokenizer:
    return train_tokenizer([" ".join(_WORDS)], vocab_size=280)


@cache
def _vocabulary() -> Vocabulary:
    tokenizer = _tokenizer()
    specials = frozenset(tokenizer.special_ids.values())
    return Vocabulary(tokenizer.vocab_size, tokenizer.mask_id, specials, tokenizer)


@cache
def _model() -> PreTrainedModel:
    tokenizer = _tokenizer()
    config = architecture_config(
        PRESETS["pico"],
        vocab_size=tokenizer.vocab_size,
        max_seqlen=ROW_LENGTH,
        special_ids=tokenizer.special_ids,
    )
    return new_model(config, init_seed=0)


@cache
def _batch(step: int) -> RowBatch:
    """Return rows of short documents, with padding."""
    ids = _tokenizer().special_ids
    draws = uniforms(stream("conformance", 0, step), 3 * ROWS * (_LONGEST + 1))
    documents: list[np.ndarray] = []
    for lengths, *words in draws.reshape(3 * ROWS, -1).tolist():
        chosen = [_WORDS[int(draw * len(_WORDS))] for draw in words[: 2 + int(8 * lengths)]]
        tokens = _tokenizer().encode(" ".join(chosen))[: ROW_LENGTH // 3 - 2]
        documents.append(np.array([ids["bos"], *tokens, ids["eos"]], dtype=np.int64))
    rows = [range(first, end) for first, end in pairwise(range(0, 3 * ROWS + 1, 3))]
    packed = lay_out(documents, rows, row_length=ROW_LENGTH, pad_id=ids["pad"])
    pieces = tuple(
        Piece(0, 3 * ROWS * step + number, 0, len(document) - 2)
        for number, document in enumerate(documents)
    )
    return RowBatch(packed, pieces, packed.spans + np.array([1, -1]))
