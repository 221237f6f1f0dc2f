"""Metrics as lines, and TensorBoard as a view."""

import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from biphasic.records import HeldoutLine, TrainingLine
from biphasic.training.records.log import MetricsLog

LINES = [
    {
        "step": 1,
        "phase": 0,
        "objective": "clm",
        "loss": 2.5,
        "learning_rate": 0.1,
        "gradient_norm": 1.5,
        "tokens": 9,
        "supervised_tokens": 7,
        "tokens_per_second": 3.0,
    },
    {"step": 1, "tokens": 9, "heldout": {"clm": 2.25, "mlm": 3.25}},
]
TRAIN, HELDOUT = TrainingLine.model_validate(LINES[0]), HeldoutLine.model_validate(LINES[1])


def events(folder) -> dict[str, list[tuple[int, float]]]:
    accumulator = EventAccumulator(str(folder)).Reload()
    return {
        name: [(event.step, event.value) for event in accumulator.Scalars(name)]
        for name in accumulator.Tags()["scalars"]
    }


def test_one_json_object_a_line():
    log = MetricsLog([], None, next_step=1)
    assert log.text() == ""
    log.write(TRAIN)
    log.write(HELDOUT)
    assert log.text().endswith("}\n")
    assert [json.loads(line) for line in log.text().splitlines()] == LINES
    log.close()


def test_continues_after_earlier_lines():
    earlier = ['{"step": 0}']
    log = MetricsLog(earlier, None, next_step=1)
    log.write(HELDOUT)
    assert log.lines[0] == '{"step": 0}'
    assert len(log.lines) == 2
    assert earlier == ['{"step": 0}']


def test_what_is_not_finite_is_never_written():
    log = MetricsLog([], None, next_step=1)
    with pytest.raises(ValueError, match="Out of range"):
        log.write(TRAIN.model_copy(update={"loss": float("nan")}))
    assert log.lines == []


def test_tensorboard_shows_the_same_numbers(tmp_path):
    log = MetricsLog([], tmp_path, next_step=1)
    log.write(TRAIN)
    log.write(HELDOUT)
    log.close()
    found = events(tmp_path)
    assert found["train/loss"] == [(1, 2.5)]
    assert found["train/gradient_norm"] == [(1, 1.5)]
    assert found["heldout/clm"] == [(1, 2.25)]
    assert found["heldout/mlm"] == [(1, 3.25)]
    assert "train/step" not in found


def test_a_resumed_run_replaces_what_its_checkpoint_did_not_know(tmp_path, monkeypatch):
    # Files of one second are read by name, and "10" would come before "9".
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    log = MetricsLog([], tmp_path, next_step=1)
    for step in (1, 2, 3):
        log.write(TRAIN.model_copy(update={"step": step, "loss": float(step)}))
    log.close()
    resumed = MetricsLog([], tmp_path, next_step=2)  # the checkpoint was of step 1
    resumed.write(TRAIN.model_copy(update={"step": 2, "loss": 20.0}))
    resumed.close()
    assert events(tmp_path)["train/loss"] == [(1, 1.0), (2, 20.0)]
