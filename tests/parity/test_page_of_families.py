"""The documented table lists the families that are tested, with what was measured."""

from __future__ import annotations

import json

from families import FAMILIES, PADDED_ONLY, REFUSED
from record_families import COLUMNS, NOT_MEASURED, PAGE, page, worst

LIMITS = {"clm": 1e-5, "mlm": 1e-5, "packed": 1e-5, "export": 1e-5, "onnx": 1e-4}


def tables(text: str) -> list[list[list[str]]]:
    """Return the cells of each Markdown table, without its head."""
    blocks = [
        [line for line in block.splitlines() if line.startswith("|")]
        for block in text.split("\n\n")
    ]
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in block[2:]]
        for block in blocks
        if block
    ]


def test_the_page_lists_exactly_the_families_that_are_tested():
    listed = [[row[0] for row in table] for table in tables(PAGE.read_text(encoding="utf-8"))]
    tested = [
        [family.title for family in group.values()] for group in (FAMILIES, REFUSED, PADDED_ONLY)
    ]
    assert listed == tested


def test_every_cell_is_measured_and_within_its_limit():
    families, refused, _ = tables(PAGE.read_text(encoding="utf-8"))
    for row in families:
        assert len(row) == len(COLUMNS) + 2
        assert NOT_MEASURED not in row, row
        assert row[1] == "kept"
        for column, cell in zip(COLUMNS, row[1:-1], strict=True):
            if cell.startswith("refused: ") or column == "contract":
                continue
            assert float(cell) <= LIMITS[column], (row[0], column)
    assert not any(NOT_MEASURED in row for row in refused)


def test_the_worst_measurement_is_shown():
    lines = [
        json.dumps({"family": "llama", "column": column, "value": value})
        for column, value in [
            ("clm", 2e-7), ("clm", 3e-6), ("clm", 1e-7), ("contract", "kept"), ("mlm", 0.0),
            ("onnx", 1e-6), ("onnx", "refused: why"), ("onnx", 1e-7),
        ]
    ]  # fmt: skip
    measured = worst(lines)
    assert measured[("llama", "clm")] == 3e-6
    first = tables(page(measured))[0][0]
    assert first[:7] == [
        "Llama 2", "kept", "3e-06", "0", NOT_MEASURED, NOT_MEASURED, "refused: why",
    ]  # fmt: skip
