"""Objectives: what they predict, and what pages say of them."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from objective_rows import BOS, EOS, MASK, PAD, VOCABULARY, Run, batch_of, phase_refusal, supervise

from biphasic.config import parse_config
from biphasic.data.packing import pack_sequences
from biphasic.data.rows import BatchShape, Piece, RowBatch, RowPlan, RowReader
from biphasic.errors import DataError
from biphasic.objectives.clm import Clm
from biphasic.objectives.contrastive import Contrastive, Distill, MarginMse
from biphasic.objectives.masking import Mlm
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.phases import OBJECTIVES, Alternate, Mix, divide_rows
from biphasic.objectives.supervision import Supervision
from biphasic.plugins import hashed_names
from biphasic.testing import check_objective

LENGTH = 8


@pytest.fixture
def supervision() -> Supervision:
    """Five rows, in the last of which nothing is supervised."""
    lengths = [8, 5, 3, 6, 4, 4, 7]
    tokens = iter(range(100))
    rows = pack_sequences(
        [np.array([next(tokens) for _ in range(n)]) for n in lengths], row_length=LENGTH, pad_id=0
    )
    assert rows.num_rows == 5
    positions = np.array([0, 3, 9, 15, 16, 23, 24, 31])
    return Supervision(rows, positions, labels=positions * 10, causal=True)


@pytest.mark.parametrize(
    ("rows_per_part", "sizes"), [(1, [1, 1, 1, 1]), (2, [1, 2, 2]), (3, [2, 3]), (4, [2, 3])]
)
def test_parts_have_all_rows_and_labels(supervision, rows_per_part, sizes):
    parts = supervision.split(rows_per_part)
    assert [part.rows.num_rows for part in parts] == sizes
    assert all(part.causal for part in parts)
    for name in ("input_ids", "position_ids"):
        found = np.concatenate([getattr(part.rows, name) for part in parts])
        assert np.array_equal(found, getattr(supervision.rows, name)[: len(found)])
    assert np.concatenate([part.labels for part in parts]).tolist() == supervision.labels.tolist()


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
            "learning_rate_scale, lora, max_seqlen, objective, optimizer_state, rope_theta, "
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


PAGE = (Path(__file__).parents[3] / "docs/objectives.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The file of the page."""
    (source,) = blocks("python")
    path = tmp_path / "ahead.py"
    path.write_text(source, encoding="utf-8")
    return path


def run_of(raw: dict[str, Any], folder: Path) -> Run:
    return parse_config(Run, hashed_names(raw, folder), where="docs")


def ahead(example: Path, **options: Any) -> ObjectiveConfig:
    phase = {"objective": "./ahead.py:Ahead", "steps": 1, **options}
    return run_of({"phases": [phase]}, example.parent).phases[0]


def test_settings_are_valid(example):
    *own, with_example = map(yaml.safe_load, blocks("yaml"))
    assert len(own) == 5
    for raw in own:
        assert parse_config(Run, raw, where="docs").phases
    first, second = run_of(with_example, example.parent).phases
    assert first.determinants(0) == {"name": "ahead", "distance": 3}
    assert second.identity(0)["objectives"][1]["distance"] == 2


def test_the_example_keeps_all_rules(example):
    check_objective(ahead(example))


def test_the_example_supervises(example):
    batch = batch_of([[Piece(0, 0, 0, 3), Piece(0, 1, 0, 1)]], row_length=9)
    # BOS 4 5 6 EOS BOS 11 EOS PAD.
    found = supervise(ahead(example, distance=3), batch, VOCABULARY, mask_seed=0)
    assert found.positions.tolist() == [0, 1]
    assert found.labels.tolist() == [6, 1]
    nearest = supervise(ahead(example, distance=1), batch, VOCABULARY, mask_seed=0)
    causal = supervise(Clm(objective="clm"), batch, VOCABULARY, mask_seed=0)
    assert np.array_equal(nearest.positions, causal.positions)
    assert np.array_equal(nearest.labels, causal.labels)
    with pytest.raises(DataError, match="the distance of 9"):
        supervise(ahead(example, distance=9), batch, VOCABULARY, mask_seed=0)


def test_the_table_names_every_objective():
    _, *rows = re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)
    kinds = (*OBJECTIVES, Alternate, Mix, Contrastive, Distill, MarginMse)
    names = [each.model_fields["objective"].annotation for each in kinds]
    assert rows == [name.__args__[0] for name in names]


def test_numbers_of_the_mixture():
    assert divide_rows(256, [0.9375, 0.0625]) == [240, 16]
    assert "18 % are causal" in PAGE
    assert round(100 / (1 + 15 * 0.3)) == 18
    assert round(100 / (1 + 15 * 0.15)) == 31
