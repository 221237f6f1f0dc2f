"""How many jobs run at once."""

import os

import pytest
import torch

from biphasic.study.run.run import default_workers


@pytest.mark.parametrize(
    ("has_gpu", "num_threads", "workers"),
    [(False, 1, 6), (False, 4, 1), (False, 8, 1), (True, 1, 1)],
)
def test_one_job_for_each_core_or_gpu(has_gpu, num_threads, workers, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert default_workers(num_threads) == workers
