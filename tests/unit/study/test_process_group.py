"""What is decided before a process group starts, and what is made of its last words."""

from __future__ import annotations

import subprocess

import pytest
import torch

from biphasic.distributed import ALONE, check_devices, checksum, joined_process_group
from biphasic.errors import ConfigError, DataError, LostRankError
from biphasic.execution import ranks
from biphasic.study.jobs.train import RANK, TrainJob
from biphasic.training.compute import ComputeConfig

LOST = {"rank": 0, "kind": "LostRankError", "error": "a process that trains with this one ended"}
DAMAGED = {"rank": 1, "kind": "DataError", "error": "row 7: damaged"}
BUG = {"rank": 2, "kind": "", "error": "ZeroDivisionError: division by zero"}


@pytest.mark.parametrize(
    ("failures", "kind", "text"),
    [
        ([DAMAGED, LOST], DataError, "row 7: damaged"),
        # Whoever has lost another may be heard first; it does not explain anything.
        ([LOST, DAMAGED], DataError, "row 7: damaged"),
        (
            [LOST, BUG, DAMAGED],
            LostRankError,
            "process 2 of a group of 3: ZeroDivisionError: division",
        ),
        ([LOST], LostRankError, "a process that trains with this one ended"),
        ([], LostRankError, r"one of 3 processes of the group died \(killed, or out of memory\?\)"),
        # What is no error of ours is not made one by its name.
        ([{**BUG, "kind": "annotations"}], LostRankError, "process 2 of a group of 3"),
    ],
)
def test_the_original_failure_is_reported(failures, kind, text):
    error = ranks._first_failure(failures, 3)
    assert type(error) is kind
    with pytest.raises(kind, match=text):
        raise error


def job_of(make_recipe, tmp_path, processes):
    folders = {name: tmp_path / name for name in ("tokenizer", "train", "heldout")}
    return TrainJob(
        id="i" * 64,
        label="a process group",
        store=tmp_path,
        data=folders,  # type: ignore[arg-type]
        recipe=make_recipe({"objective": "clm", "steps": 3}),
        start=0,
        end=3,
        checkpoint_every=0,
        heldout_every=0,
        tensorboard=None,
        compute=ComputeConfig(processes=processes),
    )


@pytest.fixture
def no_process(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)


def test_too_many_processes_are_refused_before_any_starts(
    make_recipe, tmp_path, monkeypatch, no_process
):
    with pytest.raises(ConfigError, match=r"rows_per_step: 4 are fewer than the 5 processes"):
        ranks.run_ranks(job_of(make_recipe, tmp_path, 5), print, worker=RANK)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(ConfigError, match=r"processes: 4 .* has 3; set compute.processes to 3"):
        ranks.run_ranks(job_of(make_recipe, tmp_path, 4), print, worker=RANK)
    check_devices(3)


def test_a_process_outside_of_a_group_is_alone(monkeypatch):
    for size in (None, "1"):
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        if size:
            monkeypatch.setenv("WORLD_SIZE", size)
        with joined_process_group() as found:
            assert found is ALONE
            assert not torch.distributed.is_initialized()
            values = torch.tensor([1.5, 2.5])
            found.sum_(values)
            found.barrier()
            found.require_same(7, what="numbers")
            assert values.tolist() == [1.5, 2.5]
            assert found.from_first(5) == 5


def test_checksums_see_every_bit_of_every_tensor():
    tensors = [torch.ones(3), torch.zeros(2, 2)]
    whole = checksum(tensors)
    assert 0 <= whole < 1 << 63
    assert whole == checksum(each.clone() for each in tensors)
    tensors[1][1, 1] = -0.0
    assert checksum(tensors) != whole
    tensors[1][1, 1] = torch.tensor(0.0).nextafter(torch.tensor(1.0))
    assert checksum(tensors) == whole + 1
