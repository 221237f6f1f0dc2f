"""Registration: sealed before the first score, amended with a date, printed as a page."""

import json
import shutil
from functools import partial

import pytest

from biphasic.analysis.page.markdown import registration_page
from biphasic.errors import ConfigError, DataError, LockHeldError
from biphasic.locks import LOCK, hold
from biphasic.registration import read_registrations
from biphasic.study.run.record import write_study_report
from biphasic.study.run.register import Registered, could_register, register_study
from biphasic.study.study import Study
from small_root import QUIET, fake_result, fake_state, prepare, study_of, write_texts
from tiny_study import clm

ASK = {
    "name": "Q1",
    "question": "Is more better?",
    "comparisons": [
        {"arms": ["b", "a"], "forecast": {"difference": 2, "interval": [-1, 5]}},
    ],
}
ARMS = [
    {"name": "a", "phases": [clm(4)], "attention": "causal"},
    {"name": "b", "phases": [clm(8)]},
]


@pytest.fixture
def settings(tmp_path, make_task):
    """Return a function that makes the settings of a small study."""
    return partial(study_of, write_texts(tmp_path), make_task(tmp_path / "first"))


@pytest.fixture
def register(settings, tmp_path):
    """Return a function that registers a small study, with changes of its settings."""

    def call(*, spread=None, **changes):
        config = settings(**{"questions": [ASK], **changes})
        return register_study(Study(config, tmp_path / "runs"), console=QUIET, spread=spread)

    return call


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs/one"


@pytest.fixture
def store(tmp_path):
    return tmp_path / "runs/store"


@pytest.fixture
def states(settings, tmp_path):
    """States that the study evaluates."""
    return sorted(point.state for point in prepare(settings(), tmp_path / "runs").plan.points)


def test_a_registration_is_sealed_once(register, folder):
    [first] = register(spread=1.5)
    assert (first.amends, first.num_scores, first.changed) == (None, 0, ())
    assert [one.task for one in first.detectable] == ["first"]
    # Two seeds of an arm: 1.5 * sqrt(2) per difference, and t(0.975; 1) = 12.7.
    assert first.detectable[0].points > 12.7
    assert register() == register(spread=1.5) == (first,) == read_registrations(folder)
    with pytest.raises(ConfigError, match="is registered as it is"):
        register(spread=2)
    # Titles, descriptions and how steps are computed are not a part of it.
    assert register(title="Two", description="Other words") == (first,)


def test_a_registration_is_read_while_the_study_runs(register, settings, tmp_path, folder):
    known = register()
    with hold(folder / LOCK, remedy="wait"), pytest.raises(LockHeldError):
        register()  # what runs is not known yet
    write_study_report(prepare(settings(questions=[ASK]), tmp_path / "runs"))
    with hold(folder / LOCK, remedy="wait"):
        assert register() == known
        for change in ({"spread": 2}, {"questions": [{**ASK, "question": "Is less better?"}]}):
            with pytest.raises(LockHeldError):
                register(**change)


def test_a_margin_is_registered_with_the_power_to_find_the_forecast_and_a_level(register, folder):
    [plain] = register(spread=0.01)
    assert "margin" not in plain.fixed["questions"][0]
    assert "power" not in next(folder.glob("registrations/*/registration.json")).read_text()
    _, asked = register(spread=0.01, questions=[{**ASK, "margin": 2}])
    assert asked.changed == ("questions",)
    assert asked.fixed["questions"][0]["margin"] == 2
    [one] = asked.detectable
    assert (one.power_of_forecast, one.power_of_level) == pytest.approx((1, 1))  # spreads are tiny
    assert str(Registered("Title", (asked,))).endswith(
        "points; 100 % power to find the forecast; 100 % power to find a difference of 0 level"
    )
    page = registration_page("Title", (plain, asked))
    assert "| Detectable | Power: clear, if as forecast | Power: level, if zero |" in page
    assert "| 100 % | 100 % |" in page
    assert "level if all are level within 2 points" in page


def test_a_lock_that_is_being_written_is_not_to_be_deleted(register, folder):
    folder.mkdir(parents=True)
    (folder / ".lock").touch()
    with pytest.raises(LockHeldError) as refused:
        register()
    assert "delete" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"questions": [{**ASK, "question": "Is less better?"}]}, ("questions",)),
        ({"finetuning": {"seeds": [0, 2], "learning_rates": [1e-4]}}, ("grid", "seeds")),
        ({"recipe": {"max_seqlen": 32, "rows_per_step": 2}}, ("arms", "grid")),
        ({"arms": ARMS}, ("arms", "grid")),
    ],
)
def test_a_change_is_a_dated_amendment(register, states, store, changes, parts):
    [first] = register()
    fake_result(store, "0" * 32, state=states[0])
    again, amended = register(**changes)
    assert (again, amended.amends) == (first, first.id)
    assert set(amended.changed) == set(parts)
    # Other arms have no score yet, but that of the registered ones may have been seen.
    assert amended.num_scores == 1
    lines = str(Registered("Title", (again, amended))).splitlines()
    assert lines[1] == f"changed: {', '.join(amended.changed)}; scores of its arms then: 1"


def test_the_page_of_a_registration_names_an_arm_s_attention(register):
    page = registration_page("Title", register(arms=ARMS))
    assert "| a, causal | 4 |" in page
    assert "| b | 8 |" in page


def test_a_score_of_another_study_or_rate_refuses_the_first_registration(
    register, states, folder, store
):
    fake_state(store, states[0])  # training is no score
    fake_result(store, "0" * 32, state="another state")
    fake_result(store, "1" * 32, state=states[0])
    with pytest.raises(ConfigError, match=" 1 score "):
        register()
    assert read_registrations(folder) == ()


def test_changed_records_are_refused(register, folder):
    register()
    [path] = folder.glob("registrations/*/registration.json")
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "registered": "2001-01-01T00:00:00+00:00"}))
    with pytest.raises(DataError, match="changed since it was written"):
        read_registrations(folder)


def test_verify_names_a_changed_registration(register, settings, tmp_path, folder, cli):
    Study(settings(questions=[ASK]), tmp_path / "runs").save()
    register()
    verify = ("study", "verify", "one", "--root", tmp_path / "runs")
    assert cli(*verify)[0] == 0
    [path] = folder.glob("registrations/*/registration.json")
    path.write_text(path.read_text().replace('"registered": "20', '"registered": "19'))
    code, _, err = cli(*verify)
    assert code == 1
    assert "registration.json" in err


def test_an_amendment_without_what_it_amends_is_refused(register, folder):
    register()
    register(questions=[{**ASK, "question": "Is less better?"}])
    shutil.rmtree(min(folder.glob("registrations/*")))
    with pytest.raises(DataError, match="amends another registration"):
        read_registrations(folder)


def test_an_arm_that_occurs_twice_counts_once_in_what_is_detectable(register):
    """(b - a) - (c - a) is b - c."""
    of_pair = {"arms": ["b", "c"]}
    of_two = {"arms": ["b", "a"], "minus": ["c", "a"]}
    arms = [
        {"name": name, "phases": [clm(steps)]} for name, steps in zip("abc", (4, 8, 6), strict=True)
    ]
    questions = [
        {**ASK, "name": name, "comparisons": [one]}
        for name, one in (("Q1", of_pair), ("Q2", of_two))
    ]
    [record] = register(spread=1, arms=arms, questions=questions)
    first, second = record.detectable
    assert first.points == second.points


def test_arms_with_one_run_add_nothing_to_what_is_detectable(register):
    runs = [{"phases": [clm(steps)], "axes": {"recipe.seed": [0, 1, 2]}} for steps in (4, 8)]
    asked = {**ASK, "comparisons": [{"arms": ["pico-clm-8", "pico-clm-4"]}]}
    alone = [{"name": f"alone{steps}", "phases": [clm(steps)]} for steps in (5, 6, 7)]
    [without] = register(spread=1, arms=runs, questions=[asked])
    _, beside = register(spread=1, arms=[*runs, *alone], questions=[asked])
    assert beside.detectable == without.detectable != ()


def test_a_run_reminds_of_registration_while_it_can_still_come_first(
    register, settings, tmp_path, states, store
):
    study = prepare(settings(questions=[ASK]), tmp_path / "runs")
    assert could_register(study.plan)
    assert not could_register(prepare(settings(), tmp_path / "runs"))
    name = next(iter(study.plan.groups[0].run_ids()))
    fake_result(store, name, state=states[0])
    assert not could_register(study.plan)
    shutil.rmtree(store / "finetunes")
    register()
    assert not could_register(study.plan)


def test_a_study_without_questions_has_nothing_to_register(register):
    with pytest.raises(ConfigError, match="questions: none"):
        register(questions=[])
