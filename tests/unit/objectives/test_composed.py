"""Objectives by turns, and by shares of the rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from objective_rows import MASK, VOCABULARY, batch_of, phase_refusal, supervise

from biphasic.data.rows import Piece
from biphasic.errors import ConfigError
from biphasic.objectives.clm import Clm
from biphasic.objectives.masking import Mlm
from biphasic.objectives.phases import Alternate, Mix, divide_rows

CLM = Clm(objective="clm")
MLM = Mlm(objective="mlm")
MLM_RAW = {"objective": "mlm"}
CLM_RAW = {"objective": "clm"}
BATCH = batch_of([[Piece(0, 2 * d, 0, 20), Piece(0, 2 * d + 1, 0, 7)] for d in range(16)],
                 row_length=32)  # fmt: skip


def mix(*objectives: dict, shares: list[float]) -> Mix:
    raw = {"objective": "mix", "objectives": objectives, "shares": shares}
    return Mix.model_validate(raw)


def alternate(*objectives: dict, every: int) -> Alternate:
    raw = {"objective": "alternate", "objectives": objectives, "every": every}
    return Alternate.model_validate(raw)


def test_heldout_losses_are_weighted_by_the_shares_of_rows():
    assert mix(CLM_RAW, MLM_RAW, shares=[0.25, 0.75]).heldout_weights == {"clm": 0.25, "mlm": 0.75}
    by_turns = alternate(CLM_RAW, MLM_RAW, MLM_RAW, CLM_RAW, every=1)
    assert by_turns.heldout_weights == {"clm": 0.5, "mlm": 0.5}


def test_turns():
    phase = alternate(CLM_RAW, MLM_RAW, MLM_RAW, every=2)
    names = [phase.at(step, num_steps=9).objective for step in range(9)]
    assert names == ["clm", "clm", *["mlm"] * 4, "clm", "clm", "mlm"]
    assert phase.directions == {True, False}


def test_a_turn_is_determined_as_if_it_were_spelled_out():
    phase = alternate(CLM_RAW, {**MLM_RAW, "mlm_probability": 0.2}, every=1)
    assert phase.at(0, num_steps=4).determinants(3) == CLM.determinants(3)
    plain = Mlm(objective="mlm", mlm_probability=0.2)
    turn = phase.at(1, num_steps=4)
    assert turn.determinants(3) == plain.determinants(3)
    one, other = (supervise(each, BATCH, VOCABULARY, mask_seed=3) for each in (turn, plain))
    assert np.array_equal(one.positions, other.positions)
    with pytest.raises(RuntimeError, match="call `at` first"):
        phase.determinants(0)
    with pytest.raises(RuntimeError, match="call `at` first"):
        phase.supervise(BATCH, VOCABULARY, mask_seed=0)


def test_a_schedule_within_turns_runs_over_the_phase():
    falling = {"objective": "mlm", "mlm_probability": 0.5, "final_mlm_probability": 0.1}
    phase = alternate(CLM_RAW, falling, every=1)
    # Steps 1 and 3 of 0 to 4.
    rates = [phase.at(step, num_steps=5).determinants(0)["mlm_probability"] for step in (1, 3)]
    assert np.allclose(rates, [0.4, 0.2])


def test_turns_that_never_come_are_refused():
    phase = alternate(CLM_RAW, MLM_RAW, MLM_RAW, every=3)
    phase.check(num_steps=7, rows_per_step=1)
    assert phase.at(6, num_steps=7).objective == "mlm"
    with pytest.raises(ConfigError) as caught:
        phase.check(num_steps=6, rows_per_step=1)
    assert str(caught.value) == (
        "alternate: 6 steps end before every objective had a turn of 3; use 7 steps or more, or "
        "shorter turns"
    )


def test_mixed_parts_are_those_of_the_objectives_alone():
    phase = mix(MLM_RAW, CLM_RAW, shares=[0.75, 0.25])
    masked, causal = phase.supervise(BATCH, VOCABULARY, mask_seed=5)
    assert (masked.causal, causal.causal) == (False, True)
    assert (masked.rows.num_rows, causal.rows.num_rows) == (12, 4)
    border = 12 * BATCH.packed.row_length
    whole = supervise(MLM, BATCH, VOCABULARY, mask_seed=5)
    here = whole.positions < border
    assert np.array_equal(masked.positions, whole.positions[here])
    assert np.array_equal(masked.labels, whole.labels[here])
    assert np.array_equal(masked.rows.input_ids, whole.rows.input_ids[:12])
    whole = supervise(CLM, BATCH, VOCABULARY, mask_seed=5)
    here = whole.positions >= border
    assert np.array_equal(causal.positions, whole.positions[here] - border)
    assert np.array_equal(causal.labels, whole.labels[here])
    assert not (causal.rows.input_ids == MASK).any()
    assert phase.directions == {True, False}


def test_determinants_of_a_mixture():
    phase = mix(
        {"objective": "mntp", "mlm_probability": 0.3, "final_mlm_probability": 0.1},
        CLM_RAW,
        shares=[0.75, 0.25],
    )
    masked = {"name": "mntp", "mlm_probability": 0.3, "replacement": "mask", "mask_seed": 9}
    expected = {"name": "mix", "objectives": [masked, {"name": "clm"}], "shares": [0.75, 0.25]}
    assert phase.at(0, num_steps=3).determinants(9) == expected
    assert phase.at(2, num_steps=3).determinants(9) == {
        **expected,
        "objectives": [{**masked, "mlm_probability": 0.1}, {"name": "clm"}],
    }


@given(
    st.integers(1, 300),
    st.lists(st.integers(1, 50), min_size=2, max_size=6),
)
def test_rows_are_divided_by_largest_remainder(num_rows, weights):
    total = sum(weights)
    rows = divide_rows(num_rows, [weight / total for weight in weights])
    assert sum(rows) == num_rows
    # In integers: never more than a row from the quota, and the larger remainder goes first.
    for each, weight in zip(rows, weights, strict=True):
        assert abs(each * total - num_rows * weight) <= total
    remainders = [num_rows * weight % total for weight in weights]
    raised = [each > num_rows * weight // total for each, weight in zip(rows, weights, strict=True)]
    got = [left for left, is_up in zip(remainders, raised, strict=True) if is_up]
    lost = [left for left, is_up in zip(remainders, raised, strict=True) if not is_up]
    if got and lost:
        assert min(got) >= max(lost) or np.isclose(min(got), max(lost))


def test_equal_remainders_go_to_the_first():
    assert divide_rows(8, [0.9375, 0.0625]) == [8, 0]
    assert divide_rows(3, [0.5, 0.5]) == [2, 1]
    assert divide_rows(10, [0.5, 0.3, 0.2]) == [5, 3, 2]
    assert divide_rows(100, [0.29, 0.71]) == [29, 71]


def test_a_share_without_a_row_is_refused():
    phase = mix(MLM_RAW, CLM_RAW, shares=[0.9375, 0.0625])
    message = (
        "mix: of 8 rows per step, objectives.1 (clm, share 0.0625) gets none; set rows_per_step "
        "to 9 or more, or use a larger share"
    )
    for step in range(9, 40):
        phase.check(num_steps=1, rows_per_step=step)
    with pytest.raises(ConfigError) as caught:
        phase.check(num_steps=1, rows_per_step=8)
    assert str(caught.value) == message
    with pytest.raises(ConfigError) as caught:
        phase.supervise(BATCH.part(0, 8), VOCABULARY, mask_seed=0)
    assert str(caught.value) == message
    with pytest.raises(ConfigError, match="set rows_per_step to 9 or more"):
        alternate(CLM_RAW, phase.model_dump(), every=1).check(num_steps=9, rows_per_step=8)


def test_an_objective_without_labels_has_no_part():
    rare = {"objective": "mlm", "mlm_probability": 1e-9}
    (causal,) = mix(rare, CLM_RAW, shares=[0.5, 0.5]).supervise(BATCH, VOCABULARY, mask_seed=0)
    assert causal.causal
    rarer = {"objective": "mntp", "mlm_probability": 1e-9}
    assert not mix(rare, rarer, shares=[0.5, 0.5]).supervise(BATCH, VOCABULARY, mask_seed=0)


def test_words_are_checked_within():
    words = {"objective": "mlm", "selection": "word"}
    mixture = mix(words, CLM_RAW, shares=[0.5, 0.5])
    for phase in (mixture, alternate(CLM_RAW, words, every=1),
                  alternate(CLM_RAW, mixture.model_dump(), every=1)):  # fmt: skip
        with pytest.raises(ConfigError, match="need the tokenizer"):
            phase.check_vocabulary(VOCABULARY)


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        *(
            (
                {"objective": "alternate", "every": 2, "objectives": alike},
                "phases.0: objectives: give two or more that differ, or use one without turns",
            )
            for alike in ([], [MLM_RAW], [CLM_RAW, CLM_RAW])
        ),
        (
            {"objective": "mix", "objectives": [CLM_RAW], "shares": [0.5]},
            "phases.0: objectives: give two or more that differ, or use one without shares",
        ),
        (
            {"objective": "mix", "objectives": [CLM_RAW, MLM_RAW], "shares": [0.5, 0.4]},
            "phases.0: shares: the sum is 0.9, not 1",
        ),
        (
            {"objective": "mix", "objectives": [CLM_RAW, MLM_RAW], "shares": [1 - 1e-9, 1e-9]},
            "phases.0: shares: 1e-09 is less than one row in a million",
        ),
        (
            {"objective": "mix", "objectives": [CLM_RAW, MLM_RAW], "shares": [0.5]},
            "phases.0: shares: 1 given for 2 objectives",
        ),
        (
            {"objective": "mix", "objectives": [CLM_RAW, MLM_RAW], "shares": [0, 1]},
            "phases.0.shares.0: input should be greater than 0 (got 0); "
            "phases.0.shares.1: input should be less than 1 (got 1)",
        ),
        (
            {
                "objective": "mix",
                "objectives": [CLM_RAW, {**MLM_RAW, "steps": 3}],
                "shares": [0.5, 0.5],
            },
            "unknown key 'phases.0.objectives.1.steps' (known: final_mlm_probability, "
            "mlm_probability, objective, replacement, selection)",
        ),
        (
            {"objective": "alternate", "every": 2, "objectives": [CLM_RAW, {"objective": "mix"}]},
            "'phases.0.objectives.1.objectives' is required; "
            "'phases.0.objectives.1.shares' is required",
        ),
    ],
)
def test_nonsense_is_refused(phase, message):
    assert phase_refusal(**phase) == message


@pytest.mark.parametrize(("share", "needed"), [(1e-3, 501), (1e-5, 50_001), (2e-6, 250_001)])
def test_the_rows_that_a_small_share_needs_are_computed_at_once(share, needed):
    phase = mix(MLM_RAW, CLM_RAW, shares=[1 - share, share])
    with pytest.raises(ConfigError, match=f"set rows_per_step to {needed} or more"):
        phase.check(num_steps=1, rows_per_step=8)
