"""Metrics as lines; TensorBoard and, by a stand-in for its library, Weights & Biases as views."""

import importlib
import os
import sys
from unittest.mock import Mock, call

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from biphasic.errors import ConfigError
from biphasic.records import HeldoutLine, TrainingLine
from biphasic.training.metrics_log import PROJECT, MetricsLog, viewed_in_wandb

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


@pytest.fixture
def wandb(monkeypatch):
    """A library that begins runs."""
    library = Mock()
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv(PROJECT, raising=False)
    return library


def test_off_unless_asked_for(wandb, tmp_path, monkeypatch):
    with viewed_in_wandb(None):
        MetricsLog([], tmp_path / "tensorboard/mlm-0-12", next_step=1).close()
    monkeypatch.setenv(PROJECT, "mine")
    MetricsLog([], None, next_step=1).close()  # without views
    wandb.init.assert_not_called()


def test_the_same_numbers_offline_under_the_same_name(wandb, tmp_path):
    with viewed_in_wandb("encoders"):
        assert os.environ[PROJECT] == "encoders"  # processes that are started know it
        log = MetricsLog([], tmp_path / "tensorboard/mlm-0-12", next_step=1)
    assert PROJECT not in os.environ
    log.write(TRAIN)
    log.write(HELDOUT)
    log.close()
    wandb.init.assert_called_once_with(
        project="encoders", name="mlm-0-12", dir=str(tmp_path), mode="offline"
    )
    run = wandb.init.return_value
    scalars = ("loss", "learning_rate", "gradient_norm", "tokens_per_second")
    assert run.log.call_args_list == [
        call({f"train/{name}": LINES[0][name] for name in scalars}, step=1),
        call({"heldout/clm": 2.25, "heldout/mlm": 3.25}, step=1),
    ]
    run.finish.assert_called_once()
    assert len(log.lines) == 2  # the record is what it was


def test_online_on_request(wandb, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv(PROJECT, "mine")
    MetricsLog([], tmp_path / "tensorboard/a", next_step=1).close()
    settings = wandb.init.call_args.kwargs
    assert (settings["project"], settings["mode"]) == ("mine", "online")


def test_without_the_library_it_is_refused_before_any_work(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(importlib, "import_module", missing)
    refused = pytest.raises(ConfigError, match=r"install it with: .* 'wandb")
    with refused, viewed_in_wandb("encoders"):
        pytest.fail("no work was to begin")
    assert PROJECT not in os.environ
