"""Recipes that were pretrained several times."""

import csv
import dataclasses
import json
import re
import statistics

import numpy as np
import pytest
from fake_study import ARMS, TASKS, FakeStudy
from made_scores import compare_arms, example_reader, made_scores, scores_with_examples
from typer.testing import CliRunner

from biphasic import analyze, figures
from biphasic.analysis.claims import Table
from biphasic.analysis.estimate import Estimate
from biphasic.analysis.figures.runs import scores_by_learning_rate
from biphasic.analysis.page.content import caveats
from biphasic.analysis.page.render import choice_sentence, few_arms
from biphasic.analysis.records import load_records
from biphasic.analysis.report import write_report
from biphasic.analysis.scores.examples import ExampleScores, mean_examples
from biphasic.analysis.scores.source import study_scores
from biphasic.analysis.scores.table import ModelInfo
from biphasic.analysis.statistics.doubts import cell_doubt
from biphasic.analysis.statistics.replicates import by_recipe, over_pretraining
from biphasic.analysis.statistics.variance import variance_split
from biphasic.analysis.tables.markup import make_sheets
from biphasic.analysis.tables.text import score_rows
from biphasic.analysis.words import interval_note, words
from biphasic.cli.main import app
from biphasic.errors import DataError


def infos(**recipes):
    """Return models of `recipe=[(name, seed), ...]`."""
    return {
        name: ModelInfo(name, name, identity=name, replicate_of=recipe, pretraining_seeds=(0, seed))
        for recipe, members in recipes.items()
        for name, seed in members
    }


RUNS = {"b2": [90.0, 92.0], "a0": [60.0, 62.0], "a1": [64.0, 66.0], "b0": [50.0, 52.0],
        "b1": [51.0, 53.0], "alone": [70.0, 70.0]}  # fmt: skip
MODELS = infos(a=[("a0", 0), ("a1", 1)], b=[("b2", 2), ("b0", 0), ("b1", 1)], c=[("alone", 0)])


def test_a_recipe_s_interval_is_over_its_runs_by_hand():
    # Runs of a: 61 and 65. Mean 63, error 2; t(0.975; 1) = 12.706.
    scores = over_pretraining(made_scores(RUNS, **MODELS))
    assert [model.name for model in scores.models] == ["b2", "a0"]
    assert scores.models[1].label == "a0 and 1 other run"
    assert scores.get("a0", "d").estimate == Estimate(
        pytest.approx(63.0), pytest.approx(12.706204736 * 2), 2
    )
    assert scores.get("b2", "d").by_seed == {0: 51.0, 1: 52.0, 2: 91.0}
    assert scores.num_pretraining_runs == 2
    assert "pretrained 2 times or more" in words().pretraining(scores)


def test_the_spread_of_recipes_is_that_of_their_runs():
    single = made_scores(RUNS, **MODELS)
    split = variance_split(over_pretraining(single), "d")
    assert split == variance_split(single, "d")
    assert split.pretraining.basis == "5 pretraining runs of 2 recipes"
    one_seed = {name: scores[:1] for name, scores in RUNS.items()}
    found = variance_split(over_pretraining(made_scores(one_seed, **MODELS)), "d").pretraining
    assert found.basis.endswith("2 recipes; it includes that of the fine-tuning seed")


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        (("mlm-seed1", "mlm-seed2"), "mlm"),
        (("mlm-mask40-seed1", "mlm-mask40-seed2"), "mlm-mask40"),
        (("clm-init1-data7", "clm-init2-data7"), "clm-data7"),
        (("clm", "clm-seed2"), "clm"),
        (("first-seed1", "second-seed2"), "first-seed1 and 1 other run"),
    ],
)
def test_a_recipe_s_label_lacks_the_seeds_that_its_runs_differ_in(labels, shown):
    models = {
        label: dataclasses.replace(model, label=label)
        for label, model in infos(a=[(label, seed) for seed, label in enumerate(labels)]).items()
    }
    [recipe] = over_pretraining(made_scores({key: [1.0, 2.0] for key in labels}, **models)).models
    assert recipe.label == shown


def test_claims_tell_recipes_of_one_label_apart():
    sizes = {"a": "210M", "b": "610M"}
    models = {
        f"{recipe}{seed}": ModelInfo(
            f"{recipe}{seed}", "MLM", size=size, parameters=int(size[:-1]), objective="MLM",
            identity=f"{recipe}{seed}", replicate_of=recipe, pretraining_seeds=(seed,),
        )
        for recipe, size in sizes.items()
        for seed in (0, 1)
    }  # fmt: skip
    scores = over_pretraining(made_scores({name: [50.0, 52.0] for name in models}, **models))
    assert [model.label for model in scores.models] == ["MLM", "MLM"]
    assert {row.name for row in Table(scores).rows()} == {"a0", "b0"}


def test_recipes_are_paired_by_their_pretraining_seeds():
    # Seeds 0 and 1 are common: 61 - 51 and 65 - 52; the third run of b has no partner.
    found = compare_arms(over_pretraining(made_scores(RUNS, **MODELS)), "a0", "b2", "d")
    assert [*found.by_seed.values()] == pytest.approx([10.0, 13.0])


@pytest.mark.parametrize(
    ("seeds", "expected"),
    # The same for all runs: standard deviation 2, t(0.975; 2) = 4.303. A zero-shot task has none.
    [((0, 1, 2), Estimate(52.0, pytest.approx(4.302652730 * 2 / 3**0.5), 3)),
     ((0,), Estimate(50.0, None, 1))],
)  # fmt: skip
def test_a_finished_encoder_does_not_vary_between_runs_that_share_their_seeds(seeds, expected):
    models = infos(a=[("a0", 0), ("a1", 1)])
    models["theirs"] = ModelInfo("theirs", "Theirs", identity="t", is_finished_encoder=True)
    runs = {"a0": [60.0, 61.0, 62.0], "a1": [64.0, 65.0, 66.0], "theirs": [50.0, 52.0, 54.0]}
    runs = {name: [values[seed] for seed in seeds] for name, values in runs.items()}
    scores = by_recipe(made_scores(runs, **models))
    theirs = scores.get("theirs", "d")
    assert (theirs.estimate, len(theirs.by_seed)) == (expected, 2)
    assert cell_doubt(scores, "theirs", scores.datasets[0]) == ""
    pair = compare_arms(scores, "a0", "theirs", "d")
    assert (pair.num_pairs, pair.is_of_common_seeds) == (2, False)
    assert "with 2 pretraining runs" in caveats(scores)[0]
    assert "grouped" not in words().pretraining(scores)


def test_a_finished_encoder_is_paired_with_every_run():
    # Fine-tuning seeds 0 and 1 are of the first run of a, 1000 and 1001 of the second.
    models = infos(a=[("a0", 0), ("a1", 1)])
    models["theirs"] = ModelInfo("theirs", "Theirs", identity="t", is_finished_encoder=True)
    runs = {
        "a0": {0: 60.0, 1: 62.0},
        "a1": {1000: 64.0, 1001: 66.0},
        "theirs": {0: 50.0, 1: 52.0, 1000: 54.0, 1001: 58.0},
    }
    shares = {model: {seed: [score / 100] * 4 for seed, score in of.items()}
              for model, of in runs.items()}  # fmt: skip

    def read(model, _):
        rows = {seed: mean_examples(np.array(row)) for seed, row in shares[model].items()}
        return ExampleScores(tuple("wxyz"), rows)

    scores = by_recipe(made_scores(runs, reader=read, **models))
    assert [model.label for model in scores.models] == ["a0 and 1 other run", "Theirs (1 run)"]
    assert {row["model"] for row in score_rows(scores)} == {"a0 and 1 other run", "theirs"}
    assert scores.num_pretraining_runs == 2
    assert scores.get("theirs", "d").by_seed == {0: 51.0, 1: 56.0}
    found = compare_arms(scores, "a0", "theirs", "d")
    assert [*found.by_seed.values()] == [10.0, 9.0]
    assert "finished encoder" in words().pretraining(scores)
    examples = scores.examples("theirs", "d").by_seed
    assert {run: row.value for run, row in examples.items()} == pytest.approx({0: 0.51, 1: 0.56})
    alone = made_scores({"theirs": runs["theirs"]}, theirs=models["theirs"])
    assert by_recipe(alone) is alone


def test_without_replicates_the_remedy_is_named():
    with pytest.raises(DataError, match=r"pretrained once.*recipe\.seed"):
        over_pretraining(made_scores(RUNS))


def test_replicates_of_a_study_differ_in_seeds_alone(tmp_path):
    folder, store = FakeStudy(steps=40, arms=ARMS[1:4], tasks=TASKS[:1]).write(tmp_path)
    # The first two are one recipe; the third has a rate of its own.
    rewrite(folder, [(0, "mlm", 2.0), (1, "mlm", 2.0), (2, "mlm", 1.0)])
    scores = study_scores(load_records(folder, store))
    assert [[m.name for m in group] for group in scores.replicates] == [["mlm", "clm"]]
    assert [m.pretraining_seeds for m in scores.models] == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]
    pooled = over_pretraining(scores)
    assert pooled.get("mlm", "pydocs-sc").estimate.num_seeds == 2
    assert by_recipe(scores) is scores  # one recipe was pretrained once


def test_states_of_one_seed_are_no_replicates_of_each_other(tmp_path):
    """After 20 steps the rate of the short run decays, and that of the long run does not."""
    names = [f"{name}-{seed}{step}" for name in ("short", "long") for seed in (0, 1)
             for step in ("", "-20")]  # fmt: skip
    arms = [(name, name, "MLM", (("mlm", 1 / n),) * n, 0) for n, name in enumerate(names, 1)]
    folder, store = FakeStudy(steps=40, arms=tuple(arms), tasks=TASKS[:1]).write(tmp_path)
    record = json.loads((folder / "study.json").read_text())
    for arm in record["arms"]:
        whole = arm["name"].removesuffix("-20")
        name, seed = whole.split("-")
        is_final = arm["name"] == whole
        steps = {"short": 24, "long": 40}[name] if is_final else 20
        arm |= {"arm": whole, "is_final": is_final, "model": "pico"}
        arm |= {"phases": [{"objective": "mlm", "steps": steps}], "seeds": {"init_seed": int(seed)}}
    (folder / "study.json").write_text(json.dumps(record))
    recipes = over_pretraining(study_scores(load_records(folder, store)))
    assert [model.name for model in recipes.models] == [
        "short-0",
        "short-0-20",
        "long-0",
        "long-0-20",
    ]
    assert {score.estimate.num_seeds for score in recipes.cells.values()} == {2}


def rewrite(folder, arms):
    """Give the arms of a study's record a seed, an objective and a peak rate."""
    record = json.loads((folder / "study.json").read_text())
    for arm, (seed, objective, peak) in zip(record["arms"], arms, strict=True):
        seeds = {"init_seed": seed, "data_seed": 0, "mask_seed": 0}
        recipe = {"seeds": seeds, "learning_rate": {"peak": peak}}
        phases = [{"objective": objective, "steps": 40, "mask_rate": 0.4}]
        arm |= {"seeds": seeds, "recipe": recipe, "phases": phases, "model": "pico"}
    (folder / "study.json").write_text(json.dumps(record))


@pytest.fixture
def replicated(tmp_path):
    """CLM and MLM, pretrained three times each and fine-tuned with one seed; CLM is better."""
    return replicated_study(tmp_path, seeds=(0,))


def replicated_study(tmp_path, *, seeds):
    runs = [(name, seed) for name in ("clm", "mlm") for seed in (1, 2, 3)]
    arms = []
    for name, seed in runs:
        label, phases = f"{name}-seed{seed}", ((name, 1 / seed),) * seed  # a state for each run
        arms.append((label, label, name.upper(), phases, 0.01 * seed + 0.06 * (name == "clm")))
    study = FakeStudy(steps=40, arms=tuple(arms), tasks=TASKS[:2], seeds=seeds)
    folder, store = study.write(tmp_path)
    rewrite(folder, [(seed, name, 2.0) for name, seed in runs])
    return folder, store


def test_frames_of_recipes_have_their_single_runs(replicated):
    frames = [analyze(replicated[0], by_pretraining=one).frame for one in (True, False)]
    assert frames[0].equals(frames[1])
    assert frames[0]["model"].nunique() == 6
    assert {*analyze(replicated[0], by_pretraining=True).means["num_seeds"]} == {3}


def test_models_have_an_optimizer_and_the_tokens_that_they_predicted(replicated):
    folder, store = replicated
    record = json.loads((folder / "study.json").read_text())
    record["provenance"]["recipe"] = {"optimizer": {"name": "adamw"}}
    for arm in record["arms"]:
        if arm["name"].startswith("mlm"):
            arm["recipe"]["optimizer"] = {"name": "muon"}
    (folder / "study.json").write_text(json.dumps(record))
    models = by_recipe(study_scores(load_records(folder, store))).models
    # 40 steps of 8,192 tokens; MLM predicts a third of them.
    assert {model.objective: (model.optimizer, model.labels) for model in models} == {
        "CLM": ("adamw", 327_680), "MLM": ("muon", 109_226),
    }  # fmt: skip


def test_the_report_names_what_runs_of_a_recipe_share(replicated):
    # Their seeds differ in the initial weights only, and all are fine-tuned with seed 0.
    page = write_report(*replicated).read_text()
    assert (
        "The order of rows and masks are the same in all runs, so no interval covers them." in page
    )
    assert "All runs share their fine-tuning seeds" in page


def test_runs_that_vary_everything_share_nothing():
    members = {r: [(f"{r}{seed}", seed) for seed in range(3)] for r in "ab"}
    models = {
        name: dataclasses.replace(model, pretraining_seeds=(seed,) * 3)
        for name, model in infos(**members).items()
        for seed in [int(name[1])]
    }
    own = {name: {1000 * int(name[1]) + n: 50.0 + n for n in range(2)} for name in models}
    text = words().pretraining(over_pretraining(made_scores(own, **models)))
    assert "pretrained 3 times" in text
    assert "no interval" not in text
    shared = {name: [50.0, 51.0] for name in models}
    text = words().pretraining(over_pretraining(made_scores(shared, **models)))
    assert "All runs share their fine-tuning seeds" in text


def test_figures_combine_runs_as_the_report_does(replicated, tmp_path):
    for name, options in (("combined", []), ("single", ["--single-runs"])):
        run_cli(
            "figures", str(replicated[0]), "--out", str(tmp_path / name), "--format", "md", *options
        )
    combined, single = (
        (tmp_path / name / "tables.md").read_text() for name in ("combined", "single")
    )
    assert "3 pretraining runs" in combined
    assert "Fixed in all runs: order of rows and masks." in combined
    assert "clm-seed1" not in combined
    assert "clm-seed1" in single


def test_files_and_frames_call_a_recipe_by_its_own_name(replicated, tmp_path):
    """Its scores are not those of its first run."""
    folder, store = replicated
    made = figures(folder, tmp_path, formats=["csv", "svg"])
    drawn = [path for path in made.paths if path.parent.name == "figures"]
    written = [path for path in (*drawn, tmp_path / "tables.csv") if path.suffix == ".csv"]
    assert len(written) > 1
    for path in written:
        rows = csv.DictReader(path.read_text().splitlines())
        assert {row["model"] for row in rows} == {"clm", "mlm"}
    found = analyze(folder, by_pretraining=True)
    assert {cell["model"] for cell in found.to_json()["cells"]} == {"clm", "mlm"}
    pairs = {(row["first"], row["second"]) for row in found.compare().table()}
    assert pairs <= {("clm", "mlm"), ("mlm", "clm")}
    single = analyze(folder)
    names = {row["model"] for row in single.table()}
    assert names == {arm.name for arm in load_records(folder, store).arms}
    assert {row["first"] for row in single.compare().table()} <= names


def test_recipes_of_all_groups_are_in_one_table():
    members = {r: [(f"{r}{seed}", seed) for seed in range(3)] for r in "ab"}
    models = {
        name: dataclasses.replace(model, group=name[0], total_steps=10)
        for name, model in infos(**members).items()
    }
    scores = made_scores({name: [50.0, 51.0] for name in models}, **models)
    assert [len(sheet.blocks[0]) for sheet in make_sheets(scores)] == [3, 3]
    [sheet] = make_sheets(over_pretraining(scores))
    assert len(sheet.blocks[0]) == 2


def test_a_report_of_replicated_recipes_compares_recipes(replicated):
    page = write_report(*replicated).read_text()
    assert "intervals are over pretraining runs" in page
    assert "Ticks: pretraining runs." in page
    assert "1 seed per run" in page
    assert "gives no interval" not in page  # the table has intervals over runs
    assert "with ★ if clearly above all others" in page
    assert not re.search(r"\d seeds\b", page)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page).group(1))
    assert data["arms"][6:] == ["clm", "mlm"]
    # A cell is that of a recipe, with a score for each pretraining run.
    [section] = re.findall(r'<section id="scores".*?</section>', page, re.DOTALL)
    table, of_runs, *_ = re.findall("<table.*?</table>", section, re.DOTALL)
    shown = [data["cells"][int(cell)] for cell in re.findall(r'data-cell="(\d+)"', table)][::2]
    scores = over_pretraining(study_scores(load_records(*replicated)))
    expected = [scores.get(model.name, "pydocs-sc").by_seed for model in scores.models]
    assert {cell["unit"] for cell in shown} == {"Pretraining run"}
    assert [dict(cell["seeds"]) for cell in shown] == [
        pytest.approx(runs, abs=0.005) for runs in expected
    ]
    # The second table has a row per run, none of which is called clearly best.
    assert of_runs.count("-seed") >= 6
    assert "star" not in of_runs


@pytest.mark.parametrize(
    ("recipes", "runs", "sentence"),
    [
        (2, 6, ""),
        (2, 7, "The first run of each recipe is drawn."),
        (13, 2, "Of 13 recipes the first run of each of the 8 best is drawn."),
    ],
)
def test_of_many_runs_the_first_of_each_recipe_is_drawn(tmp_path, recipes, runs, sentence):
    names = [(f"r{recipe}-seed{run}", recipe) for recipe in range(recipes) for run in range(runs)]
    models = infos(**{
        f"r{number}": [(name, place) for place, (name, of) in enumerate(names) if of == number]
        for number in range(recipes)
    })  # fmt: skip
    arms = tuple((name, name, "MLM", (("mlm", 1.0),), 0.0) for name, _ in names)
    study = FakeStudy(steps=20, arms=arms, tasks=TASKS[:1], learning_rates=(1e-4,), seeds=(0,))
    records = load_records(*study.write(tmp_path))
    by_model = {name: [50.0 + recipe, 51.0 + recipe] for name, recipe in names}
    scores = over_pretraining(made_scores(by_model, **models))
    few = few_arms(records, scores)
    assert choice_sentence(records, few, scores) == sentence
    best = [f"r{recipe}" for recipe in range(recipes)][-8:]
    assert {arm.label for arm in few.arms} == (
        {name for name, _ in names} if runs == 6 else {*best}
    )


def test_claims_and_figures_are_over_pretraining_runs_if_asked(replicated, tmp_path):
    folder, _ = replicated
    only = ["claims", str(folder), "--only", "C01", "--json"]
    alone, pooled = (json.loads(run_cli(*only, *more)) for more in ([], ["--by-pretraining"]))
    assert [claims["claims"][0]["verdict"] for claims in (alone, pooled)] == ["undecided", "false"]
    shown = run_cli(*only[:-1], "--by-pretraining", "--details")
    assert " mlm " in shown  # recipes, without the seed of a run
    assert "-seed" not in shown
    run_cli("figures", str(folder), "--by-pretraining", "--out", str(tmp_path), "--format", "md")
    assert "3 pretraining runs" in (tmp_path / "tables.md").read_text()


def test_the_rate_figure_of_recipes_averages_seeds_and_then_runs(tmp_path):
    records = load_records(*replicated_study(tmp_path, seeds=(0, 1)))
    chart = scores_by_learning_rate(over_pretraining(study_scores(records)))
    assert "mean over pretraining runs with its 95 % interval" in chart.caption
    points = chart.points[chart.points["panel"] == chart.panels[0].key]
    assert [*points["series"].unique()] == ["clm", "mlm"]
    for point in points[points["series"] == "mlm"].itertuples():
        runs = [
            statistics.fmean(
                100 * result.test["accuracy"]
                for result in records.results_of(records.by_cell[f"mlm-seed{run}", "pydocs-sc"])
                if result.learning_rate == point.x
            )
            for run in (1, 2, 3)
        ]
        assert point.mean == pytest.approx(statistics.fmean(runs))
        half_width = 4.302653 * statistics.stdev(runs) / 3**0.5  # t with 2 degrees of freedom
        assert point.high - point.mean == pytest.approx(half_width)


def run_cli(*arguments):
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


def test_figures_of_recipes_say_that_intervals_are_over_pretraining_runs():
    scores = made_scores(RUNS, **MODELS)
    assert "2 fine-tuning seeds" in interval_note(scores)
    assert "do not cover pretraining variance" in interval_note(scores)
    assert interval_note(over_pretraining(scores)) == (
        "Intervals: 95 % over 2 to 3 pretraining runs (Student's t); each run is the mean of its "
        "fine-tuning seeds. Fixed in all runs: order of rows."
    )


def test_recipes_have_the_test_examples_of_their_runs():
    """Three pretraining runs of two fine-tunings each; recipes differ on test examples alone."""
    draw = np.random.default_rng(4)
    members = {r: [(f"{r}{seed}", seed) for seed in range(3)] for r in "ab"}
    matrices = {}
    for names in members.values():
        answers = draw.random(60) < 0.7
        for name, _ in names:
            flipped = draw.random((2, 60)) < 0.01
            matrices[name] = np.where(flipped, ~answers, answers).astype(float)
    scores = scores_with_examples(matrices, **infos(**members))
    found = compare_arms(over_pretraining(scores), "a0", "b0", "d")
    assert (found.num_pairs, found.num_examples) == (3, 60)
    # An example's part is its mean over all fine-tunings of the recipe.
    means = [np.mean([matrices[name].mean(axis=0) for name, _ in members[r]], axis=0) for r in "ab"]
    error = 100 * np.std(means[0] - means[1], ddof=1) / np.sqrt(60)
    assert found.example_error == pytest.approx(error)
    assert found.p_adjusted == pytest.approx(found.p_value)
    assert found.p_adjusted > found.p_adjusted_over_seeds
    alone = dict(matrices, b2=matrices["b2"][:, :50])
    shorter = dataclasses.replace(scores, examples=example_reader(alone))
    found = compare_arms(over_pretraining(shorter), "a0", "b0", "d")
    assert found.missing == "d: the runs of b0 have different test examples"
