"""Tests of what runs on Slurm: on real daemons, which `cluster.py` starts on this machine.

Only `make test-slurm` runs them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cluster import SlurmCluster, SlurmUnavailableError


@pytest.hookimpl(tryfirst=True)  # before pytest looks at markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """A running cluster of two nodes."""
    try:
        cluster = SlurmCluster()
    except SlurmUnavailableError as error:
        pytest.skip(str(error))
    with cluster:
        yield cluster


@pytest.fixture(autouse=True)
def on_slurm(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Child processes find the cluster's commands; the jobs that a test leaves are cancelled."""
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    yield
    slurm.cancel_jobs()
