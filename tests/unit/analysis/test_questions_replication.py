"""The replication's questions: recorded as its study file has them, and answered as planned."""

import re
import tarfile
from pathlib import Path
from statistics import fmean, stdev

import pytest

from biphasic.analysis.page.content import study_answers
from biphasic.analysis.records import load_records
from biphasic.analysis.scores.source import study_scores
from biphasic.study.run.record import question_records
from biphasic.study.settings.load import load_study

CHECKOUT = Path(__file__).parents[3]
PAGE = CHECKOUT / "evidence/replication/README.md"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    root = tmp_path_factory.mktemp("replication")
    with tarfile.open(PAGE.with_name("records.tar.xz")) as tar:
        tar.extractall(root, filter="data")
    return lambda name: load_records(root / name, root / "store")


def test_the_records_have_the_questions_of_the_study_file(unpacked):
    study = unpacked("replication").study
    config = load_study(CHECKOUT / "studies/replication.yaml")
    assert study.questions == (*question_records(config, tuple(one.name for one in study.tasks)),)


def test_rules_that_count_clear_comparisons_give_the_answers_by_the_plan(unpacked):
    # By the plan's own words and a script of its own, before the study file had questions.
    found = {one.question.name: one.verdict for one in study_answers(unpacked("replication"))}
    assert found == {
        "Q1": "supported", "Q2": "counts against", "Q3": "undecided",
        "Q4": "supported", "Q5": "undecided", "Q7": "undecided",
    }  # fmt: skip


def test_the_page_has_the_range_over_rates_and_the_deviation_over_seeds(unpacked):
    """Q6: of each model's mean scores, and at its best rate; averaged over pretraining runs."""
    scores = study_scores(unpacked("replication-rates"))

    def mean_over_runs(task, objective, spread):
        models = [model.name for model in scores.models if model.objective == objective]
        return f"{fmean(spread(scores.cells[name, task]) for name in models):.2f}"

    def rate_range(score):
        means = [fmean(tests) for tests in score.by_rate.values()]
        return max(means) - min(means)

    def seed_deviation(score):
        return stdev(score.at_one_rate.values())

    _, section = PAGE.read_text(encoding="utf-8").split("**Q6. ")
    rows = re.findall(
        r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", section, re.M
    )
    assert rows == [
        (task, *(mean_over_runs(task, objective, spread)
                 for spread in (rate_range, seed_deviation) for objective in ("CLM", "MLM")))
        for task in ("sst2", "trec", "uner_en")
    ]  # fmt: skip
