"""What each figure shows, against the shipped table read by hand and a made-up one."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from grid_scores import DATASETS, grid_models, grid_scores, model

import biphasic
from biphasic.analysis.estimate import Estimate
from biphasic.analysis.figures.catalog import recipe_looks, score_figures
from biphasic.analysis.figures.chart import Chart, Skipped, points_csv
from biphasic.analysis.scores.source import paper_scores
from biphasic.analysis.scores.table import DatasetInfo, Score, Scores

SHIPPED = Path(biphasic.__file__).parent / "analysis" / "reference" / "results.csv"


def averages(**wanted):
    """Return the rows of printed averages whose columns have one of the wanted values."""
    with SHIPPED.open(encoding="utf-8") as stream:
        return [
            row for row in csv.DictReader(stream)
            if row["dataset"] == "Average" and all(row[k] in v for k, v in wanted.items())
        ]  # fmt: skip


def figure(name, scores, **options):
    return next(each for each in score_figures(scores, **options) if each.name == name)


def rows(chart, panel, label):
    """Return the points of a series."""
    assert isinstance(chart, Chart), chart
    points = chart.points[(chart.points["panel"] == panel) & (chart.points["series"] == label)]
    assert len(points)
    return points


def drawn(chart, panel, label):
    """Return the points of a series as `x: (mean, half-width)`."""
    return {
        point.x: (
            point.mean,
            None if point.high != point.high else round(point.high - point.mean, 6),
        )
        for point in rows(chart, panel, label).itertuples()
    }


def members(chart):
    """Return the models of each series in the first panel."""
    points = chart.points[chart.points["panel"] == chart.panels[0].key]
    return {label: [*of["model"]] for label, of in points.groupby("series", sort=False)}


def numbers(row):
    return float(row["mean"]), float(row["ci95"])


def test_figure_2_has_both_objectives_at_three_sizes():
    chart = figure("size", paper_scores())
    assert [text for _, text in chart.axis.ticks] == ["210M", "610M", "1B"]
    for task in ("SC", "TC", "QA", "IR"):
        for objective, rate in (("MLM", "0.4"), ("CLM", "")):
            rows = averages(table=["base"], task=[task], objective=[objective], mask_rate=[rate])
            by_size = {row["model_size"]: numbers(row) for row in rows}
            expected = dict(enumerate(by_size[size] for size in ("210M", "610M", "1B")))
            assert drawn(chart, f"{task} Average", objective) == expected


def test_figure_3_has_four_rates_at_three_sizes():
    chart = figure("mask-rate", paper_scores())
    for size in ("210M", "610M", "1B"):
        rows = averages(table=["base"], task=["QA"], objective=["MLM"], model_size=[size])
        expected = {100 * float(row["mask_rate"]): numbers(row) for row in rows}
        assert len(expected) == 4
        assert drawn(chart, "QA Average", size) == expected


def test_figure_4_follows_both_objectives_and_ends_with_the_finished_model():
    chart = figure("step", paper_scores())
    for objective in ("MLM", "CLM"):
        rows = averages(table=["data_efficiency"], task=["IR"], objective=[objective])
        expected = {float(row["total_steps"]): numbers(row) for row in rows}
        assert len(expected) == 6
        assert drawn(chart, "IR Average", objective) == expected
    [end] = averages(table=["base"], task=["IR"], objective=["CLM"], model_size=["610M"])
    assert drawn(chart, "IR Average", "CLM, finished") == {42_000.0: numbers(end)}
    # 1,000 to 42,000 steps are further apart than a linear axis can show.
    assert chart.axis.scale == "log"


def test_figure_6_has_five_shares_of_three_budgets():
    chart = figure("clm-share", paper_scores())
    for budget in (12_000, 22_000, 42_000):
        rows = averages(table=["pfs"], task=["TC"], total_steps=[str(budget)])
        expected = {100 * int(row["clm_steps"]) / budget: numbers(row) for row in rows}
        assert len(expected) == 5
        assert drawn(chart, "TC Average", f"{budget:,} steps") == expected


def test_figures_8_and_9_go_from_the_finished_models_on():
    chart = figure("continued-steps", paper_scores())
    for start in ("MLM", "CLM"):
        rows = averages(table=["cpt"], task=["SC"], cpt_init=[start])
        expected = {float(row["cpt_steps"]): numbers(row) for row in rows}
        assert [*expected] == [0.0, 2_000.0, 12_000.0, 22_000.0]
        assert drawn(chart, "SC Average", f"began with {start}") == expected
    one = figure("continued-budget", paper_scores())
    for label, steps in (("before", "0"), ("after 22,000 more steps", "22000")):
        rows = averages(table=["cpt"], task=["SC"], cpt_steps=[steps])
        by_start = {row["cpt_init"]: numbers(row) for row in rows}
        assert [text for _, text in one.axis.ticks] == ["MLM", "CLM"]
        found = drawn(one, "SC Average", label)
        assert found == {0.0: by_start["MLM"], 1.0: by_start["CLM"]}


def test_mixtures_of_another_attention_are_named_by_their_share_too():
    recipes = [(name, share) for name in ("CLM+MLM", "CLM+MLM, causal") for share in (25, 50)]
    looks = recipe_looks(recipes).values()
    assert [label for label, _ in looks] == [f"{name}, {share} % CLM" for name, share in recipes]
    assert len({style for _, style in looks}) == 4


def test_a_continued_model_began_with_one_that_attends_alike():
    models = [
        model(f"{size}-{name}", size, 0, steps, start="smol", continued_steps=steps, **attends)
        for size in ("small", "large")
        for name, steps, attends in (
            ("causal", 0, {"attention": "causal"}), ("opened", 0, {}), ("mlm", 50, {}),
        )
    ]  # fmt: skip
    chart = figure("continued-budget", grid_scores(models))
    assert members(chart) == {
        "before": ["small-opened", "large-opened"],
        "after 50 more steps": ["small-mlm", "large-mlm"],
    }


def test_the_papers_table_has_six_figures_and_reasons_for_the_others():
    found = [*score_figures(paper_scores())]
    assert [each.name for each in found if isinstance(each, Chart)] == [
        "size", "mask-rate", "step", "clm-share", "continued-budget", "continued-steps",
    ]  # fmt: skip
    reasons = {each.name: each.reason for each in found if isinstance(each, Skipped)}
    assert set(reasons) == {"mask-rate-sensitivity", "flops", "clm-share-further"}
    assert "FLOPs" in reasons["flops"]
    assert "from scratch" in reasons["flops"]  # the FLOPs of continued models do not count
    assert "two masking rates" in reasons["mask-rate-sensitivity"]
    assert "second model size" in reasons["clm-share-further"]


def test_a_table_with_every_factor_has_every_figure():
    found = [*score_figures(grid_scores())]
    assert [each.name for each in found] == [
        "size", "mask-rate", "step", "clm-share", "mask-rate-sensitivity", "continued-budget",
        "continued-steps", "flops", "clm-share-large",
    ]  # fmt: skip
    assert all(isinstance(each, Chart) for each in found)


def test_figure_7_compares_masking_alone_with_masking_after_clm():
    scores = grid_scores()
    chart = figure("mask-rate-sensitivity", scores)
    panel = DATASETS[0].name
    expected = {
        label: {100 * rate: scores.get(name, panel).estimate.mean for rate, name in names.items()}
        for label, names in {
            "MLM": {0.2: "small-mlm0.2", 0.4: "small-mlm0.4"},
            "CLM 200, then MLM 200": {0.2: "small-200-200-at-20", 0.4: "small-200-200"},
        }.items()
    }
    for label, points in expected.items():
        assert {x: mean for x, (mean, _) in drawn(chart, panel, label).items()} == points


def by_flops(scores):
    """Return the models of each series of Figure 10, after checking every point."""
    chart = figure("flops", scores)
    flops = {model.name: model.flops for model in scores.models}
    for point in chart.points.itertuples():
        assert point.x == flops[point.model]
        assert point.mean == scores.get(point.model, point.panel).estimate.mean
    return members(chart)


def test_figure_10_follows_both_objectives_by_their_flops():
    assert by_flops(grid_scores()) == {
        **{f"{o.upper()}": [f"small-{o}-at-{step}" for step in (50, 100, 200)]
           for o in ("mlm", "clm")},
        "MLM, finished": ["small-mlm0.4"],
        "CLM, finished": ["small-clm"],
    }  # fmt: skip


def test_figure_10_without_states_on_the_way_has_finished_models():
    names = by_flops(grid_scores([each for each in grid_models() if each.is_final])).values()
    # Neither continued training nor other masking rates.
    assert {name for of_series in names for name in of_series} == {
        f"{size}-{rest}" for size in ("small", "large")
        for rest in ("mlm0.4", "clm", "0-200", "50-150", "100-100", "200-0", "100-300", "200-200")
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "keep", "reason"),
    [
        ("size", lambda m: m.size == "small", "two model sizes"),
        ("size", lambda m: (m.size, m.objective) in {("small", "MLM"), ("large", "CLM")},
         "at two model sizes"),
        ("mask-rate", lambda m: m.mask_rate != 0.2, "two masking rates"),
        ("step", lambda m: m.is_final, "two intermediate steps or more"),
        ("clm-share", lambda m: m.objective != "CLM+MLM", "CLM then MLM"),
        ("mask-rate-sensitivity", lambda m: not m.name.endswith("200-200-at-20"),
         "both at two masking rates"),
        ("continued-budget", lambda m: not m.continued_steps, "no finished model"),
        ("continued-budget", lambda m: m.start != "CLM", "two starting models"),
        ("continued-steps", lambda m: m.continued_steps != 50, "two different numbers"),
        ("flops", lambda m: m.name == "small-clm", "FLOPs"),
    ],
)  # fmt: skip
def test_what_a_figure_lacks_is_named(name, keep, reason):
    found = figure(name, grid_scores([each for each in grid_models() if keep(each)]))
    assert isinstance(found, Skipped)
    assert reason in found.reason


def test_a_table_without_scores_has_no_figure_and_no_error():
    empty = replace(grid_scores(), cells={})
    for found in score_figures(empty):
        assert isinstance(found, Skipped)
        assert found.reason == "none of its models has a score"


def test_a_score_without_interval_has_no_bar():
    scores = grid_scores()
    name = "small-clm"
    cells = {**scores.cells, (name, "words-sc"): Score(Estimate(61.0, None, 1), {0: 61.0})}
    chart = figure("size", replace(scores, cells=cells))
    assert drawn(chart, "words-sc", "CLM")[0.0] == (61.0, None)


def test_models_with_equal_factors_are_separate_points():
    twin = model("twin", "small", 400, 0)
    scores = grid_scores([*grid_models(), twin])
    chart = figure("size", scores)
    points = rows(chart, "words-sc", "CLM")
    assert sorted(points[points["x"] == 0.0]["model"]) == ["small-clm", "twin"]
    assert "several models share a position" in chart.caption
    assert "several models share a position" not in figure("size", grid_scores()).caption


def test_every_dataset_can_have_its_panel():
    charts = [c for c in score_figures(paper_scores(), is_every=True) if isinstance(c, Chart)]
    assert all(len(chart.panels) == 12 for chart in charts)
    assert not any("Average" in panel.key for chart in charts for panel in chart.panels)


def two_optimizers():
    """Return scores of MLM, CLM then MLM, and CLM, each by AdamW and by Muon, and two continued."""
    kinds = {"mlm": (0, 400), "both": (200, 200), "clm": (400, 0)}
    models = [
        model(f"{name}-{optimizer}", "small", clm, mlm, labels=1000 * clm + 400 * mlm,
              optimizer=optimizer)
        for name, (clm, mlm) in kinds.items() for optimizer in ("adamw", "muon")
    ]  # fmt: skip
    more = {"labels": 440_000, "optimizer": "muon", "continued_steps": 100, "start": "CLM"}
    models.append(model("more-mlm", "small", 400, 100, **more))
    models.append(model("more-mntp", "small", 400, 100, **{**more, "objective": "CLM+MNTP"}))
    cells = {
        (one.name, "words-sc"): Score(Estimate(50.0 + place, 1.0, 3))
        for place, one in enumerate(models)
    }
    return Scores("made", "standard", tuple(models), DATASETS[:1], cells)


def test_each_optimizer_has_a_line_over_shares_of_clm():
    chart = figure("clm-share", two_optimizers())
    for place, optimizer in enumerate(("adamw", "muon")):
        points = drawn(chart, "words-sc", f"400 steps, {optimizer}")
        assert points == {share: (50.0 + place + share / 25, 1.0) for share in (0.0, 50.0, 100.0)}


def test_scores_by_tokens_predicted_have_a_colour_per_recipe_and_a_marker_per_optimizer():
    scores = two_optimizers()
    chart = next(one for one in score_figures(scores) if one.name == "labels")
    assert drawn(chart, "words-sc", "MLM, muon") == {160_000.0: (51.0, 1.0)}
    assert drawn(chart, "words-sc", "CLM+MLM, 50 % CLM, adamw") == {280_000.0: (52.0, 1.0)}
    assert drawn(chart, "words-sc", "CLM, adamw") == {400_000.0: (54.0, 1.0)}
    assert drawn(chart, "words-sc", "CLM+MLM, 80 % CLM, muon") == {440_000.0: (56.0, 1.0)}
    styles = dict(zip(chart.points["series"], chart.points["style"], strict=True))
    by_optimizer = {name.split(", ")[-1]: style.marker for name, style in styles.items()}
    assert len(set(by_optimizer.values())) == 2
    by_recipe = {name.rpartition(", ")[0]: style.color for name, style in styles.items()}
    assert len(by_recipe) == len(set(by_recipe.values())) == 5
    one = [m for m in scores.models if m.optimizer == "muon" and m.is_final]
    for models, is_drawn in ((one, True), ([m for m in one if not m.continued_steps], False)):
        names = {each.name for each in score_figures(replace(scores, models=tuple(models)))}
        assert ("labels" in names) == is_drawn  # for one optimizer: if there are several lengths


def test_no_figure_has_two_optimizers_at_one_place_of_a_line():
    ours = [replace(one, optimizer="adamw") for one in grid_models()]
    theirs = [
        replace(one, name=f"{one.name}-muon", identity=f"{one.name}-muon", optimizer="muon")
        for one in ours
    ]
    optimizers = {one.name: one.optimizer for one in (*ours, *theirs)}
    charts = [*score_figures(grid_scores([*ours, *theirs]))]
    names = {chart.name for chart in charts if isinstance(chart, Chart)}
    assert {"size", "mask-rate", "step", "mask-rate-sensitivity", "flops"} < names
    assert {"continued-budget", "continued-steps", "clm-share"} < names
    for chart in charts:
        if isinstance(chart, Chart):
            by = chart.points.assign(optimizer=chart.points["model"].map(optimizers))
            assert (by.groupby(["series", "x"])["optimizer"].nunique() == 1).all(), chart.name


def test_a_mixed_average_replaces_no_datasets():
    datasets = (
        DatasetInfo("a", "QA", "f1"), DatasetInfo("b", "QA", "exact_match"),
        DatasetInfo("QA Average", "QA", "mixed", is_average=True),
    )  # fmt: skip
    chart = figure("size", grid_scores(datasets=datasets))
    assert [panel.key for panel in chart.panels] == ["a", "b"]


def test_captions_state_the_variance_that_intervals_do_not_cover():
    for chart in score_figures(paper_scores()):
        if isinstance(chart, Chart):
            assert "about 88 %" in chart.caption
            assert "pretraining variance" in chart.caption
    standard = figure("size", grid_scores()).caption
    assert "Student's t" in standard
    assert "88 %" not in standard


def test_the_points_of_a_figure_read_back_exactly():
    chart = figure("size", paper_scores())
    lines = [*csv.DictReader(points_csv(chart).splitlines())]
    assert len(lines) == 4 * 2 * 3
    by_model = {(row["model"], row["panel"]): float(row["mean"]) for row in lines}
    score = paper_scores().get("1B-clm-42k", "QA Average")
    assert by_model["1B-clm-42k", "Question answering"] == score.estimate.mean


def own_study(**changes) -> Scores:
    """Return a table with the paper's datasets and two of its sizes, scores a point higher."""
    paper = paper_scores()
    models = tuple(
        replace(each, name=f"mine-{each.name}", size=each.size.lower(), **changes)
        for each in paper.models if each.group == "base" and each.size != "1B"
    )  # fmt: skip
    cells = {
        (f"mine-{name}", dataset): Score(Estimate(score.estimate.mean + 1, 0.5, 5))
        for (name, dataset), score in paper.cells.items()
    }
    return Scores("Mine", "standard", models, paper.datasets, cells)


def test_the_papers_values_are_in_the_background():
    charts = {c.name: c for c in score_figures(own_study(), reference=paper_scores())}
    chart = charts["size"]
    mine = drawn(chart, "SC Average", "MLM")
    theirs = drawn(chart, "SC Average", "paper: MLM")
    # 1B is no category of one's own.
    assert [*theirs] == [0.0, 1.0]
    assert all(mine[x][0] == pytest.approx(theirs[x][0] + 1) for x in theirs)
    is_theirs = chart.points["series"].str.startswith("paper")
    assert (is_theirs == chart.points["is_reference"]).all()
    assert chart.caption.endswith("Grey: arXiv:2507.00994, Appendix C.")
    # After fewer steps, at another masking rate.
    short = {c.name: c for c in score_figures(
        own_study(total_steps=400, mask_rate=0.2), reference=paper_scores())}  # fmt: skip
    assert ", after 400 steps. MLM at a masking rate of 20 %. " in short["size"].caption
    assert short["size"].caption.endswith(
        "Grey: arXiv:2507.00994, Appendix C, after 42,000 steps. MLM at a masking rate of 40 %."
    )
    # On an axis of numbers all their points are there.
    assert len(drawn(charts["mask-rate"], "SC Average", "paper: 1B")) == 4


def test_other_datasets_or_metrics_have_nothing_behind_them():
    for chart in score_figures(grid_scores(), reference=paper_scores()):
        assert isinstance(chart, Skipped) or not any(chart.points["is_reference"])
    mine = own_study()
    other = tuple(replace(d, metric="macro_f1") if d.task == "TC" else d for d in mine.datasets)
    charts = {c.name: c for c in score_figures(replace(mine, datasets=other),
                                               reference=paper_scores())}  # fmt: skip
    points = charts["size"].points
    behind = dict(points.groupby("panel", sort=False)["is_reference"].any())
    assert behind == {"SC Average": True, "TC Average": False, "QA Average": True,
                      "IR Average": True}  # fmt: skip
