"""Planned comparisons are corrected among themselves; all others are exploratory."""

import csv
import dataclasses
import json

import numpy as np
import pytest
from made_scores import made_scores
from test_replicates import replicated_study, run_cli

from biphasic import compare
from biphasic.analysis.page.content import study_families
from biphasic.analysis.records import load_records
from biphasic.analysis.report import write_report
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.scores.table import DatasetInfo, Planned
from biphasic.analysis.statistics.compare import family_of
from biphasic.analysis.statistics.contrast import holm
from biphasic.analysis.statistics.replicates import over_pretraining
from biphasic.analysis.tables.text import comparison_lines

DATASETS = (DatasetInfo("d", "SC", "accuracy"), DatasetInfo("e", "TC", "accuracy"))


def planned(first, second, *datasets):
    return Planned((first,), (second,), datasets)


def scores_of(*plan, num_seeds=5, num_runs=1):
    draw = np.random.default_rng(5)
    by_cell = {
        (name, dataset.name): draw.normal(50 + 2 * place, 1, num_seeds)
        for place, name in enumerate("abcde")
        for dataset in DATASETS
    }
    scores = made_scores(by_cell, datasets=DATASETS)
    return dataclasses.replace(scores, planned=plan, num_pretraining_runs=num_runs)


def test_planned_comparisons_of_all_tasks_are_one_family():
    plan = planned("b", "a", "d", "e"), planned("c", "d", "d")
    scores = scores_of(*plan)
    found = [
        family_of(scores, dataset).compare(*pair)
        for dataset, pair in (("d", "ba"), ("e", "ba"), ("d", "cd"))
    ]
    assert all(one.is_planned and one.family_size == 3 for one in found)
    assert [one.p_adjusted for one in found] == pytest.approx(holm([one.p_value for one in found]))
    # Seen from the other side, it is the same comparison.
    other = family_of(scores, "d").compare("a", "b")
    assert (other.is_planned, other.p_adjusted) == (True, found[0].p_adjusted)
    assert other.mean == -found[0].mean


def test_planned_comparisons_without_scores_count_too():
    whole = scores_of(planned("b", "a", "d", "e"), planned("c", "d", "d"))
    cells = {key: cell for key, cell in whole.cells.items() if key not in {("a", "e"), ("c", "d")}}
    found = family_of(dataclasses.replace(whole, cells=cells), "d").compare("b", "a")
    assert found.family_size == 3
    assert found.p_adjusted == pytest.approx(min(3 * found.p_value, 1))


@pytest.mark.parametrize(("is_complete", "size"), [(False, 2), (True, 2)])
def test_a_planned_comparison_of_one_seed_counts(is_complete, size):
    whole = scores_of(planned("b", "a", "d", "e"))
    one_seed = made_scores({("b", "e"): [50.0], ("a", "e"): [51.0]}, datasets=DATASETS).cells
    one_seed = {k: dataclasses.replace(v, is_complete=is_complete) for k, v in one_seed.items()}
    scores = dataclasses.replace(whole, cells={**whole.cells, **one_seed})
    found = family_of(scores, "d").compare("b", "a")
    assert found.family_size == size
    assert found.p_adjusted == pytest.approx(min(size * found.p_value, 1))
    assert family_of(scores, "e").compare("b", "a").p_adjusted is None


def test_the_other_pairs_are_corrected_without_the_planned_ones():
    alone, planned_one = (
        family_of(scores_of(), "d"),
        family_of(scores_of(planned("b", "a", "d")), "d"),
    )
    assert (alone.size, planned_one.size) == (10, 9)
    found = planned_one.compare("e", "a")
    assert (found.is_planned, found.family_size) == (False, 9)
    assert found.p_adjusted <= alone.compare("e", "a").p_adjusted
    assert [(one.first, one.second) for one in planned_one.of_plan] == [("b", "a")]


def test_tukey_s_correction_is_for_all_pairs_with_the_planned_ones():
    scores = scores_of(planned("b", "a", "d"), num_seeds=3, num_runs=3)
    found = family_of(scores, "d").compare("e", "a")
    assert (found.is_pooled, found.is_planned, found.num_arms) == (True, False, 5)
    assert found.family_size == 10


def test_planned_comparisons_over_runs_use_the_pooled_variance():
    scores = scores_of(planned("b", "a", "d", "e"), num_seeds=3, num_runs=3)
    found = [family_of(scores, name).compare("b", "a") for name in "de"]
    assert all(one.is_pooled for one in found)
    expected = holm([one.p_value for one in found])
    assert [one.p_adjusted for one in found] == pytest.approx(
        [max(p, one.p_alone) for p, one in zip(expected, found, strict=True)]
    )
    # Fewer comparisons detect smaller differences.
    assert (
        found[0].detectable
        < family_of(scores_of(num_seeds=3, num_runs=3), "d").compare("b", "a").detectable
    )


def test_a_planned_comparison_has_one_line():
    best, following = family_of(scores_of(), "d").order[:2]
    lines = [*comparison_lines(scores_of(planned("b", "a", "d"), planned(following, best, "d")))]
    kinds = [line.partition(":")[0].strip() for line in lines[: lines.index("e:")]]
    assert [kind for kind in kinds if kind.casefold().endswith("planned")] == [
        "Planned",
        "Best and next, planned",
    ]


@pytest.fixture
def study(tmp_path):
    """CLM and MLM with three runs each, compared on one task by plan."""
    folder, store = replicated_study(tmp_path, seeds=(0,))
    record = json.loads((folder / "study.json").read_text())
    sides = [[f"{name}-seed{seed}" for seed in (1, 2, 3)] for name in ("clm", "mlm")]
    record["compare"] = [{"first": sides[0], "second": sides[1], "tasks": ["pydocs-sc"]}]
    (folder / "study.json").write_text(json.dumps(record))
    return folder, store


def test_a_recipe_is_compared_once_its_runs_are_combined(study):
    scores = study_scores(load_records(*study))
    assert family_of(scores, "pydocs-sc").of_plan == ()
    [found] = family_of(over_pretraining(scores), "pydocs-sc").of_plan
    assert (found.num_pairs, found.is_planned) == (3, True)


def test_page_and_files_tell_planned_from_exploratory(study):
    page = write_report(*study).read_text()
    assert "<h3>Planned comparisons</h3>" in page
    assert "<h3>Exploratory comparisons</h3>" in page
    assert "The study names no planned comparisons" not in page
    rows = [*csv.DictReader((study[0] / "report/comparisons.csv").read_text().splitlines())]
    assert [(row["kind"], row["dataset"], row["first"], row["second"]) for row in rows] == [
        ("planned", "pydocs-sc", "clm", "mlm"), ("exploratory", "pydocs-tc", "clm", "mlm"),
    ]  # fmt: skip
    [planned_one] = study_families(load_records(*study))["pydocs-sc"].of_plan
    assert float(rows[0]["p_corrected"]) == planned_one.p_adjusted
    assert (rows[0]["num_comparisons"], rows[0]["verdict"]) == ("1", planned_one.verdict)
    shown = run_cli("analyze", str(study[0]), "--by-pretraining", "--compare")
    first, second = shown.split("pydocs-tc:")
    assert "Best and next, planned: clm is" in first
    assert "Exploratory" not in first
    assert "Exploratory: clm is" in second
    found = compare(study[0], by_pretraining=True).table()
    assert [(row["dataset"], row["kind"]) for row in found] == [
        ("pydocs-sc", "planned"), ("pydocs-tc", "exploratory"),
    ]  # fmt: skip


def test_recipes_are_compared_over_runs_beside_an_arm_with_one(study):
    folder, store = study
    record = json.loads((folder / "study.json").read_text())
    [alone] = [arm for arm in record["arms"] if arm["name"] == "clm-seed3"]
    alone |= {"model": "nano", "label": "alone"}
    first = ["clm-seed1", "clm-seed2"]
    record["compare"][0]["first"] = first
    on_floor = {"first": ["clm-seed3"], "second": ["floor:none"], "tasks": ["pydocs-tc"]}
    record["compare"].append(on_floor)
    (folder / "study.json").write_text(json.dumps(record))
    page = write_report(folder, store).read_text()
    assert "<h3>Planned comparisons</h3>" in page
    assert "over pretraining runs, test examples" in page
    rows = [*csv.DictReader((folder / "report/comparisons.csv").read_text().splitlines())]
    [row] = [row for row in rows if row["kind"] == "planned"]
    assert (row["first"], row["second"]) == ("clm (2 runs)", "mlm (3 runs)")
    assert (row["unit"], row["num_pairs"], row["num_comparisons"]) == ("pretraining run", "2", "2")
    assert {row["unit"] for row in rows if row["kind"] == "exploratory"} == {"seed"}


def test_the_page_says_what_each_question_is_tested_over(study):
    folder, store = study
    record = json.loads((folder / "study.json").read_text())
    rules = {
        "supported_if": {"clear_for": 1, "clear_against": 0},
        "against_if": {"clear_against": 1},
    }
    [alone] = [arm for arm in record["arms"] if arm["name"] == "clm-seed3"]
    alone |= {"model": "nano", "attention": "causal"}
    [other] = [arm for arm in record["arms"] if arm["name"] == "mlm-seed3"]
    other |= {"model": "nano"}
    two = [[f"{name}-seed{seed}" for seed in (1, 2)] for name in ("clm", "mlm")]
    for name, (first, second) in (("Q1", two), ("Q2", (["clm-seed3"], ["mlm-seed3"]))):
        one = {"first": first, "second": second, "tasks": ["pydocs-sc"]}
        asked = {"name": name, "question": "?", "comparisons": [one], **rules}
        record.setdefault("questions", []).append(asked)
    record["learning_rates"] = record["learning_rates"][:1]  # others were added by `extend`
    (folder / "study.json").write_text(json.dumps(record))
    page = write_report(folder, store).read_text()
    assert "Tests are over pretraining runs (Q1) and seeds (Q2) and, where" in page
    assert ">3 rates tried<" in page


def test_a_study_without_a_plan_has_exploratory_comparisons_alone(tmp_path):
    page = write_report(*replicated_study(tmp_path, seeds=(0,))).read_text()
    assert "Planned comparisons" not in page
