"""The answers of docs/replication, on made-up scores of pretraining runs."""

import importlib.util
import sys
from pathlib import Path

import pytest
from fake_study import FakeStudy
from made_scores import made_scores

from biphasic.analysis.records import load_study
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo

SCRIPT = Path(__file__).parents[3] / "docs/replication/answers.py"
TASKS = ("sst2", "trec", "uner_en", "scifact")
DATASETS = tuple(DatasetInfo(task, "SC", "accuracy") for task in TASKS)


@pytest.fixture(scope="module")
def answers():
    spec = importlib.util.spec_from_file_location("answers", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["answers"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["answers"]


def recipe(name, *, clm=0, mlm=0, size="nano", rate=0.4, start=None, more=0):
    return ModelInfo(
        name, name, size=size, clm_steps=clm, mlm_steps=mlm, mask_rate=rate if mlm else None,
        start=start, continued_steps=more, identity=name,
    )  # fmt: skip


CLM, MLM = recipe("clm", clm=2400), recipe("mlm", mlm=2400)


def scores_of(models, values):
    """Return the scores of three pretraining runs: `values[model]` by task, or for every task."""
    cells = {
        (model.name, task): values[model.name][task]
        if isinstance(values[model.name], dict)
        else values[model.name]
        for model in models
        for task in TASKS
    }
    return made_scores(cells, datasets=DATASETS, **{model.name: model for model in models})


def question(answers, number):
    return next(question for question in answers.QUESTIONS if question.id == number)


def answer(answers, number, *gaps):
    """Answer a question from CLM at 50 points and MLM higher by the gap of each task."""
    mlm = {task: [50 + gap, 50.1 + gap, 49.9 + gap] for task, gap in zip(TASKS, gaps, strict=True)}
    scores = scores_of([CLM, MLM], {"clm": [49.9, 50.0, 50.1], "mlm": mlm})
    asked = question(answers, number)
    return asked.answer(answers.compare(scores, asked))


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ((20, 20, 0, 0), 1),
        ((20, 20, -20, 0), 1),  # named entities may prefer CLM
        ((20, 20, 0, -20), 0),
        ((20, 0, 0, 0), 0),
        ((-20, 20, -20, 20), -1),
        ((0.1, 0.1, 0.1, 0.1), 0),
    ],
)
def test_mlm_beats_clm_by_the_rule_of_the_plan(answers, gaps, expected):
    assert answer(answers, "Q2", *gaps) == expected


def test_comparisons_are_corrected_for_those_of_their_question(answers):
    scores = scores_of([CLM, MLM], {"clm": [49.9, 50.0, 50.1], "mlm": [51.0, 52.0, 54.0]})
    compared = answers.compare(scores, question(answers, "Q2"))
    # Differences 1.1, 2 and 3.9: t = 2.83 with 2 degrees of freedom, p = 0.1056; four alike.
    assert [one.p_value for one in compared] == [pytest.approx(4 * 0.10565, abs=2e-4)] * 4
    assert compared[0].mean == pytest.approx(7 / 3)
    assert compared[0].row.startswith("| MLM - CLM | sst2 | +2.33 (-1.2")


def test_a_question_without_its_models_is_not_answered(answers):
    scores = scores_of([CLM], {"clm": [49.9, 50.0, 50.1]})
    text = "\n".join(answers.tables(scores))
    assert text.count("Not computed yet.") == len(answers.QUESTIONS)


def test_models_are_found_by_how_they_were_trained(answers):
    models = [
        CLM, MLM, recipe("early", clm=300), recipe("pico", size="pico", clm=2400),
        recipe("half", clm=1200, mlm=1200), recipe("mlm20", mlm=2400, rate=0.2),
        recipe("from-clm", clm=2400, mlm=600, start="CLM", more=600),
        recipe("from-mlm", mlm=3000, start="MLM", more=600),
    ]  # fmt: skip
    scores = scores_of(models, {model.name: [1.0, 2.0, 3.0] for model in models})
    found = answers.Models(scores)
    assert [found.clm(), found.mlm(), found.clm(steps=300), found.clm("pico")] == [
        "clm", "mlm", "early", "pico",
    ]  # fmt: skip
    assert [found.both(0.5), found.mlm(rate=0.2), found.mlm(steps=300)] == ["half", "mlm20", None]
    assert [found.continued("CLM"), found.continued("MLM")] == ["from-clm", "from-mlm"]


@pytest.mark.parametrize(
    ("number", "clear", "expected"),
    [
        ("Q3", {"CLM - MLM, step 300": "++00", "gap at 300 - gap at 2,400": "++00"}, 1),
        ("Q3", {"CLM - MLM, step 300": "++00", "gap at 300 - gap at 2,400": "+000"}, 0),
        ("Q3", {"CLM - MLM, step 300": "--+0", "gap at 300 - gap at 2,400": "0000"}, -1),
        ("Q5", {"20 % - 30 %": "+-00"}, 1),
        ("Q5", {"20 % - 30 %": "++00", "20 % - 40 %": "++00", "20 % - 50 %": "++00"}, -1),
        ("Q5", {"20 % - 30 %": "++00", "20 % - 40 %": "+000", "20 % - 50 %": "++00"}, 0),
        ("Q7", {"nano's gap - pico's gap": "+00-"}, 1),
        ("Q7", {"nano's gap - pico's gap": "+00+"}, 0),
        ("Q7", {"nano's gap - pico's gap": "-0+0"}, -1),
    ],
)
def test_answers_follow_from_what_is_clear(answers, number, clear, expected):
    sign = {"+": 1.0, "-": -1.0, "0": 0.0}
    compared = [
        answers.Comparison(label, task, sign[mark], 1.0 if mark == "0" else 0.01)
        for label, marks in clear.items()
        for task, mark in zip(TASKS, marks, strict=True)
    ]
    assert question(answers, number).answer(compared) == expected


RATE_ARMS = tuple(
    (f"{objective}{run}", objective.upper(), objective.upper(), ((objective, share),), 0.0)
    for objective in ("clm", "mlm")
    for run, share in ((1, 1.0), (2, 0.9))  # shares, so that each run has a state of its own
)


def rate_study(folder, tests, **changes):
    """Return two runs of CLM and of MLM on one task: `tests[arm]` at 1e-3 and 2e-3, seeds 0 and 1.

    The second rate has the better validation scores.
    """
    scores = {
        (arm, "trec", rate, seed): (rate, values[index][seed])
        for arm, values in tests.items()
        for index, rate in enumerate((1e-3, 2e-3))
        for seed in (0, 1)
    }
    study = FakeStudy(
        arms=RATE_ARMS, tasks=(("trec", "sc", "Questions", "accuracy", 0.5),),
        learning_rates=(1e-3, 2e-3), seeds=(0, 1), scores=scores, **changes,
    )  # fmt: skip
    return load_study(*study.write(folder))


TESTS = {
    "clm1": ((0.50, 0.52), (0.60, 0.62)),
    "clm2": ((0.50, 0.50), (0.52, 0.56)),
    "mlm1": ((0.30, 0.30), (0.50, 0.60)),
    "mlm2": ((0.30, 0.30), (0.45, 0.55)),
}


def test_stability_is_the_range_over_rates_and_the_deviation_over_seeds(answers, tmp_path):
    [found] = answers.stabilities(rate_study(tmp_path, TESTS))
    # CLM: means 51 and 61, 50 and 54; MLM: 30 and 55, 30 and 50. Deviations at the second rate.
    assert found.rate_range == pytest.approx((7.0, 22.5))
    assert found.seed_spread == pytest.approx((3 / 2**0.5, 10 / 2**0.5))
    assert found.smaller == 1


def test_stability_of_an_unfinished_study_is_refused(answers, tmp_path):
    records = rate_study(tmp_path, TESTS, missing={("clm1", "trec", 1e-3, 0)})
    with pytest.raises(SystemExit, match="some fine-tunings are missing"):
        answers.stabilities(records)


@pytest.mark.parametrize(
    ("ways", "expected"),
    [
        ("++0", "Supports the paper."), ("+++", "Supports the paper."), ("+0-", "Undecided."),
        ("--+", "Counts against the paper."),
    ],
)  # fmt: skip
def test_stability_is_answered_by_two_tasks_of_three(answers, ways, expected):
    shown = {"+": ((1.0, 2.0), (1.0, 2.0)), "-": ((2.0, 1.0), (2.0, 1.0)),
             "0": ((1.0, 2.0), (2.0, 1.0))}  # fmt: skip
    found = [answers.Stability(task, *shown[way]) for task, way in zip(TASKS, ways, strict=False)]
    assert next(iter(answers.stability_table(found))).endswith(expected)
