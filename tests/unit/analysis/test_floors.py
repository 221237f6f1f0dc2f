"""Arms against floors."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_study import ARMS, TASKS, FakeStudy, identity, seal_again, write_json
from scipy.stats import ttest_1samp
from test_replicates import replicated_study
from test_study_examples import NUM_TEST, write_examples

from biphasic.analysis.estimate import estimate
from biphasic.analysis.figures.draw import draw
from biphasic.analysis.figures.strips import strips_of
from biphasic.analysis.page.content import floors_of, study_answers
from biphasic.analysis.records import load_records
from biphasic.analysis.report import write_report
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Score, Scores
from biphasic.analysis.statistics.compare import family_of
from biphasic.analysis.statistics.doubts import floor_tests
from biphasic.analysis.statistics.replicates import over_pretraining
from biphasic.analysis.tables.markup import make_sheets, to_markdown
from biphasic.analysis.tables.text import score_rows
from biphasic.palette import FLOOR, SeriesStyle
from biphasic.store import seal_folder


def _scores(by_model: dict[str, list[float]], *, floors: tuple[str, ...]) -> Scores:
    models = {name: ModelInfo(name, name.upper(), objective="MLM") for name in by_model}
    models["untrained"] = ModelInfo("untrained", "UNTRAINED", objective="none")
    cells = {
        (name, "task"): Score(estimate(values, convention="standard"), dict(enumerate(values)))
        for name, values in by_model.items()
    }
    return Scores(
        "test", "standard",
        tuple(model for name, model in models.items() if name not in floors),
        (DatasetInfo("task", "SC", "accuracy"),), cells,
        baselines=tuple(ModelInfo(name, name) for name in floors),
    )  # fmt: skip


_ARMS = {
    "high": [80.0, 81.0, 80.5],
    "mid": [60.0, 61.0, 60.5],
    "low": [52.0, 52.5, 51.5],
    "untrained": [50.0, 50.2, 49.8],
}


def test_arms_are_above_all_floors_or_below_the_highest() -> None:
    floor = "floor:majority"
    tests = floor_tests(_scores({**_ARMS, floor: [70.0] * 3}, floors=(floor,)), "task")
    assert tests.above == ["high"]
    assert tests.floors == (floor, "untrained")
    assert tests.note("high", "mid") == ""
    assert tests.note("mid", "low") == f"below {floor}: not evidence of what pretraining adds"
    [task] = floors_of(tests.scores, {"task": "Task"})
    assert (task["title"], task["above"], task["floor"]) == ("Task", ["HIGH"], floor)
    assert task["score"].mean == 70


def test_an_arm_without_a_seed_of_the_floor_is_tested_by_means() -> None:
    scores = _scores(_ARMS, floors=())
    cells = {
        key: replace(score, by_seed={1000 + seed: of for seed, of in score.by_seed.items()})
        if key[0] in {"high", "low"}
        else score
        for key, score in scores.cells.items()
    }
    near = Score(estimate([50.1, 49.0, 51.0], convention="standard"), {7: 50.1, 8: 49.0, 9: 51.0})
    tests = floor_tests(replace(scores, cells={**cells, ("mid", "task"): near}), "task")
    assert tests.not_above == {"high": (), "mid": ("untrained",), "low": ()}


def test_a_pretrained_model_as_it_is_is_an_arm() -> None:
    scores = _scores(_ARMS, floors=())
    models = [replace(one, objective="none", start="smollm") for one in scores.models[:2]]
    tests = floor_tests(replace(scores, models=(*models, *scores.models[2:])), "task")
    assert tests.above == ["high", "mid", "low"]
    assert tests.note("high", "mid") == ""


def test_a_model_that_was_not_tested_has_no_note() -> None:
    scores = _scores({**_ARMS, "low": [50.0, 50.1, 49.9]}, floors=())
    tests = floor_tests(scores, "task")
    assert tests.note("low", "untrained") != ""
    assert tests.note("low", "reference:other") == ""


def test_without_floors_nothing_is_said() -> None:
    arms = {name: values for name, values in _ARMS.items() if name != "untrained"}
    tests = floor_tests(_scores(arms, floors=()), "task")
    assert tests.note("mid", "low") == ""
    assert floors_of(tests.scores, {"task": "Task"}) == []


@pytest.mark.parametrize("value", [60.4, 58.0])
def test_an_arm_near_a_floor_is_not_clearly_above(value: float) -> None:
    floor = "floor:dictionary"
    arms = {**_ARMS, "mid": [value, 62.0, 60.0], floor: [60.2] * 3}
    tests = floor_tests(_scores(arms, floors=(floor,)), "task")
    assert tests.not_above["mid"] == (floor,)
    assert "floor:dictionary: not evidence" in tests.note("mid", "low")


def test_a_floor_whose_rate_is_at_the_end_of_those_tried_has_its_sign() -> None:
    scores = _scores({**_ARMS, "untrained": [70.0, 71.0, 70.5]}, floors=())
    for is_at_end, sign in ((False, ""), (True, " ‡")):
        floor = replace(scores.cells["untrained", "task"], is_at_end=is_at_end)
        cells = {**scores.cells, ("untrained", "task"): floor}
        note = floor_tests(replace(scores, cells=cells), "task").note("mid", "low")
        assert note == f"below UNTRAINED{sign}: not evidence of what pretraining adds"


def _write_baselines(folder: Path, store: Path, scores: dict[tuple[str, str, int], float]) -> None:
    """Add the results of baselines to a study: a share by name, task and seed."""
    study = json.loads((folder / "study.json").read_text())
    tasks = {task["name"]: task for task in study["tasks"]}
    study["baselines"] = []
    for (name, task, seed), share in scores.items():
        run = identity(name, task, seed)[:16]
        cell = {"task": task, "learning_rate": 0.0, "seed": seed}
        study["baselines"].append({"id": run, "arm": name, **cell})
        metric = tasks[task]["metric"]
        write_json(store / "finetunes" / run / "result.json", {
            "format": "biphasic.finetune/1", "id": run, "state": "", **cell,
            "kind": tasks[task]["kind"], "metric": metric, "status": "finished", "steps": 0,
            "validation": {metric: share}, "test": {metric: share}, "seconds": 0.1,
        })  # fmt: skip
        seal_folder(store / "finetunes" / run, id=run)
    write_json(folder / "study.json", study)


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Path, str]:
    """A study with a floor above all arms on its first task, a reference and random vectors."""
    folder, store = FakeStudy(steps=40).write(tmp_path)
    task = TASKS[0][0]
    draws = {("floor:random-vectors", task, draw): 0.1 * draw for draw in range(5)}
    own = {("reference:bag-of-words", task, seed): 0.5 + 0.01 * seed for seed in range(5)}
    _write_baselines(folder, store, {("floor:majority", task, 0): 0.99, **own, **draws})
    return folder, store, task


def test_a_baseline_of_a_study_is_paired_with_every_seed(written) -> None:
    folder, store, task = written
    records = load_records(folder, store)
    assert records.problems == ()
    scores = study_scores(records)
    assert [model.name for model in scores.baselines] == [
        "floor:majority", "reference:bag-of-words", "floor:random-vectors",
    ]  # fmt: skip
    assert scores.get("floor:majority", task).by_seed == pytest.approx(dict.fromkeys(range(5), 99))
    # One that reads the training examples of each seed is paired seed by seed, draws are averaged.
    of_seeds = {seed: 50 + seed for seed in range(5)}
    assert scores.get("reference:bag-of-words", task).by_seed == pytest.approx(of_seeds)
    draws = scores.get("floor:random-vectors", task)
    assert draws.by_seed == pytest.approx(dict.fromkeys(range(5), 20))
    assert draws.estimate is not None
    assert draws.estimate.num_seeds == 5


def test_no_family_and_no_number_of_arms_includes_baselines(written, tmp_path) -> None:
    folder, store, task = written
    plain = study_scores(load_records(*FakeStudy(steps=40).write(tmp_path / "plain")))
    scores = study_scores(load_records(folder, store))
    assert scores.cells == plain.cells
    assert scores.means(task) == plain.means(task)
    assert scores.best(task) == plain.best(task)
    one, other = family_of(scores, task), family_of(plain, task)
    assert one.order == other.order
    assert [c.p_adjusted for c in one.with_best] == [c.p_adjusted for c in other.with_best]


def test_the_report_and_its_tables_have_baselines_after_the_arms(written) -> None:
    folder, store, task = written
    page = write_report(folder, store)
    html = page.read_text()
    assert "Clearly above every floor: no arm (" in html
    mark = '<abbr title="below floor: majority: not evidence of what pretraining adds">∅</abbr>'
    assert mark in html
    assert "∅: not clearly above every floor" in html
    rows = list(csv.DictReader((page.parent / "table.csv").read_text().splitlines()))
    arms = [row["arm"] for row in rows if row["task"] == task]
    assert arms[-3:] == ["floor:majority", "reference:bag-of-words", "floor:random-vectors"]
    assert float(next(r["mean"] for r in rows if r["arm"] == "floor:majority")) == 0.99
    results = list(csv.DictReader((page.parent / "results.csv").read_text().splitlines()))
    assert [row["test"] for row in results if row["arm"] == "floor:majority"] == ["0.99"]
    sheets = make_sheets(study_scores(load_records(folder, store)))
    [sheet] = [one for one in sheets if task in [dataset.name for dataset in one.datasets]]
    assert [model.name for model in sheet.blocks[-1]] == arms[-3:]
    assert "| floor: majority |" in to_markdown([sheet])


def _ask(folder: Path, first: str, second: str, task: str) -> None:
    """Add a question about two arms or baselines to a study."""
    study = json.loads((folder / "study.json").read_text())
    asked = {"first": [first], "second": [second], "tasks": [task]}
    rule = {"clear_for": 1, "clear_against": 0}
    study["questions"] = [
        {"name": "Q1", "question": "Is it?", "comparisons": [asked], "supported_if": rule,
         "against_if": {"clear_against": 1, "clear_for": None}, "margin": 5},
    ]  # fmt: skip
    write_json(folder / "study.json", study)


def test_a_question_compares_an_arm_with_a_baseline_by_the_spread_of_the_pair(written) -> None:
    folder, store, task = written
    _ask(folder, "mlm", "floor:random-vectors", task)
    study = json.loads((folder / "study.json").read_text())
    compared = {"first": ["clm"], "second": ["reference:bag-of-words"], "tasks": [task]}
    write_json(folder / "study.json", {**study, "compare": [compared]})
    page = write_report(folder, store)
    rows = list(csv.DictReader((page.parent / "comparisons.csv").read_text().splitlines()))
    planned = [(row["first"], row["second"]) for row in rows if row["kind"] == "planned"]
    assert planned == [("mlm", "floor:random-vectors"), ("clm", "reference:bag-of-words")]
    [row] = csv.DictReader((page.parent / "questions.csv").read_text().splitlines())
    by_seed = study_scores(load_records(folder, store)).get("mlm", task).by_seed
    assert by_seed is not None
    differences = np.array([*by_seed.values()]) - 20
    assert float(row["difference"]) == pytest.approx(differences.mean())
    assert float(row["p_value"]) == pytest.approx(ttest_1samp(differences, 0).pvalue)
    assert row["comparison"].endswith("− floor: random vectors")
    assert (row["answer"], row["clear"]) == ("supported", "above zero")
    assert "floor: random vectors" in page.read_text()


@pytest.mark.parametrize("num_runs", [1, 3])
def test_a_baseline_is_paired_over_examples_too(tmp_path, num_runs) -> None:
    task = TASKS[0][0]
    if num_runs == 1:
        folder, store = FakeStudy(steps=40, arms=ARMS[1:3], tasks=TASKS[:1]).write(tmp_path)
    else:
        folder, store = replicated_study(tmp_path, seeds=(0,))
    _write_baselines(folder, store, {("floor:majority", task, 0): 0.5})
    draw = np.random.default_rng(0)
    for path in sorted(store.glob("finetunes/*/result.json")):
        write_examples(path, draw)
    _ask(folder, "mlm" if num_runs == 1 else "mlm-seed1", "floor:majority", task)
    study = json.loads((folder / "study.json").read_text())
    if num_runs > 1:
        runs = [arm["name"] for arm in study["arms"] if arm["name"].startswith("mlm")]
        study["questions"][0]["comparisons"][0]["first"] = runs
        write_json(folder / "study.json", study)
    [answer] = study_answers(load_records(folder, store))
    [outcome] = answer.outcomes
    assert outcome.test is not None
    assert (outcome.test.num_examples, outcome.test.missing) == (NUM_TEST, "")
    assert outcome.test.example_error > 0
    # A baseline has no variance over runs that could be pooled with those of arms.
    assert not outcome.test.is_pooled
    assert len(outcome.test.by_seed) == (5 if num_runs == 1 else 3)


def test_figures_have_rows_and_lines_of_baselines(written) -> None:
    folder, store, task = written
    scores = study_scores(load_records(folder, store))
    styles = dict.fromkeys((model.name for model in scores.models), SeriesStyle(FLOOR, "o", "-"))
    figure = draw(strips_of(scores, styles, {one.name: one.name for one in scores.datasets}))
    axes = figure.axes[[one.name for one in scores.datasets].index(task)]
    names = [label.get_text().replace("\n", " ") for label in axes.get_yticklabels()]
    assert names[-3:] == ["floor: majority", "reference: bag of words", "floor: random vectors"]
    lines = [line.get_linestyle() for line in axes.lines if line.get_transform() != axes.transData]
    assert sum(line != "-" for line in lines) >= 3
    assert "99.00" in [text.get_text() for text in axes.texts]
    page = write_report(folder, store).read_text()
    assert "Dotted: untrained encoders, floors and references." in page


def test_json_and_rows_have_baselines(written) -> None:
    folder, store, task = written
    rows = score_rows(study_scores(load_records(folder, store)))
    found = {row["model"]: row["mean"] for row in rows if row["dataset"] == task}
    assert found["floor:majority"] == pytest.approx(99)
    assert [*found][-1] == "floor:random-vectors"


def test_a_missing_or_foreign_result_of_a_baseline_is_a_problem(written) -> None:
    folder, store, task = written
    run = identity("floor:majority", task, 0)[:16]
    path = store / "finetunes" / run / "result.json"
    write_json(path, {**json.loads(path.read_text()), "state": "another"})
    seal_again(path.parent)
    [problem] = load_records(folder, store).problems
    assert (problem.kind, problem.text) == (
        "damaged", f"floor:majority on {task}: result.json belongs to another run; skipped",
    )  # fmt: skip
    shutil.rmtree(path.parent)
    records = load_records(folder, store)
    assert records.problems[0].text == f"floor:majority on {task}: not run yet"
    assert ("floor:majority", task) not in records.baselines


def test_the_only_result_of_a_baseline_that_reads_examples_of_a_seed_is_of_this_seed(
    written,
) -> None:
    folder, store, task = written
    for seed in (0, 1, 3, 4):
        shutil.rmtree(store / "finetunes" / identity("reference:bag-of-words", task, seed)[:16])
    score = study_scores(load_records(folder, store)).get("reference:bag-of-words", task)
    assert score.by_seed == pytest.approx({2: 52})
    assert not score.is_complete


def test_a_baseline_is_paired_with_every_pretraining_run() -> None:
    values = {"a-seed0": [60.0, 62.0], "a-seed1": [64.0, 66.0], "floor:x": [50.0, 51.0]}
    models = tuple(
        ModelInfo(f"a-seed{n}", f"a-seed{n}", objective="MLM", replicate_of="a",
                  pretraining_seeds=(n,))
        for n in range(2)
    )  # fmt: skip
    cells = {
        (name, "task"): Score(estimate(of, convention="standard"), dict(enumerate(of)))
        for name, of in values.items()
    }
    floor = Score(estimate([50.5], convention="standard"), {0: 50.0, 1: 51.0})
    scores = Scores(
        "test", "standard", models, (DatasetInfo("task", "SC", "accuracy"),), cells,
        baselines=(ModelInfo("floor:x", "floor: x", is_finished_encoder=True),),
        baseline_cells={("floor:x", "task"): floor},
    )  # fmt: skip
    cells.pop(("floor:x", "task"))
    combined = over_pretraining(scores).get("floor:x", "task")
    assert combined.by_seed == {0: 50.5, 1: 50.5}
    assert combined.estimate == floor.estimate
