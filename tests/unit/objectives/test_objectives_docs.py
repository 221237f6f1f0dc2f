"""docs/objectives.md: its example runs, its settings are valid, its table is complete."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from objective_rows import VOCABULARY, Run, batch_of, supervise

from biphasic.config import parse_config
from biphasic.data.rows import Piece
from biphasic.errors import DataError
from biphasic.objectives.clm import Clm
from biphasic.objectives.contrastive import Contrastive, Distill, MarginMse
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.phases import OBJECTIVES, Alternate, Mix, divide_rows
from biphasic.plugins import hashed_names
from biphasic.testing import check_objective

PAGE = (Path(__file__).parents[3] / "docs/objectives.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The file of the page."""
    (source,) = blocks("python")
    path = tmp_path / "ahead.py"
    path.write_text(source, encoding="utf-8")
    return path


def run_of(raw: dict[str, Any], folder: Path) -> Run:
    return parse_config(Run, hashed_names(raw, folder), where="docs")


def ahead(example: Path, **options: Any) -> ObjectiveConfig:
    phase = {"objective": "./ahead.py:Ahead", "steps": 1, **options}
    return run_of({"phases": [phase]}, example.parent).phases[0]


def test_settings_are_valid(example):
    *own, with_example = map(yaml.safe_load, blocks("yaml"))
    assert len(own) == 5
    for raw in own:
        assert parse_config(Run, raw, where="docs").phases
    first, second = run_of(with_example, example.parent).phases
    assert first.determinants(0) == {"name": "ahead", "distance": 3}
    assert second.identity(0)["objectives"][1]["distance"] == 2


def test_the_example_keeps_all_rules(example):
    check_objective(ahead(example))


def test_the_example_supervises(example):
    batch = batch_of([[Piece(0, 0, 0, 3), Piece(0, 1, 0, 1)]], row_length=9)
    # BOS 4 5 6 EOS BOS 11 EOS PAD.
    found = supervise(ahead(example, distance=3), batch, VOCABULARY, mask_seed=0)
    assert found.positions.tolist() == [0, 1]
    assert found.labels.tolist() == [6, 1]
    nearest = supervise(ahead(example, distance=1), batch, VOCABULARY, mask_seed=0)
    causal = supervise(Clm(objective="clm"), batch, VOCABULARY, mask_seed=0)
    assert np.array_equal(nearest.positions, causal.positions)
    assert np.array_equal(nearest.labels, causal.labels)
    with pytest.raises(DataError, match="the distance of 9"):
        supervise(ahead(example, distance=9), batch, VOCABULARY, mask_seed=0)


def test_the_table_names_every_objective():
    _, *rows = re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)
    kinds = (*OBJECTIVES, Alternate, Mix, Contrastive, Distill, MarginMse)
    names = [each.model_fields["objective"].annotation for each in kinds]
    assert rows == [name.__args__[0] for name in names]


def test_numbers_of_the_mixture():
    assert divide_rows(256, [0.9375, 0.0625]) == [240, 16]
    assert "18 % are causal" in PAGE
    assert round(100 / (1 + 15 * 0.3)) == 18
    assert round(100 / (1 + 15 * 0.15)) == 31
