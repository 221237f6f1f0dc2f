"""How charts are drawn: nothing cut, nothing on top of another, the same bytes every time."""

import io
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from fake_study import ARMS, FakeStudy
from grid_scores import DATASETS, grid_models, grid_scores, model
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from pandas import DataFrame
from PIL import Image

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.figures.catalog import score_figures
from biphasic.analysis.figures.chart import Axis, Chart, Panel, points_of
from biphasic.analysis.figures.draw import (
    PAIRS,
    PHONE,
    PRINT,
    Layout,
    chart_svg,
    draw,
    drawing,
    to_bytes,
    to_svg,
)
from biphasic.analysis.figures.runs import arm_styles, rates_of_arms, run_figures, study_losses
from biphasic.analysis.figures.strips import strips_of
from biphasic.analysis.records import load_records
from biphasic.analysis.scores.source import paper_scores, study_scores
from biphasic.analysis.scores.table import Score
from biphasic.palette import (
    GRID,
    PAPER,
    RAMP,
    VARIABLES,
    distinct_styles,
    objective_styles,
    ordered_styles,
)

pytestmark = pytest.mark.slow

HOSTILE = (
    "<script>alert('x')</script>",
    r"\textbf{$\frac{1}{0}$} & 100 % #1 _x^y~z",
    "$E = mc^2$",
    "_hidden from legends",
    "\u202egnp.exe \u2066 right to left",
    "日本語 العربية עברית 🎈",
    "x" * 300,
    "line\nbreak\ttab\x00\x1b[31m",
)


def charts(figures):
    return [each for each in figures if isinstance(each, Chart)]


def hostile_scores():
    datasets = tuple(
        replace(dataset, name=name) for dataset, name in zip(DATASETS, HOSTILE, strict=False)
    )
    sizes = dict(zip(("small", "large"), (HOSTILE[6], HOSTILE[5]), strict=True))
    models = [
        replace(each, label=HOSTILE[i % 8] + str(i), size=sizes[each.size],
                start="small-mlm0.4" if each.start == "MLM" else each.start)
        for i, each in enumerate(grid_models())
    ]  # fmt: skip
    return grid_scores(models, datasets=datasets)


def texts(figure):
    """Return what is written and where, in pixels; ticks beyond an axis are not."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()
    beyond = set()
    for axes in figure.axes:
        for axis, ends in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            low, high = sorted(ends)
            ticks = axis.get_major_ticks()
            beyond |= {id(tick.label1) for tick in ticks if not low <= tick.get_loc() <= high}
    return [
        (found.get_text().replace("\xa0", " "), found.get_window_extent(renderer))
        for found in figure.findobj(Text)
        if found.get_text().strip() and found.get_visible() and id(found) not in beyond
    ]


def beyond(figure, boxes):
    """Return what leaves the figure by more than a pixel."""
    right, top = figure.bbox.width + 1, figure.bbox.height + 1
    return [
        (text, box) for text, box in boxes
        if box.x0 < -1 or box.y0 < -1 or box.x1 > right or box.y1 > top
    ]  # fmt: skip


def overlapping(boxes):
    return [
        (one, other)
        for index, (one, box) in enumerate(boxes)
        for other, second in boxes[index + 1 :]
        if box.x0 < second.x1 - 1 and second.x0 < box.x1 - 1
        and box.y0 < second.y1 - 1 and second.y0 < box.y1 - 1
    ]  # fmt: skip


ALL = {
    "paper": lambda: charts(score_figures(paper_scores())),
    "every dataset": lambda: charts(score_figures(paper_scores(), is_every=True))[:1],
    "grid": lambda: charts(score_figures(grid_scores()))[::2],
    "hostile": lambda: charts(score_figures(hostile_scores())),
}


@pytest.mark.parametrize("table", ALL)
@pytest.mark.parametrize("layout", [PRINT, PHONE], ids=["print", "phone"])
def test_no_text_is_cut_or_overlaps_another(table, layout):
    for chart in ALL[table]():
        with drawing(salt="test"):
            figure = draw(chart, layout)
            boxes = texts(figure)
        assert not beyond(figure, boxes), chart.name
        assert not overlapping(boxes), chart.name


def test_every_point_lies_within_its_panel():
    for chart in ALL["paper"]():
        figure = draw(chart)
        for axes, panel in zip(figure.axes, chart.panels, strict=True):
            (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
            for point in chart.points[chart.points["panel"] == panel.key].itertuples():
                assert left < point.x < right
                assert low < point.low <= point.mean <= point.high < high


def test_the_legend_is_above_all_panels():
    for chart in ALL["grid"]()[:2]:
        figure = draw(chart)
        labels = {*chart.points["series"]}
        boxes = texts(figure)
        entries = [box for text, box in boxes if text in labels]
        assert len(entries) == len(labels)
        # Below the entry there is still the panel's own heading.
        heads = [box for text, box in boxes if text in {panel.title for panel in chart.panels}]
        assert heads
        assert min(box.y0 for box in entries) >= max(box.y1 for box in heads)


def test_a_figure_is_the_same_bytes_every_time_and_undated():
    chart = ALL["grid"]()[0]
    one, other = (
        (to_svg(figure, name="a"), to_bytes(figure, "pdf"), to_bytes(figure, "png", dpi=60))
        for figure in (draw(chart), draw(chart))
    )
    assert one == other
    assert "date" not in one[0].lower()
    assert not re.search(rb"CreationDate|Producer|Creator", one[1])


def test_a_users_settings_change_nothing():
    import matplotlib as mpl

    chart = ALL["grid"]()[0]
    expected = to_bytes(draw(chart), "png", dpi=60)
    with mpl.rc_context({"font.size": 30, "lines.linewidth": 9, "savefig.facecolor": "red"}):
        assert to_bytes(draw(chart), "png", dpi=60) == expected


def test_names_are_text_and_no_markup():
    for chart in ALL["hostile"]()[:2]:
        svg = to_svg(draw(chart), name=chart.name)
        page = chart_svg(chart)
        for found in (svg, page):
            root = ET.fromstring(found[found.index("<svg") :])  # noqa: S314 - our own output
            assert not [node for node in root.iter() if node.tag.endswith("script")]
        # Dollars do not begin a formula.
        written = "".join(ET.fromstring(page).itertext())  # noqa: S314
        assert "$E = mc" in written
        assert "\u202e" not in page


def test_a_page_gets_variables_unique_ids_and_words():
    chart = ALL["grid"]()[0]
    page = chart_svg(chart)
    root = ET.fromstring(page)  # noqa: S314 - our own output
    assert root.get("role") == "img"
    assert root.get("aria-label") == chart.alt
    assert "MLM from 50.20 at small to 51.20 at large" in chart.alt
    assert not re.findall(r"#[0-9a-f]{6}", page)
    ids = [node.get("id") for node in root.iter() if node.get("id")]
    assert ids
    assert all(found.startswith(f"{chart.name}-") for found in ids)


def test_styles_differ_without_colour():
    for styles in (
        distinct_styles(range(20)), objective_styles(["A", "B"]), ordered_styles(range(4)),
    ):  # fmt: skip
        looks = {(style.marker, style.line) for style in styles.values()}
        assert len(looks) == len(styles)


def test_ordered_colours_get_darker_step_by_step():
    def grey(color):
        red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    greys = [grey(color) for color in RAMP]
    assert greys == sorted(greys, reverse=True)
    assert all(one - other > 8 for one, other in pairwise(greys))
    chosen = [style.color for style in ordered_styles(["a", "b", "c"]).values()]
    assert chosen == [RAMP[0], RAMP[2], RAMP[4]]


def chart_with(points):
    """Return a chart of one panel."""
    frame = points_of(DataFrame(points).assign(panel="p"))
    axis = Axis("x", "linear", ((0.0, "0"), (2.0, "2")))
    return Chart("a", "A", "", axis, (Panel("p", "P", "u"),), frame)


def test_lines_are_distinguishable_in_grey():
    """Two objectives with the same scores: their marks differ once colours are gone."""
    styles = objective_styles(())
    points = [
        {"x": float(x), "mean": 50.0 + x, "low": 49.5 + x, "high": 50.5 + x} for x in range(3)
    ]
    images = []
    for objective in ("MLM", "CLM", "CLM+MLM"):
        chart = chart_with(
            [{**each, "style": styles[objective], "series": "same"} for each in points]
        )
        png = to_bytes(draw(chart), "png", dpi=100)
        grey = np.asarray(Image.open(io.BytesIO(png)).convert("L"), dtype=float)
        images.append(grey < 200)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (images[one] ^ images[other]).sum() > 200


def test_a_wide_study_wraps_its_panels():
    chart = charts(score_figures(paper_scores(), is_every=True))[0]
    figure = draw(chart)
    rows = {round(axes.get_position().y0, 4) for axes in figure.axes}
    assert (len(figure.axes), len(rows)) == (12, 3)
    narrow = draw(chart, Layout(columns=1, width=3.7))
    assert narrow.get_size_inches()[0] < 4


FEW = tuple((name, name, name.upper(), ((name, 1.0),), 0.01) for name in ("mlm", "clm"))
MANY = tuple(
    (name, name, "MLM", (("clm", clm), ("mlm", 1 - clm)) if clm else (("mlm", 1.0),), 0.3 * clm)
    for clm in (0, 0.25, 0.5, 0.75)
    for name in (f"pico-clm-{clm:g}-mlm40-{steps}" for steps in (888, 1776, 7104))
)


@pytest.mark.parametrize("arms", [ARMS, FEW, MANY], ids=["arms", "few", "many"])
def test_figures_of_records_have_no_text_on_another(tmp_path, arms):
    records = load_records(*FakeStudy(steps=40, seeds=(0, 1), arms=arms).write(tmp_path))
    of_records = charts(run_figures(study_scores(records), records))
    in_print = [(chart, PRINT) for chart in of_records]
    of_arms = charts([study_losses(records), rates_of_arms(records)])
    at_ends = [(chart, PAIRS) for chart in of_arms]
    alone = [(each, PHONE) for chart in of_arms for each in chart.split()]
    for chart, layout in (*in_print, *at_ends, *alone):
        with drawing(salt="test"):
            figure = draw(chart, layout)
            boxes = texts(figure)
        assert not overlapping(boxes), chart.name
        assert not beyond(figure, boxes), chart.name
        written = ["".join(text.split()) for text, _ in boxes]
        shown = {panel.key for panel in chart.panels}
        for label in {*chart.points[chart.points["panel"].isin(shown)]["series"]}:
            assert "".join(label.split()) in written, (chart.name, label)


def test_a_line_beyond_the_upper_limit_has_its_end_written(tmp_path):
    records = load_records(*FakeStudy(steps=40).write(tmp_path))
    chart = study_losses(records).split()[0]
    figure = draw(chart, PHONE)
    last = records.arms[2].losses["heldout", "mlm"].losses[-1]  # of CLM, asked for masked tokens
    written = {text for text, _ in texts(figure)}
    assert {f"↑ {last:.1f}", "CLM", "untrained", "MLM"} <= written
    assert figure.axes[0].get_ylim()[1] < last
    assert chart.alt.startswith("Held-out MLM loss. ")
    assert f"CLM from {records.arms[2].losses['heldout', 'mlm'].losses[0]:.2f}" in chart.alt
    assert f"untrained {records.arms[0].final_heldout['mlm']:.2f}" in chart.alt


def test_the_widest_numbers_of_strips_are_not_cut():
    models = [replace(grid_models()[0], label="An arm" + " and another" * 9)]
    scores = grid_scores(models, datasets=DATASETS[:1])
    widest = {key: Score(Estimate(100.0, 305.89, 2), {0: 100.0, 1: 100.0}) for key in scores.cells}
    styles = distinct_styles([models[0].name])
    figure = draw(strips_of(replace(scores, cells=widest), styles, {DATASETS[0].name: "x" * 99}))
    boxes = texts(figure)
    assert "100.00 (±305.89)" in {text for text, _ in boxes}
    for text, box in boxes:
        assert -1 <= box.x0 <= box.x1 <= figure.bbox.width + 1, text
    assert not overlapping(boxes)


def test_long_names_are_whole():
    names = [
        f"pico-{before}-dec2400-{pairs}.held0.02.len128-2900{optimizer}"
        for before in ("clm-1200-mlm40", "clm")
        for pairs in ("contrastive.pairs", "distill.taught")
        for optimizer in ("", "-muon")
    ]
    some = zip(grid_models(), names, strict=False)
    models = [replace(each, name=name, label=name) for each, name in some]
    scores, styles = grid_scores(models, datasets=DATASETS[:1]), distinct_styles(names)
    strips = draw(strips_of(scores, styles, {DATASETS[0].name: "a task"}))
    chart = chart_with([
        {"series": name, "style": styles[name], "x": x, "mean": 50.0 + x}
        for name in names for x in range(2)
    ])  # fmt: skip
    for figure in (strips, draw(chart, PHONE), draw(chart, PRINT)):
        boxes = texts(figure)
        assert not overlapping(boxes)
        assert {*names} <= {"".join(text.split()) for text, _ in boxes}


def test_the_bold_score_of_strips_is_that_of_the_best_finished_model():
    models = [model("small-clm", "small", 300, 0), model("small-mlm", "small", 0, 300),
              model("small-mlm-at-200", "small", 0, 200, is_final=False)]  # fmt: skip
    scores = grid_scores(models, datasets=DATASETS[:1])
    means = dict(zip(scores.cells, (70.0, 72.0, 75.0), strict=True))
    cells = {key: Score(Estimate(mean, 1.0, 2), {0: mean}) for key, mean in means.items()}
    figure = draw(strips_of(
        replace(scores, cells=cells), distinct_styles([each.name for each in models]),
        {DATASETS[0].name: "a task"},
    ))  # fmt: skip
    bold = [text.get_text() for text in figure.axes[0].texts if text.get_fontweight() == "bold"]
    assert bold == ["72.00 (±1.00)"]


def test_strips_draw_every_style_in_its_colour():
    models = [model("small-clm", "small", 300, 0), model("small", "small", 0, 0)]
    scores, styles = grid_scores(models, datasets=DATASETS[:1]), objective_styles(["CLM"])
    by_model = {each.name: styles[each.objective] for each in models}
    chart = strips_of(scores, by_model, {DATASETS[0].name: "a task"})
    assert chart.alt.startswith(f"Scores on {DATASETS[0].name}: small-clm ")
    figure = draw(chart)
    means = [line for line in figure.axes[0].lines if line.get_marker() in {"s", "x"}]
    assert [line.get_marker() for line in means] == ["s", "x"]
    assert [line.get_color() for line in means] == [by_model[each.name].color for each in models]
    assert means[1].get_markeredgecolor() == by_model["small"].color  # it has no inside


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


def test_all_arms_have_distinct_styles(tmp_path):
    arms = tuple((f"a{i}", f"A {i}", "MLM", (("mlm", 1.0),), 0.0) for i in range(20))
    study = FakeStudy(steps=40, arms=arms, tasks=(), seeds=())
    styles = arm_styles(load_records(*study.write(tmp_path)).arms)
    assert len({(s.color, s.marker, s.line) for s in styles.values()}) == 20
