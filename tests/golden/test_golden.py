"""No speed-up changes a result: short runs give the numbers that `losses.json` keeps.

They are equal to the last bit where they were recorded (processor, libraries, one thread), and
within `golden_numbers`'s tolerances elsewhere. A change that is to move them records them anew with
`.venv/bin/python tests/golden/record.py`, raises the version that stands for it, and says so under
Numerics in CHANGELOG.md.
"""

import copy
import math
from typing import Any

import pytest
from golden_numbers import (
    BF16_TOLERANCE,
    EXACT,
    FP32_TOLERANCE,
    PATH,
    foreign,
    moved,
    version_for,
    versions,
)
from golden_runs import RUNS

from biphasic.files import read_json

pytestmark = pytest.mark.slow

_RECORD_ANEW = ".venv/bin/python tests/golden/record.py"
_PLACES = {
    "FINETUNING_VERSION": "src/biphasic/tasks/protocol.py",
    "NUMERICS_VERSION": "src/biphasic/training/lineage.py",
}


@pytest.fixture(autouse=True)
def all_heldout(monkeypatch, all_heldout_tokens):
    monkeypatch.setattr("biphasic.training.heldout.HELDOUT_TOKENS", all_heldout_tokens)


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return read_json(PATH)


@pytest.mark.parametrize("name", RUNS)
def test_numbers_are_the_recorded_ones(record, name, tmp_path, one_thread):
    differing = foreign(record["environment"])
    tolerance = _tolerance(name) if differing else EXACT
    lines = moved(record["runs"][name], RUNS[name](tmp_path), tolerance=tolerance)
    if lines:
        pytest.fail(_message(name, lines, differing, tolerance), pytrace=False)


def test_record_is_of_this_environment(record, one_thread):
    """Skipped elsewhere, so that nobody takes a comparison within tolerances for an exact one."""
    differing = foreign(record["environment"])
    if differing:
        pytest.skip(f"numbers are compared within tolerances: other {', '.join(differing)}")
    assert record["environment"]["threads"] == 1


def test_versions_are_raised_and_recorded_together(record):
    recorded, now = record["versions"], versions()
    changed = [name for name in now if recorded.get(name) != now[name]]
    assert not changed, f"{', '.join(changed)} changed; record anew by {_RECORD_ANEW}"


def test_every_run_is_recorded_and_no_other(record):
    assert set(record["runs"]) == set(RUNS), f"runs were changed; record anew by {_RECORD_ANEW}"


def test_the_smallest_change_is_detected_and_reported(record):
    recorded = record["runs"]["clm"]
    found = copy.deepcopy(recorded)
    found["losses"][3] = math.nextafter(found["losses"][3], math.inf)
    found["losses"][7] += 0.5
    found["weights_sha256"] = "0" * 64
    losses, weights = moved(recorded, found, tolerance=EXACT)
    assert losses.startswith("losses: 2 of 12 moved; first step 4: ")
    assert "most step 8 (by 6." in losses  # 0.5 of 7.74
    assert weights.startswith("weights_sha256: ")
    assert weights.endswith(" recorded, 000000000000 now")
    # Elsewhere one bit is nothing, weights are not compared, and half a nat is too much.
    assert len(moved(recorded, found, tolerance=FP32_TOLERANCE)) == 1
    found["losses"][7] = recorded["losses"][7]
    assert moved(recorded, found, tolerance=FP32_TOLERANCE) == []


@pytest.mark.parametrize("tolerance", [EXACT, FP32_TOLERANCE, BF16_TOLERANCE])
@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("clm", "rows_sha256", "0" * 64),
        ("clm", "losses", []),
        ("clm", "losses", [math.nan] * 12),
        ("finetune-sc", "scores", {}),
    ],
)
def test_other_rows_and_missing_numbers_are_seen_everywhere(record, name, kind, value, tolerance):
    recorded = record["runs"][name]
    [line] = moved(recorded, {**recorded, kind: value}, tolerance=tolerance)
    assert line.startswith(f"{kind}: ")


def test_a_score_may_move_by_one_example_elsewhere(record):
    recorded = record["runs"]["finetune-sc"]
    accuracy = recorded["scores"]["test accuracy"]
    for examples, is_seen in ((1, False), (6, True)):
        scores = {**recorded["scores"], "test accuracy": accuracy - examples / 24}
        found = {**recorded, "scores": scores}
        assert bool(moved(recorded, found, tolerance=FP32_TOLERANCE)) is is_seen
        assert moved(recorded, found, tolerance=EXACT)


def _tolerance(name: str) -> float:
    return BF16_TOLERANCE if name.endswith("-bf16") else FP32_TOLERANCE


def _message(name: str, lines: list[str], differing: list[str], tolerance: float) -> str:
    how = (
        f"by more than {tolerance:g}, which is allowed for other {', '.join(differing)}"
        if differing
        else "where they were recorded, so every bit counts"
    )
    version = version_for(name)
    return "\n".join(
        [
            f"{name}: numbers moved {how}",
            *(f"  {line}" for line in lines),
            f"If that is meant: raise {version} ({_PLACES[version]}), record anew by "
            f"{_RECORD_ANEW}, and tell it under Numerics in CHANGELOG.md.",
        ]
    )
