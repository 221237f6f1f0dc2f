"""Plans before there are data, their numbers, their words, their picture, their differences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from biphasic.config import parse_config
from biphasic.data.building.build import build_corpus
from biphasic.data.building.config import CorpusConfig
from biphasic.errors import ConfigError, DataError
from biphasic.model.shape import PRESETS, architecture_shape
from biphasic.store import complete_folder
from biphasic.study.inputs.corpus import remember
from biphasic.study.plan.cost import job_costs
from biphasic.study.plan.finished import plan_notes
from biphasic.study.plan.summary import StudyPlan, difference_lines, summarise_plan
from biphasic.study.resolve import resolve
from biphasic.study.settings.load import study_schema
from biphasic.study.settings.study import StudyConfig
from biphasic.study.study import Study
from biphasic.tasks.hub_tasks import published_text
from tiny_study import clm, mlm, tiny_study
from tiny_use import write_task

ROOT = Path(__file__).parents[3]


RECIPE = {"rows_per_step": 4, "learning_rate": {"peak": 1e-3, "decay_steps": 2}}
RAW = {
    "title": "S & more",
    "recipe": RECIPE,
    "corpus": {"sources": ["hf:owner/text"], "tokenizer": "owner/model"},
    "arms": [
        {"name": "clm", "phases": [clm(10)]},
        {"name": "two", "phases": [clm(4), mlm(6)]},
        {"name": "untrained"},
    ],
    "evaluation_points": [{"arms": ["clm"], "steps": [3]}],
    "tasks": [{"name": "msmarco"}, {"name": "nq"}, {"name": "pydocs-sc"}],
    "finetuning": {"seeds": [0, 1], "learning_rates": [1e-4], "protocol": {"max_seqlen": 64}},
}


def study(**changes):
    return tiny_study(**{**RAW, **changes})


def previewed(root, **changes):
    return resolve(Study(study(**changes), root), missing="placeholder").plan


def states_of(plan):
    return [(point.name, point.state) for point in plan.points]


def summed(root, **changes):
    return summarise_plan(previewed(root, **changes))


def test_placeholders_are_listed_and_depend_on_the_description(tmp_path):
    one = previewed(tmp_path)
    assert any("hf:owner/text, not tokenised" in note for note in one.assumed)
    assert any("owner/model, assumed to have 128,256" in note for note in one.assumed)
    assert any("msmarco, nq, pydocs-sc, not built" in note for note in one.assumed)
    assert states_of(previewed(tmp_path, name="other", title="T")) == states_of(one)
    other = previewed(tmp_path, corpus={"sources": ["hf:owner/more"], "tokenizer": "owner/model"})
    states = [[state for _, state in states_of(each)] for each in (one, other)]
    assert [a == b for a, b in zip(*states, strict=True)] == [False, False, True, False]


def test_a_corpus_of_the_hub_is_the_one_that_a_run_found_for_its_settings(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join(f'{{"text": "Document {n}."}}' for n in range(40)))
    one = {"sources": ["hf:owner/text"], "vocab_size": 300, "heldout_fraction": 0.3}
    store = Study(study(), tmp_path).store
    made = CorpusConfig(**{**one, "sources": [str(tmp_path / "a.jsonl")]})
    build_corpus(made, store / "data" / "made", say=lambda _: None)

    def is_used(**changes):
        found = previewed(tmp_path, corpus={**one, **changes}).assumed
        return not any(note.startswith("corpus:") for note in found)

    assert not is_used()
    remember(store, CorpusConfig(**one), store / "data" / "made")
    assert is_used()
    assert not is_used(vocab_size=301)
    assert not is_used(sources=["hf:owner/text?revision=v1"])


def test_a_plan_finds_the_corpus_that_a_run_built_from_the_hub(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text("\n".join(f'{{"text": "Document {n}."}}' for n in range(40)))
    settings = {"sources": ["hf:owner/text"], "vocab_size": 300, "heldout_fraction": 0.3}
    corpus = {**settings, "sources": [str(tmp_path / "a.jsonl")]}  # in place of a commit
    monkeypatch.setattr(CorpusConfig, "at_commits", lambda _: CorpusConfig(**corpus))
    changes = {"corpus": settings, "tasks": [], "evaluation_points": []}
    made = resolve(Study(study(**changes), tmp_path), missing="build").plan
    found = previewed(tmp_path, **changes)
    assert (states_of(found), found.assumed) == (states_of(made), ())


def test_all_missing_local_data_are_listed(tmp_path):
    tasks = [{"name": "a", "source": "sc:none"}, {"name": "b", "source": str(tmp_path / "no.yaml")}]
    with pytest.raises(DataError) as refused:
        previewed(tmp_path, tasks=[*tasks, {"name": "pydocs-tc"}], corpus={"folder": "nowhere"})
    for part in ("nowhere", "sc:none", "no.yaml"):
        assert part in str(refused.value)


def test_a_custom_task_is_read_immediately(tmp_path, make_task):
    make_task(tmp_path / "mine")
    found = previewed(tmp_path, tasks=[{"name": "m", "source": f"sc:{tmp_path}/mine"}])
    [task] = found.tasks
    assert (task.info.name, task.num_examples["train"]) == ("m", 12)
    assert not any("tasks:" in note for note in found.assumed)


def test_numbers_of_training_examples_make_a_task_each(tmp_path, make_task):
    make_task(tmp_path / "mine")
    task = {"name": "m", "source": f"sc:{tmp_path}/mine", "protocol": {"max_epochs": 8}}
    found = previewed(tmp_path / "store", tasks=[{**task, "train_examples": [4, 12]}])
    assert [task.info.name for task in found.tasks] == ["m-4", "m-12"]
    assert [task.num_examples["train"] for task in found.tasks] == [4, 12]
    assert [task.num_steps for task in found.tasks] == [8, 8]
    written = study(tasks=[{**task, "train_examples": [4]}]).model_dump(mode="json")
    assert study(**written).tasks == study(tasks=[{**task, "train_examples": [4]}]).tasks
    with pytest.raises(DataError, match=r"'m-13'.*train_examples: 13.* 12"):
        previewed(tmp_path / "store", tasks=[{**task, "train_examples": [13]}])
    with pytest.raises(ConfigError, match="m-4"):
        study(tasks=[{**task, "train_examples": [4]}, {"name": "m-4", "source": "sc:x"}])


def test_few_questions_name_another_fine_tuning_than_few_windows(tmp_path):
    """`train_examples` once drew windows: results of that must not be taken for new ones."""
    sizes = {"train": 12, "validation": 4, "test": 4}
    tasks = []
    for kind in ("sc", "qa"):
        task = {"name": kind, "source": str(write_task(tmp_path / kind, kind, sizes))}
        few = {"name": f"{kind}4", "protocol": {"train_examples": 4}}
        tasks += [task, {**task, **few}]
    settings = {
        task.info.name: task.determinants
        for task in previewed(tmp_path / "store", tasks=tasks).tasks
    }
    assert settings["qa4"]["draws"] == "examples"
    assert settings["qa4"]["train_examples"] == 4
    assert not any("draws" in settings[name] for name in ("sc", "sc4", "qa"))


def test_one_task_under_two_names_is_said(tmp_path, make_task):
    make_task(tmp_path / "mine")
    task = {"name": "m", "source": f"sc:{tmp_path}/mine"}
    other = {**task, "name": "other", "protocol": {"max_steps": 3}}
    found = previewed(tmp_path / "store", tasks=[task, {**task, "name": "again"}, other])
    [note] = [note for note in plan_notes(found) if "count them twice" in note]
    assert note.startswith("tasks 'm' and 'again' have the same data")


def test_tasks_with_few_steps_of_fine_tuning_are_named_once(tmp_path, make_task):
    make_task(tmp_path / "mine")
    epoch = {"name": "m", "source": f"sc:{tmp_path}/mine", "protocol": {"batch_size": 1}}
    tasks = [
        epoch,
        {**epoch, "name": "long", "protocol": {"batch_size": 1, "max_epochs": 50}},
        {**epoch, "name": "probe", "protocol": {"train": "head"}},
    ]
    found = previewed(tmp_path / "store", tasks=tasks)
    steps = {task.info.name: task.num_steps for task in found.tasks}
    assert 0 == steps["probe"] < steps["m"] < 100 <= steps["long"]
    [note] = [note for note in plan_notes(found) if "few steps" in note]
    assert note.startswith(f"few steps of fine-tuning: m ({steps['m']}); the paper takes up to")
    assert not any("few steps" in note for note in plan_notes(previewed(tmp_path, tasks=tasks[1:])))


def test_a_shared_number_of_training_examples_is_of_the_tasks_trained_on(tmp_path, make_retrieval):
    near, far, zero = (tmp_path / name for name in ("near", "far", "zero"))
    make_retrieval(near)
    make_retrieval(far, trained_on="near")
    make_retrieval(zero, kind="zs")
    tasks = [{"name": path.name, "source": str(path)} for path in (near, far, zero)]
    finetuning = {**RAW["finetuning"], "protocol": {"max_seqlen": 64, "train_examples": 2}}
    found = previewed(tmp_path / "store", tasks=tasks, finetuning=finetuning).tasks
    assert [task.training.protocol.train_examples for task in found[:2]] == [2, 2]
    assert [task.num_examples["train"] for task in found] == [2, 2, 0]
    mine = [{**tasks[2], "protocol": {"train_examples": 2}}]
    with pytest.raises(DataError, match=r"train_examples: 2.* 0"):
        previewed(tmp_path / "store", tasks=mine)


def test_tasks_that_share_a_training_only_with_an_arm_s_attention_are_refused(tmp_path):
    arms = [{"name": "opened"}, {"name": "decoder", "attention": "causal"}]
    tasks = [{"name": "nq"}, {"name": "mldr", "protocol": {"attention": "causal"}}]
    alike = [{**task, "protocol": {"attention": "causal"}} for task in tasks]
    assert len(previewed(tmp_path, arms=arms, tasks=alike, evaluation_points=[]).groups) == 1
    with pytest.raises(ConfigError, match=r"nq and mldr .* 'msmarco'.* attention"):
        previewed(tmp_path, arms=arms, tasks=tasks, evaluation_points=[])


def test_a_store_that_cannot_be_written_is_only_read(tmp_path, make_task, monkeypatch):
    root = tmp_path / "runs"
    tasks = [{"name": name, "source": str(make_task(tmp_path / name))} for name in ("a", "b")]
    previewed(root, tasks=tasks[:1])  # the store has one of them
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    # Permissions stop nobody who runs tests as root.
    monkeypatch.setattr("os.access", lambda *_: False)
    found = previewed(root, tasks=tasks)
    assert [task.num_examples["train"] for task in found.tasks] == [12, 12]
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    monkeypatch.undo()
    assert states_of(previewed(root, tasks=tasks)) == states_of(found)


def test_recipes_begin_with_one_finished_model(tmp_path):
    arms = [
        {"name": name, "recipe": {"model": {"pretrained": f"owner/{name}"}}, "phases": [clm(4)]}
        for name in ("a", "b")
    ]
    with pytest.raises(DataError, match="different pretrained models"):
        previewed(tmp_path, arms=arms, evaluation_points=[])
    found = summed(tmp_path, arms=arms[:1], evaluation_points=[])
    assert found.shared.flops is None
    assert any("owner/a, not fetched yet" in note for note in found.assumed)


def test_tokens_and_operations_are_those_of_full_rows(tmp_path):
    summary = summed(tmp_path)
    assert summary.shared.steps == 10 + 6
    assert summary.alone.steps == 10 + 10
    assert summary.shared.tokens == 16 * 4 * 64
    shape = architecture_shape(PRESETS["pico"], vocab_size=128_256)
    weights = shape.body * 64

    def row(supervised, pairs):
        attention = 2 * PRESETS["pico"].num_layers * PRESETS["pico"].hidden_size * pairs
        return 3 * 2 * (weights + shape.head * supervised + attention)

    causal = row(64, 64 * 65 // 2)
    both = row(round(0.4 * 64), 64 * 64)
    assert summary.shared.flops == 4 * (10 * causal + 6 * both)
    assert summary.alone.flops == 4 * (14 * causal + 6 * both)


def test_fine_tunings_are_counted_with_what_they_share(tmp_path):
    summary = summed(tmp_path)
    states = 3 + 1
    assert (summary.num_final, summary.num_checkpoints) == (3, states)
    assert summary.num_trainings == states * 2 * 2
    assert summary.num_evaluations == states * 3 * 2
    assert {task.name: task.trained_on for task in summary.tasks} == {
        "msmarco": "msmarco",
        "nq": "msmarco",
        "pydocs-sc": "pydocs-sc",
    }


def test_steps_by_turns_cost_what_their_objectives_cost(tmp_path):
    turns = {"objective": "alternate", "every": 1, "objectives": [clm(1), mlm(1)], "steps": 4}
    turns["objectives"] = [{"objective": "clm"}, {"objective": "mlm"}]
    both = {"tasks": [], "evaluation_points": []}
    alone = [
        summed(tmp_path, arms=[{"name": "a", "phases": [phase]}], **both).shared.flops
        for phase in (turns, clm(2), mlm(2))
    ]
    assert alone[0] == alone[1] + alone[2]


def test_zero_shot_tasks_train_nothing(tmp_path):
    summary = summed(tmp_path, tasks=[{"name": "found", "source": "zs:nq"}])
    assert (summary.num_trainings, summary.num_evaluations) == (0, 4)
    assert (summary.finetuning_steps, summary.finetuning_flops) == (0, 0)
    both = summed(tmp_path, tasks=[{"name": "nq"}, {"name": "found", "source": "zs:nq"}])
    assert both.finetuning_flops == summed(tmp_path, tasks=[{"name": "nq"}]).finetuning_flops > 0


def test_scoring_without_training_has_a_share_of_the_expected_time(tmp_path, make_retrieval):
    folder = make_retrieval(tmp_path / "words", kind="zs")
    plan = previewed(tmp_path, tasks=[{"name": "pydocs-sc"}, {"name": "w", "source": str(folder)}])
    zero_shot = {group.id for group in plan.groups if not group.training.is_trained}
    flops = {group.id: job_costs(plan)[group.id].flops or 0 for group in plan.groups}
    scored = {flops[name] for name in zero_shot}
    assert 0 < max(scored) < min(flops[name] for name in flops.keys() - zero_shot)


def test_scores_without_a_training_reuse_none(tmp_path):
    tasks = [{"name": "pydocs-sc"}, {"name": "found", "source": "zs:msmarco"}]
    summary = summed(tmp_path, tasks=tasks)
    assert [task.num_runs for task in summary.tasks] == [8, 4]
    assert (summary.num_trainings, summary.num_evaluations, summary.num_reused) == (8, 12, 0)


def test_what_is_done_is_not_counted_as_left(tmp_path):
    plan = previewed(tmp_path)
    segment = plan.segments[0]
    run = next(plan.groups[0].run_ids())
    for folder in (plan.store / "states" / segment.id, plan.store / "finetunes" / run):
        with complete_folder(folder) as partial:
            (partial / "content").write_text("x")
    (plan.store / "states" / plan.segments[1].id).mkdir()  # not complete
    summary = summarise_plan(plan)
    assert (summary.done.states, summary.done.steps, summary.done.results) == (1, segment.steps, 1)
    assert summary.left.steps == summary.shared.steps - segment.steps


def test_arms_that_are_trained_are_named(tmp_path):
    plan = previewed(tmp_path)
    with complete_folder(plan.store / "states" / plan.arms[1].state) as partial:
        (partial / "content").write_text("x")
    lines = StudyPlan(plan, summarise_plan(plan), 1e12, 64).lines()
    done = [line.split()[0] for line in lines if line.endswith("; already trained")]
    assert done == [arm.name for arm in plan.arms if arm.state == plan.arms[1].state]


def test_words_and_json_have_the_same_numbers(tmp_path):
    plan = previewed(tmp_path)
    summary = summarise_plan(plan)
    text = str(StudyPlan(plan, summary, 1e12, 64))
    assert "3 final models + 1 intermediate = 4 checkpoints to evaluate" in text
    assert "16 trainings, 24 evaluations" in text
    assert "6 of them new, after step 4" in text
    assert "8 evaluations reuse a training of another task" in text
    record = json.loads(json.dumps(StudyPlan(plan, summary, 1e12, 64).to_json()))
    assert record["shared"]["steps"] == 16
    assert record["device_hours"]["training"] == summary.shared.flops / 1e12 / 3600
    assert [point["name"] for point in record["points"]] == ["clm", "two", "untrained", "clm-3"]
    assert sum(segment["end"] - segment["start"] for segment in record["segments"]) == 16


def test_a_long_list_of_arms_is_cut(tmp_path):
    arms = [{"name": f"clm-{number}", "phases": [clm(10 + number)]} for number in range(62)]
    plan = previewed(tmp_path, arms=arms, evaluation_points=[])
    assert "  and 2 more" in StudyPlan(plan, summarise_plan(plan), 1, 1).lines()


def test_the_graph_has_every_state_and_segment(tmp_path):
    plan = previewed(tmp_path)
    graph = StudyPlan(plan, summarise_plan(plan), 1e12, 64).graph().splitlines()
    assert graph == [
        "flowchart LR",
        '  s0["clm"]',
        '  s1["two"]',
        '  s2["untrained"]',
        '  s3["clm-3"]',
        '  s4["step 4"]',
        '  start -- "CLM, 3 steps" --> s3',
        '  s3 -- "CLM, 1 step" --> s4',
        '  s4 -- "CLM, 6 steps" --> s0',
        '  s4 -- "MLM, 6 steps" --> s1',
    ]


def seeded(**seeds):
    return {"recipe": {**RECIPE, "seeds": seeds}}


CHANGES = {
    "title": ({"title": "T"}, ["both studies plan the same", "shared: 4 evaluated states"]),
    "longer": (
        {"arms": [{"name": "clm", "phases": [clm(12)]}, *RAW["arms"][1:]]},
        [
            "clm: differs after step 8; phases.0.steps: 10 -> 12",
            "only A: 2 steps of training",
            "only A: 6 fine-tunings",
            "only B: 4 steps of training",
            "only B: 6 fine-tunings",
            "shared: 3 evaluated states",
        ],
    ),
    "attention": (
        {"arms": [{**RAW["arms"][0], "attention": "causal"}, *RAW["arms"][1:]]},
        ["clm: attention: none -> causal", "shared: 4 evaluated states"],
    ),
    "init": (seeded(init_seed=1), ["two: differs from the beginning; seeds.init_seed: 0 -> 1"]),
    "data": (seeded(data_seed=1), ["two: differs after step 0; seeds.data_seed: 0 -> 1"]),
    "mask": (seeded(mask_seed=1), ["two: differs after step 4; seeds.mask_seed: 0 -> 1"]),
    "optimizer": (
        {"recipe": {**RECIPE, "optimizer": {"beta2": 0.9}}},
        ["two: differs after step 0; optimizer.beta2: 0.95 -> 0.9"],
    ),
    "task": (
        {"tasks": [*RAW["tasks"][:2], {"name": "pydocs-sc", "protocol": {"max_steps": 7}}]},
        ["task pydocs-sc.protocol.max_steps: 1000 -> 7"],
    ),
    "grid": (
        {"finetuning": {**RAW["finetuning"], "learning_rates": [1e-4, 0.5], "seeds": [0, 9]}},
        [
            "finetuning.learning_rates: 1e-4 -> 1e-4, 5e-1",
            "finetuning.seeds: 0, 1 -> 0, 9",
        ],
    ),
    "names": (
        {
            "arms": [
                {"name": "renamed", "phases": [clm(10)]},
                *RAW["arms"][1:],
                {"name": "mlm", "phases": [mlm(10)]},
            ],
            "evaluation_points": [{"arms": ["renamed"], "steps": [3, 5]}],
        },
        [
            "only B: arms mlm",
            "only B: intermediate states renamed-5",
            "only B: 10 steps of training",  # stopping on the way is no training
            "only B: 12 fine-tunings",
            "same state: clm in A, renamed in B",
            "same state: clm-3 in A, renamed-3 in B",
            "shared: 4 evaluated states",
        ],
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_two_plans_are_compared(tmp_path, case):
    change, expected = CHANGES[case]
    lines = list(difference_lines(previewed(tmp_path), previewed(tmp_path, **change), "A", "B"))
    assert [line for line in lines if line in expected] == expected
    if case in {"title", "names"}:
        assert lines == expected


def test_a_published_trainer_gets_the_settings_of_its_task(tmp_path):
    tasks = [{"name": name, "protocol": {"batch_size": size}} for name, size in
             (("nq", 8), ("mldr", 16))]  # fmt: skip
    plan = previewed(tmp_path, tasks=tasks)
    sizes = {task.info.name: task.training.protocol.batch_size for task in plan.tasks}
    assert sizes == {"nq": 8, "mldr": 16}
    assert "tasks: nq, msmarco, mldr, not built here yet" in plan.assumed


def test_a_task_file_of_the_hub_is_planned_without_the_hub(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(published_text("mldr"), encoding="utf-8")
    plan = previewed(tmp_path, tasks=[{"name": "own", "source": str(file)}])
    [task] = plan.tasks
    assert (task.info.kind, task.info.title, task.training.info.name) == (
        "ir", "MLDR English", "msmarco"
    )  # fmt: skip
    assert "tasks: own, msmarco, not built here yet" in plan.assumed
    file.write_text(f"{published_text('sst2')}\nprotocol: {{max_steps: 50}}\n", encoding="utf-8")
    assert summed(tmp_path, tasks=[{"name": "own", "source": str(file)}]).finetuning_steps == 8 * 50


def test_the_schema_that_editors_read_is_current():
    published = json.loads((ROOT / "docs" / "study.schema.json").read_text())
    assert published == study_schema(), "biphasic study schema > docs/study.schema.json"


def test_the_schema_knows_all_that_shipped_studies_write():
    schema = study_schema()
    definitions = schema["$defs"]
    arm = definitions["ArmConfig"]["properties"]
    for path in sorted((ROOT / "studies").glob("*.yaml")):
        raw = yaml.safe_load(path.read_text())
        assert set(raw) <= set(schema["properties"])
        for written in raw["arms"]:
            assert set(written) <= set(arm)
            for phase in written.get("phases", []):
                kind = definitions[f"{phase['objective'].capitalize()}Phase"]
                assert set(phase) <= set(kind["properties"])
                assert set(kind.get("required", ())) <= {*phase, "every", "steps"}


def test_a_wrong_metric_is_refused_while_planning(tmp_path):
    with pytest.raises((ConfigError, DataError), match="no metric 'f2'"):
        previewed(tmp_path, tasks=[{"name": "pydocs-sc", "metric": "f2"}])


def test_the_documented_study_file_is_one():
    text = (ROOT / "docs" / "studies.md").read_text().split("```yaml\n")[1].split("```")[0]
    config = parse_config(StudyConfig, yaml.safe_load(text), where="docs/studies.md")
    assert [arm.name for arm in config.arms][:3] == [
        "untrained",
        "pico-mlm40-800",
        "pico-mlm40-800-seed1",
    ]
    assert len(config.arms) == 1 + 2 * 4 * 3
    assert set(config.points_by_arm()) == {a.name for a in config.arms if a.name[0] == "n"}
