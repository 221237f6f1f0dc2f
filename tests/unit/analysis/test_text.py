"""Numbers and names as people read them."""

import csv
import io

import pytest

from biphasic.amounts import number, p_value, percent, points, probability, rate, round_ticks
from biphasic.analysis.estimate import Estimate
from biphasic.analysis.text import csv_text, listing, plain, points_cell, wrap


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (rate(2e-5), "2e-5"), (rate(1.5e-4), "1.5e-4"), (rate(1.0), "1e0"),
        (percent(0.4), "40 %"), (percent(1 / 3), "33.33 %"), (points(0.87654), "87.65"),
        (points(-1e-6), "0.00"), (number(-0.004), "0.00"),
        (p_value(0.0126), "0.013"), (p_value(1.0), "1.000"), (p_value(0.00099), "< 0.001"),
        (p_value(0.05), "0.050"), (p_value(0.0501), "0.0501"), (p_value(0.04996), "0.04996"),
        (p_value(0.1004), "0.1004"), (p_value(0.0512), "0.051"),
        (probability(0.0501), "p = 0.0501"), (probability(1e-9), "p < 0.001"),
        (round_ticks(47.28, 60.72, most=4), [50, 55, 60]), (round_ticks(5, 5, most=4), [5]),
        (points_cell(Estimate(-0.004, 1.5, 3)), "0.00 (±1.50)"),
        (points_cell(Estimate(-0.006, None, 1)), "-0.01"),
        (listing([]), ""), (listing(["a"]), "a"), (listing(["a", "b", "c"]), "a, b and c"),
        (plain("a\x00b\ud800"), "a\ufffdb\ufffd"),
        (wrap("CLM 25 % then MLM 75 %"), "CLM 25\u00a0% then\nMLM 75\u00a0%"), (wrap("MLM"), "MLM"),
        (wrap("nano-clm-1200-mlm40-2400-muon"), "nano-clm-1200-\nmlm40-2400-muon"),
        (wrap("nano-clm-12000-mlm40-24000-muon"), "nano-clm-12000-\nmlm40-24000-muon"),
    ],
)  # fmt: skip
def test_numbers_and_names_read_well(found, expected):
    assert found == expected


def test_a_name_without_spaces_is_cut_to_its_lines():
    lines = wrap("x" * 300).split("\n")
    assert len(lines) == 2
    assert max(len(line) for line in lines) <= 16
    assert lines[1].endswith("…")


def test_bidirectional_control_characters_are_shown_as_signs():
    assert plain("a\u202eb\u2066c\u200fd\u2069") == "a\ufffdb\ufffdc\ufffdd\ufffd"
    assert plain("שלום 漢字 العربية") == "שלום 漢字 العربية"


def test_no_cell_of_a_csv_is_a_formula():
    cells = ["=1+1", "+cmd", "-x", "@a", "\t=1", "-1.5", "+2", "1e-3", "a=b", "–", -3, None]
    [_, row] = csv.reader(io.StringIO(csv_text(["=h"] * len(cells), [cells])))
    assert row == [
        *("'=1+1", "'+cmd", "'-x", "'@a", "'\t=1", "-1.5", "+2", "1e-3", "a=b", "–", "-3", "")
    ]
