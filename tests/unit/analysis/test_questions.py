"""Questions asked before the results: their answers, forecasts, and corrections."""

import csv
import dataclasses
import html
import importlib.util
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from fake_study import ARMS as FAKE_ARMS
from fake_study import MANIFEST, FakeStudy, seal_again
from fake_study import TASKS as FAKE_TASKS
from markdown_it import MarkdownIt
from test_replicates import replicated_study, run_cli
from test_study_examples import NUM_TEST, write_examples
from typer.testing import CliRunner

from biphasic import numerics
from biphasic.analysis.page.content import page_scores, study_answers, study_families
from biphasic.analysis.page.markdown import answers_page, registration_page
from biphasic.analysis.questions.answer import (
    Answer,
    ForecastOutcome,
    forecast_sentence,
    registration_sentences,
)
from biphasic.analysis.records import load_records
from biphasic.analysis.report import write_report
from biphasic.analysis.statistics.contrast import holm
from biphasic.analysis.study_file import read_study
from biphasic.analysis.words import words
from biphasic.cli.main import app
from biphasic.errors import DataError
from biphasic.records import DetectableRecord, ForecastRecord, QuestionRecord, RegistrationRecord
from biphasic.registration import (
    fixed_part,
    read_registrations,
    registration_id,
    write_registration,
)

TASKS = ["pydocs-sc", "pydocs-tc"]


def runs(name):
    return [f"{name}-seed{seed}" for seed in (1, 2, 3)]


def asked(first, second, *tasks, **more):
    return {"first": runs(first), "second": runs(second), "tasks": list(tasks or TASKS), **more}


def question(*comparisons, name="Q1", support=(1, 0), against=(1, None)):
    return {
        "name": name,
        "question": "Is CLM better than MLM?",
        "comparisons": list(comparisons),
        "supported_if": {"clear_for": support[0], "clear_against": support[1]},
        "against_if": {"clear_against": against[0], "clear_for": against[1]},
    }


@pytest.fixture
def ask(tmp_path):
    """Return a function that adds questions to a study of CLM and MLM with three runs each."""
    folder, store = replicated_study(tmp_path, seeds=(0,))

    def add(*questions, **changes):
        record = json.loads((folder / "study.json").read_text())
        record.update(questions=list(questions), **changes)
        (folder / "study.json").write_text(json.dumps(record))
        return folder, store

    return add


def answers_of(study):
    return study_answers(load_records(*study))


def test_comparisons_of_a_question_are_corrected_together_and_apart_from_others(ask):
    study = ask(
        question(asked("clm", "mlm")),
        question(asked("mlm", "clm", "pydocs-sc"), name="Q2"),
        compare=[asked("clm", "mlm", "pydocs-tc")],
    )
    first, second = answers_of(study)
    tests = [one.test for one in first.outcomes]
    assert [test.family_size for test in tests] == [2, 2]
    expected = holm([test.p_value for test in tests])
    assert [test.p_adjusted for test in tests] == pytest.approx([*expected])
    [other] = second.outcomes
    assert (other.test.family_size, other.test.mean) == (1, -tests[0].mean)
    # A pair of several families is shown with the correction of its question.
    [pair] = study_families(load_records(*study))["pydocs-tc"].of_plan
    assert (pair.is_planned, pair.family_size) == (True, 2)


def test_a_difference_is_clear_by_its_corrected_p_value(ask):
    [answer] = answers_of(ask(question(asked("clm", "mlm"))))
    [one, _] = answer.outcomes
    sign = 1 if one.test.mean > 0 else -1
    for p_adjusted, clear in ((0.04, sign), (0.06, 0)):
        test = dataclasses.replace(one.test, p_adjusted=p_adjusted)
        assert dataclasses.replace(one, test=test).clear == clear


def test_a_difference_of_differences_by_hand(ask):
    """(clm - mlm) - (mlm - clm) is twice the difference."""
    plain, twice = answers_of(
        ask(
            question(asked("clm", "mlm")),
            question(asked("clm", "mlm", minus=[runs("mlm"), runs("clm")]), name="Q2"),
        )
    )
    assert [one.test.mean for one in twice.outcomes] == pytest.approx(
        [2 * one.test.mean for one in plain.outcomes]
    )
    assert twice.outcomes[0].label.startswith("(")


def outcome(clear):
    class Clear:
        test, is_complete = object(), True

    Clear.clear = clear
    return Clear()


@pytest.mark.parametrize(
    ("clear", "verdict"),
    [
        ([1, 1, 0], "supported"),
        ([1, 0, 0], "undecided"),
        ([1, 1, -1], "undecided"),
        ([-1, -1, 0], "counts against"),
        ([-1, -1, 1], "counts against"),
        ([0, 0, -1], "undecided"),
    ],
)
def test_the_rule_of_the_study_decides(clear, verdict):
    record = QuestionRecord(**question(asked("a", "b"), support=(2, 0), against=(2, None)))
    answer = Answer(record, tuple(map(outcome, clear)), "seed")
    assert answer.verdict == verdict
    strict = QuestionRecord(**question(asked("a", "b"), support=(2, 0), against=(2, 0)))
    mixed = Answer(strict, tuple(map(outcome, [-1, -1, 1])), "seed")
    assert mixed.verdict == "undecided"


def test_an_answer_waits_for_all_scores(ask):
    study = ask(question(asked("clm", "mlm")))
    for result in (study[1] / "finetunes").glob("*/result.json"):
        if json.loads(result.read_text())["task"] == "pydocs-tc":
            result.unlink()
    [answer] = answers_of(study)
    assert answer.verdict == "no data"
    assert words().answer(answer) == "No data: 1 of 2 comparisons has no scores yet."


def test_arms_without_a_common_seed_have_scores_and_no_answer(ask):
    study = ask(question(asked("clm", "mlm")))
    record = json.loads((study[0] / "study.json").read_text())
    for arm in record["arms"]:
        if arm["name"].startswith("mlm"):
            arm["seeds"]["init_seed"] += 10
    (study[0] / "study.json").write_text(json.dumps(record))
    [answer] = answers_of(study)
    assert answer.verdict == "no data"
    assert words().answer(answer) == "No data: some of its arms have no seed in common."


@pytest.mark.parametrize(
    ("measured", "covered", "score"),
    [
        (3.0, True, 5.0),  # inside: the width
        (-1.0, True, 5.0),  # at an end
        (6.0, False, 5 + 20 * 2),  # two points above
        (-1.5, False, 5 + 20 * 0.5),
    ],
)
def test_the_interval_score_by_hand(measured, covered, score):
    forecast = ForecastRecord(difference=1, interval=(-1, 4))
    outcome = ForecastOutcome(forecast, measured)
    assert (outcome.is_covered, outcome.interval_score) == (covered, pytest.approx(score))


def test_the_report_opens_with_answers_and_forecasts(ask):
    forecast = {"difference": 0, "interval": [-50, 50]}
    wrong = {"difference": -40, "interval": [-50, -30]}
    study = ask(
        question(
            asked("clm", "mlm", "pydocs-sc", forecast=forecast),
            asked("clm", "mlm", "pydocs-tc", forecast=wrong),
        )
    )
    page = write_report(*study).read_text()
    assert page.index('id="questions"') < page.index('id="scores"')
    [answer] = answers_of(study)
    assert words().answer(answer) in page
    assert "<h3>Forecasts</h3>" in page
    assert "1 of 2 intervals of 90\N{NO-BREAK SPACE}% covers the measured difference" in page
    assert forecast_sentence([answer]).startswith("1 of 2")
    text = (study[0] / "report/questions.csv").read_text()
    rows = [*csv.DictReader(text.splitlines())]
    assert [(row["dataset"], row["covered"]) for row in rows] == [
        ("pydocs-sc", "yes"), ("pydocs-tc", "no"),
    ]  # fmt: skip
    first = answer.outcomes[0]
    assert float(rows[0]["p_corrected"]) == first.p_corrected
    assert float(rows[0]["interval_score"]) == 100.0
    write_report(*ask())
    assert not (study[0] / "report/questions.csv").exists()


def test_answers_read_all_examples_however_many_a_page_reads(ask):
    study = ask(question(asked("clm", "mlm")))
    path = study[0] / "study.json"
    record = json.loads(path.read_text())
    for task in record["tasks"]:
        task["num_test"] = 10**9
    path.write_text(json.dumps(record))
    draw = np.random.default_rng(0)
    for path in sorted((study[1] / "finetunes").glob("*/result.json")):
        write_examples(path, draw)
    _, recipes = page_scores(load_records(*study))
    with pytest.raises(DataError, match="more test examples than a page reads"):
        recipes.examples("clm-seed1", "pydocs-sc")
    [answer] = answers_of(study)
    found = [(one.test.num_examples, one.test.missing) for one in answer.outcomes]
    assert found == [(NUM_TEST, "")] * 2


def test_the_report_says_why_test_examples_are_unknown(ask):
    study = ask(question(asked("clm", "mlm", "pydocs-sc")))
    page = write_report(*study).read_text()
    [row] = csv.DictReader((study[0] / "report/questions.csv").read_text().splitlines())
    assert row["missing_examples"].endswith("scores.parquet: missing; skipped")
    assert f"Not over test examples: pydocs-sc: {row['missing_examples']}." in page
    assert "<h3>Forecasts</h3>" not in page  # none was made


@pytest.mark.parametrize(
    ("seeds", "clm", "points"),
    [((0,), 0.6, "10.00"), ((0, 1, 2), 0.6, "10.00"), ((0,), 0.49999, "0.00")],
)
def test_a_difference_without_a_test_has_no_interval(tmp_path, seeds, clm, points):
    """With one seed, or the same difference with every seed, the spread is unknown."""
    [task, *_] = FAKE_TASKS[0]
    levels = {"mlm": 0.5, "clm": clm}
    scores = {
        (arm, task, 1e-4, seed): (level + seed / 100,) * 2
        for arm, level in levels.items()
        for seed in seeds
    }
    study = FakeStudy(
        steps=40, arms=FAKE_ARMS[1:3], tasks=FAKE_TASKS[:1], learning_rates=(1e-4,), seeds=seeds,
        scores=scores,
    ).write(tmp_path)  # fmt: skip
    record = json.loads((study[0] / "study.json").read_text())
    record["questions"] = [question({"first": ["clm"], "second": ["mlm"], "tasks": [task]})]
    (study[0] / "study.json").write_text(json.dumps(record))
    page = write_report(*study).read_text()
    assert points in page
    assert f"{points} to {points}" not in page
    for name in ("questions", "comparisons"):
        [row] = csv.DictReader((study[0] / f"report/{name}.csv").read_text().splitlines())
        assert (row["p_value"], row["low"], row["high"]) == ("", "", "")
    assert f"| +{points} |" in answers_page(load_records(*study))


def test_commands_print_the_answers(ask):
    study = ask(question(asked("clm", "mlm")), question(asked("mlm", "clm"), name="Q2"))
    printed = run_cli("study", "report", str(study[0]))
    answers = [f"{one.question.name}: {one.verdict}" for one in answers_of(study)]
    assert printed.splitlines()[:2] == answers


def test_answers_are_printed_as_markdown_with_forecasts_and_runs_so_far(ask):
    forecast = {"difference": 5, "interval": [1, 9.5]}
    folder, store = ask(question(
        asked("clm", "mlm", "pydocs-sc", forecast=forecast), asked("mlm", "clm", "pydocs-tc")
    ))  # fmt: skip
    [answer] = answers_of((folder, store))
    first, _ = answer.outcomes
    low, high = first.test.interval
    points = f"{first.test.mean:+.2f} ({low:+.2f} to {high:+.2f})"
    shown = run_cli("study", "report", str(folder), "--markdown")
    opening, _, heading, rule, _, heads, _, *rows = shown.splitlines()
    assert opening == " ".join([*sentences((folder, store)), forecast_sentence([answer])])
    assert heading == f"**Q1. Is CLM better than MLM?** {words().answer(answer)}"
    assert rule == words().rule(answer.question)
    assert heads.endswith("| Forecast (90 % interval) | Covered |")
    assert rows[0].startswith(f"| clm − mlm | pydocs-sc | {points} | ")
    assert rows[0].endswith(f"above zero | {first.detectable:.1f} | +5 (+1 to +9.5) | yes |")
    assert (len(rows), rows[1][-9:]) == (2, "| – | – |")
    for run in read_study(folder).runs:
        if (run.arm, run.task) == ("clm-seed1", "pydocs-sc"):
            (store / "finetunes" / run.id / "result.json").unlink()
    shown = run_cli("study", "report", str(folder), "--markdown")
    assert ", 2 pretraining runs so far |" in shown
    assert "the measured difference so far; good forecasts" in shown
    [answer] = answers_of((folder, store))
    [line, *_] = run_cli("study", "report", str(folder)).splitlines()
    assert line == f"Q1: {answer.verdict}, provisional: runs are missing or diverged"


def test_markdown_of_a_study_without_questions_is_refused(ask):
    outcome = CliRunner().invoke(app, ["study", "report", str(ask()[0]), "--markdown"])
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert isinstance(outcome.exception, DataError)
    assert "has no questions" in str(outcome.exception)


DAY = 86_400
REGISTERED = 1_790_000_000  # 2026-09-21, in seconds


def rewrite(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    seal_again(path.parent)


def date(seconds):
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


@pytest.fixture
def registered(ask):
    """Return a function that registers a study with a question; scores are of a day later."""
    folder, store = study = ask(question(asked("clm", "mlm")))
    for part, code in (("finetunes/*/result", "a"), ("states/*/state", ["a"])):
        for path in store.glob(f"{part}.json"):
            rewrite(path, code=code)

    def write(*, num_scores=0, score_date=REGISTERED + DAY, amends=None, changed=(), code="a"):
        for result in (store / "finetunes").glob("*/result.json"):
            rewrite(result, sealed=date(score_date))
        fixed = fixed_part(read_study(folder))
        code = {"biphasic": "1", "pretraining": "a", "finetuning": code}
        record = RegistrationRecord(
            format="biphasic.registration/1",
            id=registration_id(fixed, code, amends),
            registered=date(REGISTERED),
            amends=amends,
            changed=changed,
            num_scores=num_scores,
            fixed=fixed,
            code=code,
            detectable=[DetectableRecord(question="Q1", comparison=0, task="pydocs-sc",
                                         points=4.2, spread=1)],
            spread_from="a standard deviation over runs of 1 points",
        )  # fmt: skip
        write_registration(folder, record, number=len(read_registrations(folder)) + 1)
        return record

    write.study, write.ask = study, ask
    return write


def sentences(study):
    return registration_sentences(load_records(*study))


def test_the_report_says_registered_before_the_first_score_only_if_records_do(registered):
    study = registered.study
    assert sentences(study) == ["These questions were not registered before the results."]
    page = write_report(*study)
    record = registered()
    first, order = sentences(study)
    expected = f"Registered 2026-09-21 14:13:20 UTC as {record.id[:12]}, with no score"
    assert first == f"{expected} of its arms in the store."
    assert order == "Registered before the first score, which is of 2026-09-22 14:13:20 UTC."
    assert order in write_report(*study).read_text()
    # A result of an earlier date, or a later change of the study, takes the sentence away.
    result = next((study[1] / "finetunes").glob("*/result.json"))
    rewrite(result, sealed=date(REGISTERED - 1))
    assert sentences(study)[-1].startswith("Registered after the first score")
    rewrite(result, sealed=date(REGISTERED + 1))
    registered.ask(question(asked("clm", "mlm", "pydocs-sc")))
    assert sentences(study)[-1] == (
        "The study was changed after that (questions), and not registered again."
    )
    assert "before the first score" not in write_report(*study).read_text()
    assert page.is_file()


AFTER = {"num_scores": 6, "changed": ("questions",)}


@pytest.mark.parametrize(
    ("steps", "last"),
    [
        ([{}, {"changed": ("questions",)}], "Amended before the first score"),
        ([{}, AFTER], "Amended after the first score"),
        ([{}, AFTER, {"changed": ("arms",)}], "Amended after the first score"),  # it stays seen
        ([{"score_date": REGISTERED - DAY}], "Registered after the first score"),
    ],
)
def test_the_last_sentence_says_whether_scores_were_seen(registered, steps, last):
    amends = None
    for step in steps:
        amends = registered(amends=amends, **step).id
    said = sentences(registered.study)
    assert said[-1].startswith(last)
    seen = "with 6 scores of its arms in the store: questions changed."
    assert any(one.endswith(seen) for one in said) == (AFTER in steps)
    # Copies have other dates of files, as after `cp -r` or `git clone`.
    for path in registered.study[1].glob("finetunes/*/result.json"):
        os.utime(path, (REGISTERED + DAY, REGISTERED + DAY))
    assert sentences(registered.study) == said


OTHER_CODE = "Scores were made by other code than was registered."


def test_scores_by_other_code_than_was_registered_are_named(registered, monkeypatch):
    registered(code="b")
    assert OTHER_CODE in sentences(registered.study)
    lists = {**numerics.known_code(), "finetuning": {"3": ["a", "b"]}}
    monkeypatch.setattr(numerics, "known_code", lambda: lists)
    assert OTHER_CODE not in sentences(registered.study)  # the golden numbers say they are equal
    state = next((registered.study[1] / "states").glob("*/state.json"))
    rewrite(state, code=["a", "c"])
    assert OTHER_CODE in sentences(registered.study)


@pytest.mark.parametrize("is_edited", [True, False])
def test_a_damaged_registration_is_a_problem_and_proves_nothing(registered, is_edited):
    registered()
    [path] = registered.study[0].glob("registrations/*/registration.json")
    if is_edited:
        path.write_text(path.read_text().replace("2026-09-21", "2026-09-20"))
    else:
        path.with_name(MANIFEST).unlink()
    records = load_records(*registered.study)
    assert any("registration" in one.text for one in records.problems)
    [sentence] = registration_sentences(records)
    assert sentence.startswith("The registration is damaged, so it proves nothing")


def test_results_of_older_versions_have_the_dates_of_their_files(registered):
    registered()
    for path in registered.study[1].glob("finetunes/*/result.json"):
        rewrite(path, sealed=None)
        os.utime(path, (REGISTERED + DAY, REGISTERED + DAY))
    assert sentences(registered.study)[-1] == (
        "Registered before the first score, which is of 2026-09-22 14:13:20 UTC, by the dates of "
        "files, which a copy changes."
    )


def test_packed_records_show_what_was_registered_and_when(registered, tmp_path):
    forecast = {"difference": 5, "interval": [1, 9.5]}
    registered.ask(question(asked("clm", "mlm", forecast=forecast)))
    registered()
    path = Path(__file__).parents[3] / "evidence/records.py"
    spec = importlib.util.spec_from_file_location("docs_records", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.pack_records([registered.study[0]], tmp_path / "records.tar.xz")
    module.write_reports([tmp_path / "records.tar.xz"], tmp_path / "unpacked")
    folder = tmp_path / "unpacked/study"
    records = load_records(folder)
    assert registration_sentences(records) == sentences(registered.study)
    page = answers_page(records)
    assert page == answers_page(load_records(*registered.study))
    assert "Registered before the first score, which is of 2026-09-22" in page
    assert "2 of 2 intervals of 90 % cover" in page
    assert (folder / "report/questions.csv").is_file()


def test_names_are_no_links_in_markdown(registered):
    record = registered()
    for name in ("[x](http://a.example)", "a|b", "<b>", r"a\|b", "http://b.example"):
        page = registration_page(name, [record])
        rendered = MarkdownIt("gfm-like", {"linkify": False}).render(page)
        assert f"<h1>Registration: {html.escape(name)}</h1>" in rendered
        assert "http://" not in page  # GitHub makes links of bare addresses


def test_the_page_to_commit_has_hash_rule_forecasts_and_power(registered):
    record = registered()
    page = registration_page("First light", [record])
    assert f"hash `{record.id}`, scores of its arms then: 0" in page
    assert "## Q1. Is CLM better than MLM?" in page
    assert "| clm-seed1 − mlm-seed1 | pydocs-sc | – | 4.2 |" in page
    assert "Rule: supported if 1 or more are clearly above zero" in page


def test_p_values_are_also_corrected_for_all_questions_of_the_study(ask):
    second = question(asked("clm", "mlm", "pydocs-tc")) | {"name": "Q2"}
    study = ask(question(asked("clm", "mlm", "pydocs-sc")), second)
    write_report(*study)
    rows = [*csv.DictReader((study[0] / "report/questions.csv").read_text().splitlines())]
    alone = [float(row["p_corrected"]) for row in rows]  # one comparison each
    assert [float(row["p_of_study"]) for row in rows] == pytest.approx(holm(alone))
