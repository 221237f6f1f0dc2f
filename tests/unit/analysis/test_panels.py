import csv
import io

import pytest
from fake_study import FakeStudy
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.figures import compose, loss_panels, rate_panels, to_png, to_svg
from biphasic.analysis.load import load_study
from biphasic.analysis.palette import GRID, PAPER, VARIABLES, SeriesStyle, arm_styles
from biphasic.analysis.panels import WIDTH, Box, ScoreRow, draw_scores, score_height, spread
from biphasic.analysis.text import (
    amount,
    csv_text,
    duration,
    listing,
    plain,
    rate,
    scientific,
    wrap,
)


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("ground", ["light", "dark"])
def test_every_colour_stands_out_from_its_ground(ground):
    colors = {name: light if ground == "light" else dark for name, light, dark in VARIABLES}
    paper = colors.pop("paper")
    colors.pop("grid")
    for name, color in colors.items():
        needed = 4.5 if name in {"ink", "muted"} else 3.0
        assert contrast(color, paper) >= needed, name
    assert len({light for _, light, _ in VARIABLES}) == len(VARIABLES)
    assert {GRID, PAPER} < {light for _, light, _ in VARIABLES}


def test_no_two_arms_look_alike_even_when_there_are_many(tmp_path):
    arms = tuple((f"a{i}", f"A {i}", "MLM", (("mlm", 1.0),), 0.0) for i in range(20))
    study = FakeStudy(steps=40, arms=arms, tasks=(), seeds=())
    styles = arm_styles(load_study(*study.write(tmp_path)).arms)
    assert len({(s.color, s.marker, s.line) for s in styles.values()}) == 20


def test_labels_that_touch_move_apart_as_little_as_needed():
    assert spread([0, 100], [10, 10]) == [0, 100]
    # Two of size 10 both at 50: centred on 50, ten apart.
    assert spread([50, 50], [10, 10]) == [45, 55]
    # A third at 58 joins them: mean of 50, 50, 58 is 52.67.
    assert spread([50, 50, 58], [10, 10, 10]) == pytest.approx(
        [42.6667, 52.6667, 62.6667], abs=1e-3
    )


def test_figures_are_the_same_bytes_every_time_and_carry_no_date(tmp_path):
    records = load_study(*FakeStudy(steps=40).write(tmp_path))
    panels = loss_panels(records)
    first, second = (to_svg(compose(panels), name="loss") for _ in range(2))
    assert first == second
    assert "<dc:date>" not in first
    assert to_png(compose(panels[:1]), dpi=50) == to_png(compose(panels[:1]), dpi=50)


def test_one_learning_rate_has_no_sensitivity(tmp_path):
    study = FakeStudy(steps=40, learning_rates=(1e-4,))
    assert rate_panels(load_study(*study.write(tmp_path))) == []


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (amount(950), "950"), (amount(12_800), "12.8 K"), (amount(3_276_800), "3.28 M"),
        (amount(999_960), "1 M"), (rate(2e-5), "2e-5"), (rate(1.5e-4), "1.5e-4"),
        (rate(1.0), "1e0"), (scientific(3.12e15), "3.1 × 10¹⁵"), (scientific(0), "0"),
        (duration(8.25), "8.2 s"), (duration(75), "1 min 15 s"), (duration(3599.7), "1 h 0 min"),
        (listing([]), ""), (listing(["a"]), "a"), (listing(["a", "b", "c"]), "a, b and c"),
        (plain("a\x00b\ud800"), "a\ufffdb\ufffd"),
        (wrap("CLM 25 % then MLM 75 %"), "CLM 25\u00a0% then\nMLM 75\u00a0%"), (wrap("MLM"), "MLM"),
    ],
)  # fmt: skip
def test_numbers_and_names_read_well(found, expected):
    assert found == expected


def test_a_name_without_spaces_is_cut_to_its_lines():
    lines = wrap("x" * 300).split("\n")
    assert len(lines) == 2
    assert max(len(line) for line in lines) <= 15
    assert lines[1].endswith("…")


def test_the_widest_numbers_are_not_cut():
    style = SeriesStyle("#1b2430", "o", "-")
    row = ScoreRow("An arm", style, Estimate(1.0, 3.0589, 2), (1.0, 1.0), is_floor=False)
    figure = Figure(figsize=(WIDTH, score_height(1)))
    draw_scores(figure, Box(0, 0, WIDTH, score_height(1)), rows=[row], axis="accuracy, %")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert "100.00 (±305.89)" in {text.get_text() for text in texts}
    for text in texts:
        extent = text.get_window_extent(canvas.get_renderer())
        assert -1 <= extent.x0 <= extent.x1 <= figure.bbox.width + 1, text.get_text()


def test_what_turns_text_round_is_shown_as_a_sign():
    assert plain("a\u202eb\u2066c\u200fd") == "a\ufffdb\ufffdc\ufffdd"
    assert plain("שלום 漢字") == "שלום 漢字"


def test_no_cell_of_a_csv_is_a_formula():
    cells = ["=1+1", "+cmd", "-x", "@a", "\t=1", "-1.5", "+2", "1e-3", "a=b", "–", -3, None]
    [_, row] = csv.reader(io.StringIO(csv_text(["=h"] * len(cells), [cells])))
    assert row == [
        *("'=1+1", "'+cmd", "'-x", "'@a", "'\t=1", "-1.5", "+2", "1e-3", "a=b", "–", "-3", "")
    ]
