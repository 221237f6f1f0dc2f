"""Floors and references of a study: which ones it plans, and their results in the store."""

from __future__ import annotations

import json
import re

import pyarrow.parquet as pq
import pytest

from biphasic import evaluate
from biphasic.errors import ConfigError
from biphasic.files import write_json
from biphasic.model.loading.hub import LocalModel
from biphasic.records import ResultRecord
from biphasic.store import Store
from biphasic.study.plan.finetuning import compute_baselines
from biphasic.study.plan.finished import plan_notes
from biphasic.study.run.record import question_records
from tiny_study import GROUND, clm, plan_of, tiny_study
from tiny_use import write_jsonl, write_model


def study(*arms, tasks=("pydocs-sc",), **finetuning):
    config = {"seeds": [0, 1, 2], "protocol": {"max_steps": 2, **finetuning}}
    arms = arms or ({"name": "clm", "phases": [clm(4)]},)
    return tiny_study(*arms, tasks=[{"name": name} for name in tasks], finetuning=config)


def results_of(plan) -> dict[tuple[str, int], ResultRecord]:
    return {(one.name, one.seed): Store(plan.store).result(one.id) for one in plan.baselines}


def test_floors_and_references_have_results_like_fine_tunings(locate, prepared, tmp_path):
    config = study()
    plan = plan_of(config, GROUND, locate(config), root=tmp_path)
    compute_baselines(plan.baselines, plan.store, prepared.tokenizer)
    found = results_of(plan)
    floor, reference = found["floor:majority", 0], found["reference:bag-of-words", 0]
    assert len(found) == 2
    assert (floor.test["accuracy"], reference.test["accuracy"]) == (0.5, 1.0)
    assert (floor.task, floor.status) == ("pydocs-sc", "finished")
    assert (floor.baseline, reference.baseline) == (
        {"name": "floor:majority"},
        {"name": "reference:bag-of-words"},
    )
    assert {one.id for one in found.values()} == {*plan.result_ids()} - {*plan.run_ids()}


def test_examples_have_the_clusters_of_their_rows(tmp_path):
    """So they are the examples that results of encoders have."""
    rows = [{"text": f"word{n}", "label": n % 2, "cluster": f"page{n // 4}"} for n in range(40)]
    folder = tmp_path / "task"
    folder.mkdir()
    for split in ("train", "validation", "test"):
        write_jsonl(folder / f"{split}.jsonl", rows)
    write_json(folder / "labels.json", ["no", "yes"])
    model = write_model(tmp_path / "model", "eurobert")
    run = {"learning_rates": [1e-3], "seeds": [0], "protocol": {"max_steps": 1}, "quiet": True}
    made = evaluate(model, f"sc:{folder}", root=tmp_path / "root", workers=1, **run)
    tables = [
        pq.read_table(path).select(["id", "cluster"]).to_pydict()
        for path in made.folder.glob("*/scores.parquet")
    ]
    assert len(tables) == 3
    assert {*tables[0]["cluster"]} == {f"page{n}" for n in range(10)}
    assert tables[0] == tables[1] == tables[2]


def test_existing_results_stay(locate, prepared, tmp_path):
    config = study()
    plan = plan_of(config, GROUND, locate(config), root=tmp_path)
    compute_baselines(plan.baselines, plan.store, prepared.tokenizer)
    files = [*plan.store.glob("finetunes/*/result.json")]
    before = {path: path.stat().st_mtime_ns for path in files}
    compute_baselines(plan.baselines, plan.store, prepared.tokenizer)
    assert {path: path.stat().st_mtime_ns for path in files} == before


def test_those_that_read_training_examples_read_those_of_each_seed(locate, prepared, tmp_path):
    config = study(train_examples=3)
    plan = plan_of(config, GROUND, locate(config), root=tmp_path)
    assert {(one.name, one.seed) for one in plan.baselines} == {
        (name, seed) for name in ("floor:majority", "reference:bag-of-words") for seed in range(3)
    }
    whole = plan_of(study(), GROUND, locate(study()), root=tmp_path)
    assert not {one.id for one in plan.baselines} & {one.id for one in whole.baselines}
    compute_baselines(plan.baselines, plan.store, prepared.tokenizer)
    assert len(results_of(plan)) == 6


@pytest.mark.parametrize("widths", [1, 2])
def test_random_vectors_have_five_draws_for_each_width(
    widths, locate, prepared, tmp_path, make_retrieval
):
    arms = [
        {"name": "clm", "phases": [clm(4)]},
        {"name": "wide", "phases": [clm(4)], "recipe": {"model": "nano"}},
    ]
    folder = tmp_path / "tasks"
    make_retrieval(folder / "pydocs-ir")
    config = study(*arms[:widths], tasks=("pydocs-ir",))
    plan = plan_of(config, GROUND, locate(config, folder), root=tmp_path)
    names = [f"floor:random-vectors{end}" for end in ([""], [":clm", ":wide"])[widths - 1]]
    drawn = [(one.name, one.seed) for one in plan.baselines if one.vectors]
    assert drawn == [(name, draw) for name in names for draw in range(5)]
    compute_baselines(plan.baselines, plan.store, prepared.tokenizer)
    found = results_of(plan)
    assert found["reference:bm25", 0].test["ndcg_at_10"] == 1
    assert all(0 < found[key].test["ndcg_at_10"] <= 1 for key in drawn)


def asking(*arms, task="pydocs-sc", **changes):
    question = {"name": "Q1", "question": "Is it?", "comparisons": [{"arms": list(arms)}]}
    return tiny_study(
        {"name": "clm", "phases": [clm(4)]}, tasks=[{"name": task}], questions=[question], **changes
    )


def test_a_question_may_name_floors_and_references_of_its_tasks(locate):
    config = asking("clm", "reference:bag-of-words")
    plan = plan_of(config, GROUND, locate(config))
    [record] = question_records(config, tuple(task.info.name for task in plan.tasks))
    assert record.comparisons[0].second == ("reference:bag-of-words",)
    wrong = asking("clm", "floor:dictionary")
    fault = (
        "questions.0.comparisons.0: task 'pydocs-sc' has no baseline 'floor:dictionary'; "
        "it has floor:majority and reference:bag-of-words"
    )
    with pytest.raises(ConfigError, match=re.escape(fault)):
        plan_of(wrong, GROUND, locate(wrong))
    with pytest.raises(ConfigError, match="are baselines; name an arm"):
        asking("floor:majority", "reference:bag-of-words")
    compared = asking("clm", "floor:majority", compare=[{"arms": ["clm", "reference:tfidf"]}])
    with pytest.raises(ConfigError, match=r"compare\.0: task 'pydocs-sc' has no baseline"):
        plan_of(compared, GROUND, locate(compared))


def test_an_arm_without_a_known_width_has_a_note(locate, tmp_path, make_retrieval):
    make_retrieval(tmp_path / "tasks/pydocs-ir")
    model = tmp_path / "model"
    model.mkdir()
    encoders = {"e": LocalModel(model, "identity", None)}
    arms = {"name": "e", "encoder": {"pretrained": str(model)}}, {"name": "c", "phases": [clm(4)]}
    config = study(*arms, tasks=("pydocs-ir",))
    tasks = locate(config, tmp_path / "tasks")
    for settings, number in (({}, 1), ({"hidden_size": 8}, 0)):
        (model / "config.json").write_text(json.dumps(settings))
        plan = plan_of(config, GROUND, tasks, root=tmp_path, encoders=encoders)
        notes = [one for one in plan_notes(plan) if "random vectors" in one]
        assert len(notes) == number
        assert all(
            note.startswith("arm 'e': its config.json does not state the width") for note in notes
        )
