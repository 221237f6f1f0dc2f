"""Which trials are lost when a step diverges that several of them share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import biphasic
from biphasic.errors import BiphasicError, DivergedError, StoppedError, StudyError
from biphasic.execution.job import Failure
from biphasic.study.resolve import resolve
from biphasic.study.run.run import StudyOutcome
from biphasic.study.study import Study
from biphasic.study.tune import search as tune

TEXT = """\
name: shared
title: Shared
recipe:
  model: pico
  max_seqlen: 64
  rows_per_step: 4
  learning_rate: {peak: 2.0e-3}
arms:
  - {name: clm, phases: [{objective: clm, steps: 20}]}
  - name: turns
    phases:
      - objective: alternate
        every: 4
        steps: 20
        objectives: [{objective: clm}, {objective: mlm}]
"""


def outcome(*failures: Failure, is_stopped: bool = False) -> StudyOutcome:
    """Return the outcome of a study that trained nothing."""
    lines, place = tuple(map(str, failures)), Path("nowhere")
    return StudyOutcome(place, place, 0, lines, failed=failures, is_stopped=is_stopped)


@pytest.fixture
def tuned(monkeypatch, tmp_path):
    """Return what tunes with another `execute_study`, and returns the error; the file stays."""

    def tune_with(run_study: Any, error: type[Exception]) -> str:
        monkeypatch.setattr(tune, "execute_study", run_study)
        file = tmp_path / "shared.yaml"
        file.write_text(TEXT)
        with pytest.raises(error) as caught:
            biphasic.tune(file, root=tmp_path / "runs", rates=[1e3], share=0.5, extend=False)
        assert file.read_text() == TEXT
        return str(caught.value)

    return tune_with


@pytest.fixture
def fail(tuned, tmp_path):
    """Return what tunes where one segment of the trials fails."""

    def run(error: BiphasicError, *, start: int) -> dict[str, str]:
        def run_study(study: Study, **_: Any) -> StudyOutcome:
            segments = resolve(study, missing="placeholder").plan.segments
            (failed,) = [
                s for s in segments if s.start == start and s.arm.name == "pico-clm-lr1000"
            ]
            divergence = getattr(error, "divergence", "")
            failure = Failure(failed.id, failed.label, str(error), 1, None, divergence)
            return outcome(failure)

        message = tuned(run_study, StudyError)
        path = tmp_path / "runs/shared-tune/lost.json"
        lost = json.loads(path.read_text()) if path.is_file() else {}
        return {"error": message, "lost": sorted(set(lost.values())), "count": len(lost)}

    return run


def test_all_that_share_the_step_are_lost(fail):
    found = fail(DivergedError.at(2, "loss"), start=0)
    assert "every trial of pico-clm, pico-alt4.clm.mlm40 diverged" in found["error"]
    assert found["lost"] == ["the loss was not finite at step 2"]
    assert found["count"] == 2


def test_trials_that_branched_before_are_not_lost(fail):
    found = fail(DivergedError.at(7, "held-out loss after it"), start=4)
    assert "trial 'pico-alt4.clm.mlm40-lr1000' is not trained" in found["error"]
    assert found["lost"] == ["the held-out loss after it was not finite at step 7"]
    assert found["count"] == 1


def test_another_failure_loses_nothing(fail):
    found = fail(StudyError("no space left on device"), start=0)
    assert "run the command again to retry: pico-clm-lr1000 0-4: no space" in found["error"]
    assert found["lost"] == []


def test_cancelled_tuning_is_reported_and_leaves_the_file(tuned):
    message = tuned(lambda *_, **__: outcome(is_stopped=True), StoppedError)
    assert message.startswith("shared-tune: stopped; run the command again to resume")
