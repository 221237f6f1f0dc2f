"""The command line in this process, without the imports of a study's workers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from biphasic.cli import main as module
from biphasic.study.sizing import estimate

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))


@pytest.fixture
def run(request, monkeypatch, capsys, tmp_path) -> Callable[..., tuple[int, str, str]]:
    """Run a command in an empty folder; a test file names the first words as COMMAND."""
    first = getattr(request.module, "COMMAND", ())
    # Measured in a process of its own, which imports torch.
    monkeypatch.setattr(estimate, "speed_here", lambda _: estimate.Speed(2e9, 2))

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["biphasic", *first, *map(str, arguments)])
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as ended:
            module.main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call
