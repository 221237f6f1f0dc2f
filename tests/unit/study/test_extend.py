"""Grids that are extended while validation chooses one of their ends."""

import json
import re
import shutil

import pytest
import yaml

from biphasic import evaluate, finetune
from biphasic.analysis.estimate import GridScore, chosen_ends
from biphasic.analysis.records import load_records
from biphasic.errors import ConfigError
from biphasic.evaluation.evaluate import chosen_tasks, plan_evaluation, rates_for
from biphasic.model.loading.hub import fetch_model
from biphasic.progress import progress_console
from biphasic.records import ResultRecord, StudyRecord
from biphasic.registration import fixed_part
from biphasic.store import RESULT, Store
from biphasic.study.jobs import GridRun, due_runs
from biphasic.study.pins import read_pins
from biphasic.study.plan.finetuning import rates_beyond
from biphasic.study.run.jobs import load_job
from biphasic.study.settings.study import TaskConfig
from biphasic.tasks.finetune import write_result
from mini_study import edit_json
from small_root import prepare, study_of, write_texts
from tiny_study import clm
from tiny_use import write_model, write_task

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unprobed", "undrawn")]

# With eight steps, both rates are far below the best one.
GRID = {"learning_rates": [1e-5, 3e-5], "seeds": [0, 1]}
PROTOCOL = {"max_steps": 8, "batch_size": 16}
BEYOND = [9e-5, 2.7e-4, 8.1e-4]


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A model, a task, and the evaluation of an extended grid in one process."""
    base = tmp_path_factory.mktemp("extend")
    model, task = write_model(base / "model", "eurobert"), write_task(base / "task", "sc")
    options = {**GRID, "protocol": PROTOCOL, "quiet": True}
    made = evaluate(model, task, root=base / "root", workers=1, **options)
    return model, task, options, made


def tried(evaluation):
    return sorted({run.learning_rate for run in evaluation.results})


def scores(evaluation):
    return {run.id: (run.validation, run.test) for run in evaluation.results}


def test_rates_beyond_have_the_ratio_of_the_two_outermost_ones_of_their_end():
    assert rates_beyond([5e-4, 1e-5, 2e-5, 2e-4], 2) == [5e-6, 2.5e-6, 1.25e-3, 3.125e-3]
    assert rates_beyond([1e-5, 1e-4], 0) == rates_beyond([1e-4], 3) == []


def test_an_end_is_chosen_by_validation_of_any_seed_and_not_by_a_tie():
    def runs(*scores):
        return [GridScore(r, seed, v, 1 - v, None) for seed, of in enumerate(scores)
                for r, v in of.items()]  # fmt: skip

    inner, low = {1: 0.5, 2: 0.9, 3: 0.6}, {1: 0.9, 2: 0.5, 3: 0.6}
    assert chosen_ends(runs(inner), [1, 2, 3]) == set()
    assert chosen_ends(runs(inner, low), [1, 2, 3]) == {1}
    assert chosen_ends(runs({1: 0.5, 2: 0.9, 3: 0.9}), [1, 2, 3]) == set()
    assert chosen_ends(runs(inner), [1, 2]) == {2}
    assert chosen_ends(runs({2: 0.9}), [2]) == set()  # one rate has no end
    # The highest rate diverged: it was tried, so the one before it is not an end.
    assert chosen_ends(runs({1: 0.5, 2: 0.9}), [1, 2, 3]) == set()


def test_a_grid_grows_for_all_seeds_while_validation_chooses_its_end(given):
    _, _, _, made = given
    assert tried(made) == [*GRID["learning_rates"], *BEYOND]  # three, and none below
    assert len(made.results) == 10
    assert {run.learning_rate for run in made.selected} == {8.1e-4}
    [line] = [line for line in made.sentences() if "best rate" in line]
    assert "8.1e-4 is the highest of 5 tried" in line
    assert "provisional (--extend" in line
    store = made.folder.parent
    [pin] = read_pins(store)
    assert Store(store).walk(RESULT) < {*pin.results}  # also those not yet due


def test_the_main_metric_of_the_study_decides(given, tmp_path):
    """Not that of the task's own description."""
    store, runs = tmp_path / "store", []
    by_rate = {1e-4: (0.5, 0.2), 2e-4: (0.9, 0.5), 4e-4: (0.6, 0.8), 8e-4: None}
    for place, (rate, values) in enumerate(by_rate.items()):
        runs.append(GridRun(id=f"{place}" * 64, learning_rate=rate, seed=0))
        if values:
            metrics = dict(zip(("accuracy", "macro_f1"), values, strict=True))
            record = ResultRecord(
                format="biphasic.finetune/1", id=runs[-1].id, state="s", task="t", kind="sc",
                metric="accuracy", learning_rate=rate, seed=0, status="finished", steps=1,
                validation=metrics, test=metrics, seconds=0,
            )  # fmt: skip
            write_result(Store(store).folder(RESULT, record.id), record, {})
    assert due_runs([("accuracy", runs)], 1, store) == [0, 1, 2]
    assert due_runs([("macro_f1", runs)], 1, store) == [0, 1, 2, 3]

    model, task, options, _ = given
    options = {**options, "learning_rates": [1e-3], "seeds": [0], "root": tmp_path / "root"}
    named = {"name": "tiny", "source": f"sc:{task}"}
    by_f1 = evaluate(model, TaskConfig(**named, metric="macro_f1"), **options)
    assert {run.metric for run in by_f1.results} == {"macro_f1"}
    # The same trainings: a metric changes none of them.
    by_accuracy = evaluate(model, TaskConfig(**named), **options)
    assert scores(by_f1) == scores(by_accuracy)


def test_the_main_metric_chooses_the_strength_of_a_probe(given, tmp_path):
    model, task, _, _ = given
    named = {"name": "tiny", "source": f"sc:{task}", "protocol": {"train": "head"}}
    options = {"root": tmp_path / "root", "workers": 1, "quiet": True}
    runs = [
        evaluate(model, TaskConfig(**named, **own), **options).results
        for own in ({}, {"metric": "accuracy"}, {"metric": "macro_f1"})
    ]
    own, same, other = ([run.id for run in each] for each in runs)
    assert own == same != other
    assert [run.metric for run in runs[2]] == ["macro_f1"]


def test_lora_that_no_layer_can_have_is_refused_before_work(given, tmp_path, make_task):
    model, task, options, _ = given
    lora = {"protocol": {"lora": {"rank": 2, "targets": ["nope"]}}}
    message = r"task '.*': protocol.lora.targets: no linear layer is named 'nope'; give .*q_proj"
    with pytest.raises(ConfigError, match=message):
        evaluate(model, task, root=tmp_path / "root", **{**options, **lora})
    pretrained = {"pretrained": str(model)}
    arms = [
        [{"name": "a", "phases": [clm(4)]}],
        [{"name": "a", "phases": [clm(4)], "recipe": {"model": pretrained}}],
        [{"name": "a", "encoder": pretrained}],
    ]
    texts = write_texts(tmp_path)
    for number, arm in enumerate(arms):
        settings = {"protocol": {"max_seqlen": 32, **lora["protocol"]}, "learning_rates": [1e-3]}
        corpus = {"sources": [str(texts)]}
        if number == 1:
            corpus["tokenizer"] = str(model)
        config = study_of(
            texts, make_task(tmp_path / f"task{number}"), arms=arm, finetuning=settings,
            corpus=corpus,
        )  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            prepare(config, tmp_path / "runs")
    assert not [*tmp_path.glob("runs/store/data/*/train")]  # nor is any text tokenised


def test_parts_and_interrupted_runs_give_the_same_runs(given, tmp_path, warm):
    model, task, options, made = given
    parts = evaluate(model, task, root=tmp_path / "parts", workers=2, **options)
    assert scores(parts) == scores(made)
    root = shutil.copytree(made.folder.parent.parent, tmp_path / "root")
    by_rate = {run.learning_rate: run.id for run in made.results}
    for rate in (9e-5, 8.1e-4):  # one in the middle, whose result decides about the next one
        shutil.rmtree(root / "store/finetunes" / by_rate[rate])
    assert scores(evaluate(model, task, root=root, workers=1, **options)) == scores(made)


def test_parts_have_missing_runs_alone(given, tmp_path):
    model, task, options, made = given
    root = shutil.copytree(made.folder.parent.parent, tmp_path / "root")
    gone = {run.id for run in made.results if run.learning_rate == 8.1e-4}
    for name in gone:
        shutil.rmtree(root / "store/finetunes" / name)
    settings = {**options, "root": root, "console": progress_console(quiet=options["quiet"])}
    del settings["quiet"]
    plan = plan_evaluation(
        model, chosen_tasks([task]), **settings, extend=3, libraries=None, revision=None
    )
    [group] = plan.groups
    parts = group.job(tokenizer=model, encoder=model).split(3)
    runs = [[run.id for run in scored.runs] for part in parts for scored in part.evaluations]
    assert sorted(runs) == sorted([name] for name in gone)


def test_extension_can_be_limited_or_switched_off(given, tmp_path, cli):
    model, task, options, made = given
    root = shutil.copytree(made.folder.parent.parent, tmp_path / "root")
    for extend, expected in ((0, []), (1, BEYOND[:1]), (3, BEYOND)):
        found = evaluate(model, task, root=root, workers=1, extend=extend, **options)
        assert tried(found) == [*GRID["learning_rates"], *expected]
    arguments = ["evaluate", model, "--task", f"sc:{task}", "--extend"]
    for more, message in (
        (["3", "--paper"], "extend.*'protocol: paper' has a fixed grid"),
        (["2", "--learning-rate", "1e-3"], "extend: 2 needs two learning_rates"),
        (["3", "--set", "train=head"], "train: head has no learning rate; remove --extend"),
    ):
        code, _, err = cli(*arguments, *more)
        assert code != 0
        assert re.search(message, err), err


def test_the_kept_model_may_be_of_a_rate_beyond_the_grid(given, tmp_path):
    model, task, options, _ = given
    made = finetune(model, task, tmp_path / "out", root=tmp_path / "root", workers=1, **options)
    assert made.record.learning_rate in BEYOND
    again = finetune(model, task, tmp_path / "out", root=tmp_path / "root", workers=1, **options)
    assert scores(again.evaluation) == scores(made.evaluation)


@pytest.mark.parametrize(
    ("width", "rates"),
    [
        (2048, (2e-5, 5e-5, 1e-4, 2e-4)),
        (768, (2e-5, 5e-5, 1e-4, 2e-4)),
        (384, (4e-5, 1e-4, 2e-4, 4e-4)),
        (64, (2.4e-4, 6e-4, 1.2e-3, 2.4e-3)),
        (8, (2.4e-4, 6e-4, 1.2e-3, 2.4e-3)),
    ],
)
def test_narrow_encoders_have_higher_default_rates(given, tmp_path, width, rates):
    model = shutil.copytree(given[0], tmp_path / "model")
    encoder, config = fetch_model(model), model / "config.json"
    edit_json(config, hidden_size=width)
    assert rates_for(encoder) == rates
    # As in a fine-tuned folder with a class of its own.
    config.write_text(json.dumps({"model_type": "own", "encoder": json.loads(config.read_text())}))
    assert rates_for(encoder) == rates


def test_finetune_tries_the_default_rates_of_the_width(given, tmp_path):
    model, task, options, _ = given
    del (options := {**options, "seeds": [0], "extend": 0})["learning_rates"]
    made = finetune(model, task, tmp_path / "out", root=tmp_path / "root", workers=1, **options)
    assert tried(made.evaluation) == [2.4e-4, 6e-4, 1.2e-3, 2.4e-3]


@pytest.fixture
def study(given, tmp_path):
    """A study of one finished encoder, whose grid is extended by two rates a side."""
    model, task, _, _ = given
    settings = {
        "name": "wide",
        "title": "Wide",
        "arms": [{"name": "theirs", "encoder": {"pretrained": str(model)}}],
        "tasks": [{"name": "tiny-sc", "source": f"sc:{task}"}],
        "finetuning": {**GRID, "extend": 2, "protocol": {**PROTOCOL, "max_seqlen": 64}},
    }
    file = tmp_path / "wide.yaml"
    file.write_text(yaml.safe_dump(settings), "utf-8")
    return file


def runs_of(root):
    return json.loads((root / "wide/study.json").read_text("utf-8"))["runs"]


def test_a_study_runs_extensions_that_are_due_and_counts_all_that_may_be(study, tmp_path, cli):
    root, workers = tmp_path / "root", ("--workers", "1")
    planned = cli("study", "plan", study, "--root", root)[1]
    assert "up to 12 trainings" in planned
    assert "8 of the trainings are beyond the grid" in planned
    code, _, err = cli("study", "run", study, "--root", root, *workers)
    assert code == 0, err
    rates = [*GRID["learning_rates"], *BEYOND[:2]]
    assert sorted({run["learning_rate"] for run in runs_of(root)}) == rates
    assert len(runs_of(root)) == 8
    assert "finished" in cli("study", "status", root / "wide")[1].splitlines()[0]
    assert cli("study", "verify", root / "wide")[0] == 0
    # What a registration fixes does not depend on the results.
    whole = load_records(root / "wide").study
    before = whole.model_copy(
        update={"runs": tuple(r for r in whole.runs if r.learning_rate in GRID["learning_rates"])}
    )
    assert fixed_part(whole) == fixed_part(before)
    assert fixed_part(whole)["grid"]["extend"] == 2
    assert "extend" not in fixed_part(StudyRecord(**{**whole.model_dump(), "extend": 0}))["grid"]

    # A run beyond the grid is lost: the study is not finished, and runs it again.
    lost = next(run["id"] for run in runs_of(root) if run["learning_rate"] == BEYOND[1])
    shutil.rmtree(root / "store/finetunes" / lost)
    assert "unfinished" in cli("study", "status", root / "wide")[1]
    clean = cli("study", "clean", "--root", root, "--delete")
    assert clean[0] == 0, clean
    assert cli("study", "run", study, "--root", root, *workers)[0] == 0
    # Its job counts what came before, and begins with what is missing.
    for run in runs_of(root):
        if run["learning_rate"] in BEYOND:
            shutil.rmtree(root / "store/finetunes" / run["id"])
    [job], reports = [*(root / "store/jobs").iterdir()], []
    load_job(root / "store", job.stem).run(reports.append)
    assert [(r.done, r.total) for r in reports] == [
        (n, 12 if n <= 12 else 24) for n in range(1, 25)
    ]
    baselines = {run.id for run in load_records(root / "wide").study.baselines}
    made = Store(root / "store").walk(RESULT)
    assert {run["id"] for run in runs_of(root)} == made - baselines
