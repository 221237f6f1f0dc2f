"""docs/objectives.md: its example runs, its settings are valid, its table is complete."""

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from objective_rows import VOCABULARY, Run, batch_of, supervise

import biphasic
from biphasic.config import parse_config
from biphasic.data.rows import Piece
from biphasic.errors import ConfigError, DataError
from biphasic.objectives.alternate import Alternate
from biphasic.objectives.clm import Clm
from biphasic.objectives.mix import Mix, divide_rows
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.registry import OBJECTIVES

PAGE = (Path(__file__).parents[3] / "docs/objectives.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[type[ObjectiveConfig]]:
    """The objective of the page, from a file of its own."""
    (source,) = blocks("python")
    path = tmp_path_factory.mktemp("example") / "documented_ahead.py"
    path.write_text(source, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))
        yield importlib.import_module(path.stem).Ahead
    del sys.modules[path.stem]


def test_settings_are_valid():
    *own, with_example = map(yaml.safe_load, blocks("yaml"))
    assert len(own) == 4
    for raw in own:
        assert parse_config(Run, raw, where="docs").phases
    with pytest.raises(ConfigError, match=r"phases\.0\.objective: unknown value 'ahead'"):
        parse_config(Run, with_example, where="docs")


def test_one_file_and_one_registration_are_enough(tmp_path):
    # The page is followed to the letter, in a copy of the package.
    package = tmp_path / "biphasic"
    shutil.copytree(
        Path(biphasic.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    (source,) = blocks("python")
    (package / "objectives/ahead.py").write_text(source, encoding="utf-8")
    registry = package / "objectives/registry.py"
    before = registry.read_text(encoding="utf-8")
    line = next(line for line in before.splitlines() if line.startswith("OBJECTIVES"))
    (lines,) = (block for block in blocks("text") if "OBJECTIVES" in block)
    registry.write_text(before.replace(line, lines), encoding="utf-8")
    (tmp_path / "phases.yaml").write_text(blocks("yaml")[-1], encoding="utf-8")
    script = (
        "from biphasic.config import Config, load_config\n"
        "from biphasic.objectives.phases import Phase\n"
        "class Run(Config):\n"
        "    phases: tuple[Phase, ...]\n"
        "for phase in load_config(Run, 'phases.yaml').phases:\n"
        "    print(phase.at(0, num_steps=phase.steps).determinants(0))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = map(ast.literal_eval, done.stdout.splitlines())
    assert first == {"name": "ahead", "distance": 3}
    assert second["objectives"][1] == {"name": "ahead", "distance": 2}


def test_the_example_supervises(example):
    batch = batch_of([[Piece(0, 0, 0, 3), Piece(0, 1, 0, 1)]], row_length=9)
    # BOS 4 5 6 EOS BOS 11 EOS PAD.
    found = supervise(example(objective="ahead", distance=3), batch, VOCABULARY, mask_seed=0)
    assert found.positions.tolist() == [0, 1]
    assert found.labels.tolist() == [6, 1]
    nearest = supervise(example(objective="ahead", distance=1), batch, VOCABULARY, mask_seed=0)
    causal = supervise(Clm(objective="clm"), batch, VOCABULARY, mask_seed=0)
    assert np.array_equal(nearest.positions, causal.positions)
    assert np.array_equal(nearest.labels, causal.labels)
    with pytest.raises(DataError, match="no sequence is longer than the distance of 9"):
        supervise(example(objective="ahead", distance=9), batch, VOCABULARY, mask_seed=0)


def test_the_table_names_every_objective():
    _, *rows = re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)
    names = [each.model_fields["objective"].annotation for each in (*OBJECTIVES, Alternate, Mix)]
    assert rows == [name.__args__[0] for name in names]


def test_numbers_of_the_mixture():
    assert divide_rows(256, [0.9375, 0.0625]) == [240, 16]
    assert "18 % are causal" in PAGE
    assert round(100 / (1 + 15 * 0.3)) == 18
    assert round(100 / (1 + 15 * 0.15)) == 31
