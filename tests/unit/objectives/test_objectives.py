"""What each objective shows and asks for."""

import numpy as np
import pytest
from objective_rows import BOS, EOS, MASK, PAD, VOCABULARY, batch_of, phase_refusal, supervise

from biphasic.data.rows import BatchShape, Piece, RowBatch, RowPlan, RowReader
from biphasic.objectives.clm import Clm
from biphasic.objectives.masking import Mlm

CLM = Clm(objective="clm")


def mlm(**settings: object) -> Mlm:
    return Mlm.model_validate({"objective": "mlm", **settings})


@pytest.fixture(scope="module")
def batch(corpus, tokenizer) -> RowBatch:
    plan = RowPlan(corpus.lengths, [BatchShape(64, 16, 1)], data_seed=0)
    return RowReader(corpus, plan, tokenizer.special_ids).batch(0)


@pytest.fixture(scope="module")
def long_batch() -> RowBatch:
    """Two hundred documents of 100 tokens: shares of 20,000 are known within a percent."""
    return batch_of([[Piece(0, d, 0, 100)] for d in range(200)], row_length=104)


def test_clm_by_hand():
    batch = batch_of([[Piece(0, 0, 0, 2), Piece(0, 1, 0, 1)], [Piece(0, 2, 0, 3)]], row_length=8)
    # Rows: BOS 4 5 EOS BOS 11 EOS PAD and BOS 18 19 20 EOS PAD PAD PAD.
    supervision = supervise(CLM, batch, VOCABULARY, mask_seed=0)
    assert supervision.positions.tolist() == [0, 1, 2, 4, 5, 8, 9, 10, 11]
    assert supervision.labels.tolist() == [4, 5, EOS, 11, EOS, 18, 19, 20, EOS]
    assert np.array_equal(supervision.rows.input_ids, batch.packed.input_ids)
    assert supervision.causal


def test_clm_predicts_eos_never_bos_and_crosses_no_border(batch):
    supervision = supervise(CLM, batch, VOCABULARY, mask_seed=0)
    assert BOS not in supervision.labels
    assert PAD not in supervision.labels
    assert (supervision.labels == EOS).sum() == len(batch.pieces)
    segment = np.searchsorted(batch.packed.cu_seqlens, supervision.positions, side="right")
    following = np.searchsorted(batch.packed.cu_seqlens, supervision.positions + 1, side="right")
    assert np.array_equal(segment, following)
    assert len(supervision.labels) == batch.packed.num_tokens - len(batch.pieces)


@pytest.mark.parametrize("replacement", ["mask", "bert"])
@pytest.mark.parametrize("probability", [0.2, 1.0])
def test_mlm_never_selects_special_tokens(batch, probability, replacement):
    phase = mlm(mlm_probability=probability, replacement=replacement)
    before = batch.packed.input_ids.copy()
    supervision = supervise(phase, batch, VOCABULARY, mask_seed=0)
    assert np.array_equal(batch.packed.input_ids, before)
    original, shown = before.reshape(-1), supervision.rows.input_ids.reshape(-1)
    assert np.array_equal(supervision.labels, original[supervision.positions])
    assert not np.isin(supervision.labels, list(VOCABULARY.special_ids)).any()
    assert (np.diff(supervision.positions) > 0).all()
    others = np.setdiff1d(np.arange(original.size), supervision.positions)
    assert np.array_equal(shown[others], original[others])
    if probability == 1.0:
        text_tokens = batch.packed.num_tokens - 2 * len(batch.pieces)
        assert len(supervision.labels) == text_tokens


def test_mlm_shows_the_mask_everywhere_by_default(long_batch):
    supervision = supervise(mlm(), long_batch, VOCABULARY, mask_seed=0)
    shown = supervision.rows.input_ids.reshape(-1)
    assert mlm().mlm_probability == 0.4
    assert (shown[supervision.positions] == MASK).all()
    assert not supervision.causal


def test_replacement_does_not_change_the_selection(long_batch):
    masked, bert = (
        supervise(mlm(replacement=way), long_batch, VOCABULARY, mask_seed=5)
        for way in ("mask", "bert")
    )
    assert np.array_equal(masked.positions, bert.positions)
    assert np.array_equal(masked.labels, bert.labels)


def test_seed_epoch_document_and_chunk_change_the_mask():
    def selected(piece: Piece, mask_seed: int = 0) -> list[int]:
        batch = batch_of([[piece]], row_length=80)
        return supervise(mlm(), batch, VOCABULARY, mask_seed=mask_seed).positions.tolist()

    base = selected(Piece(0, 0, 0, 60))
    assert selected(Piece(0, 0, 0, 60)) == base
    assert selected(Piece(0, 0, 0, 60), mask_seed=1) != base
    assert selected(Piece(1, 0, 0, 60)) != base
    assert selected(Piece(0, 1, 0, 60)) != base
    assert selected(Piece(0, 0, 60, 120)) != base


def test_known_mask():
    # Golden: a change here needs another NUMERICS_VERSION.
    batch = batch_of([[Piece(0, 0, 0, 20)]], row_length=24)
    positions = supervise(mlm(), batch, VOCABULARY, mask_seed=0).positions.tolist()
    assert positions == [1, 3, 4, 8, 9, 11, 18, 20]


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        (
            {"objective": "clmm"},
            "phases.0.objective: unknown value 'clmm' (did you mean 'clm'?)",
        ),
        (
            {"objective": "clm", "mlm_probability": 0.4},
            "unknown key 'phases.0.mlm_probability' (known: corpus, freeze, learning_rate, "
            "learning_rate_scale, max_seqlen, objective, optimizer_state, rope_theta, "
            "rows_per_step, steps)",
        ),
        (
            {"objective": "mlm", "mlm_probability": 1.1},
            "phases.0.mlm_probability: input should be less than or equal to 1 (got 1.1)",
        ),
        (
            {"objective": "mlm", "mlm_probability": 0},
            "phases.0.mlm_probability: input should be greater than 0 (got 0)",
        ),
    ],
)
def test_bad_phases(phase, message):
    assert phase_refusal(**phase) == message
