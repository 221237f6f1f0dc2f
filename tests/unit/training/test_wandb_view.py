"""Weights & Biases as a view, by a stand-in for its library."""

import importlib
import os
import sys
from types import ModuleType

import pytest

from biphasic.errors import ConfigError
from biphasic.records import HeldoutLine, TrainingLine
from biphasic.training.records.log import PROJECT, MetricsLog, viewed_in_wandb

SCALARS = {"loss": 2.5, "learning_rate": 0.1, "gradient_norm": 1.5, "tokens_per_second": 3.0}
TRAIN = TrainingLine(step=1, phase=0, objective="mlm", tokens=9, supervised_tokens=4, **SCALARS)


class Run:
    """What is used of a run."""

    def __init__(self, settings):
        self.settings, self.logged, self.is_over = settings, [], False

    def log(self, numbers, *, step):
        self.logged.append((step, numbers))

    def finish(self):
        self.is_over = True


@pytest.fixture
def runs(monkeypatch):
    """A library that begins runs; the list of these."""
    begun: list[Run] = []

    def init(**settings):
        begun.append(Run(settings))
        return begun[-1]

    library = ModuleType("wandb")
    library.init = init
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv(PROJECT, raising=False)
    return begun


def test_off_unless_asked_for(runs, tmp_path):
    with viewed_in_wandb(None):
        MetricsLog([], tmp_path / "tensorboard/mlm-0-12", next_step=1).close()
    assert runs == []


def test_the_same_numbers_offline_under_the_same_name(runs, tmp_path):
    with viewed_in_wandb("encoders"):
        assert os.environ[PROJECT] == "encoders"  # processes that are started know it
        log = MetricsLog([], tmp_path / "tensorboard/mlm-0-12", next_step=1)
    assert PROJECT not in os.environ
    log.write(TRAIN)
    log.write(HeldoutLine(step=1, tokens=9, heldout={"mlm": 3.25}))
    log.close()
    [run] = runs
    assert run.settings == {
        "project": "encoders", "name": "mlm-0-12", "dir": str(tmp_path), "mode": "offline",
    }  # fmt: skip
    train = {f"train/{name}": value for name, value in SCALARS.items()}
    assert run.logged == [(1, train), (1, {"heldout/mlm": 3.25})]
    assert run.is_over
    assert len(log.lines) == 2  # the record is what it was


def test_online_on_request(runs, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv(PROJECT, "mine")
    MetricsLog([], tmp_path / "tensorboard/a", next_step=1).close()
    assert (runs[0].settings["project"], runs[0].settings["mode"]) == ("mine", "online")


def test_no_run_is_started_without_a_view(runs, monkeypatch):
    monkeypatch.setenv(PROJECT, "mine")
    MetricsLog([], None, next_step=1).close()
    assert runs == []


def test_without_the_library_it_is_refused_before_any_work(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(importlib, "import_module", missing)
    refused = pytest.raises(ConfigError, match=r"install it with .* 'biphasic\[wandb\]'")
    with refused, viewed_in_wandb("encoders"):
        pytest.fail("no work was to begin")
    assert PROJECT not in os.environ
