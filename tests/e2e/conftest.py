"""One finished run of the miniature study, for all tests of whole runs."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from mini_study import Cli, finished_study


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The folder of an uninterrupted run; its `root` is never to be changed."""
    return finished_study(tmp_path_factory, worker_id)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line, within this process."""
    return Cli(monkeypatch, capsys)
