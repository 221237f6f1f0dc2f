"""The tables of docs/statistics.md hold what the program computes."""

import re
from pathlib import Path

import pytest
from paired_power import detectable_effect

from biphasic.analysis.estimate import expected_coverage

PAGE = Path(__file__).parents[3] / "docs" / "statistics.md"


def table(heading):
    """Return the cells of the table below a header row."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(heading))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [rows[0], *rows[2:]]


def test_coverage():
    rows = table("| Seeds | `paper` | `standard` |")[1:]
    assert [int(row[0]) for row in rows] == [2, 3, 5, 10]
    for seeds, *shares in rows:
        for share, convention in zip(shares, ("paper", "standard"), strict=True):
            expected = 100 * expected_coverage(int(seeds), convention=convention)
            assert share == f"{expected:.1f} %"


def test_detectable_differences():
    seeds, effects = table("| Seeds | 2 | 3 |")
    for number, effect in zip(seeds[1:], effects[1:], strict=True):
        assert float(effect) == pytest.approx(detectable_effect(int(number)), abs=0.005)
    example = re.search(r"0\.4\s+points,\s+five\s+seeds\s+detect\s+a\s+difference\s+of\s+(\d\.\d+)",
                        PAGE.read_text(encoding="utf-8"))  # fmt: skip
    assert float(example[1]) == pytest.approx(0.4 * detectable_effect(5), abs=0.005)
