"""`--print-config`: settings in full, which mean the same when they are read again."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from biphasic.config import load_config, load_settings
from biphasic.errors import DataError
from biphasic.evaluation.evaluate import task_from_text
from biphasic.plugins import load_with_plugins
from biphasic.study.settings.load import evaluation_text, load_study, study_text
from biphasic.training.recipe import Recipe

STUDIES = sorted((Path(__file__).parents[3] / "studies").glob("*.yaml"))
RECIPE = {
    "model": "pico",
    "phases": [
        {"objective": "clm", "steps": 5},
        {"objective": "mlm", "steps": 5, "replacement": "bert", "max_seqlen": 64},
    ],
    "learning_rate": {"peak": 1e-5},
}


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_in_full_is_the_same_study(path, tmp_path):
    first = load_study(path)
    written = tmp_path / "full.yaml"
    written.write_text(study_text(first), encoding="utf-8")
    again = load_study(written)
    assert [first.recipe_of(arm) for arm in first.arms] == [
        again.recipe_of(arm) for arm in again.arms
    ]
    for one, other in zip(first.tasks, again.tasks, strict=True):
        assert one == other
        assert first.protocol_of(one) == again.protocol_of(other)
    assert first.model_dump(exclude={"finetuning"}) == again.model_dump(exclude={"finetuning"})
    assert study_text(again) == written.read_text(encoding="utf-8")


@pytest.mark.parametrize("title", ["08", "-.5", "no", "1:30", "0x10", "1e3", "2026-01-01"])
def test_text_that_looks_like_a_number_is_read_back(title, tmp_path):
    text = study_text(load_study(STUDIES[0]).model_copy(update={"title": title}))
    assert yaml.safe_load(text)["title"] == title  # also by readers of YAML 1.1
    written = tmp_path / "study.yaml"
    written.write_text(text, encoding="utf-8")
    assert load_settings(written)["title"] == title


def test_every_default_of_a_study_is_written(tmp_path):
    content = yaml.safe_load(study_text(load_study(STUDIES[0])))
    assert content["recipe"]["optimizer"]["beta2"] == 0.95
    assert content["finetuning"]["protocol"]["warmup_fraction"] == 0.1
    assert content["compute"]["processes"] == 1
    assert content["convention"] == "standard"


def test_pretrain_prints_a_recipe_file(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    code, out, err = cli(
        "pretrain", "recipe.yaml", "--set", "seeds.mask_seed=3", "--compute", "processes=2",
        "--print-config",
    )  # fmt: skip
    assert (code, err) == (0, "")
    Path("full.yaml").write_text(out)
    full = load_config(Recipe, "full.yaml")
    assert full == load_with_plugins(Recipe, Path("recipe.yaml"), ["seeds.mask_seed=3"])
    assert "weight_decay: 0.1\n" in out
    assert "# compute:\n#   processes: 2\n" in out
    assert "# corpus:\n#   sources:\n#   - source: builtin:pydocs\n" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full.yaml", "recipe.yaml"]


def test_evaluate_prints_keys_of_a_study(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["evaluate", "nowhere", "--task", "sst2", "--task", "sc:mine", "--seed", "7"]
    code, out, err = cli(*arguments, "--set", "max_steps=9", "--print-config")
    assert (code, err) == (0, "")
    found = yaml.safe_load(out)
    assert [task["name"] for task in found["tasks"]] == ["sst2", "mine"]
    assert {str(task["protocol"]) for task in found["tasks"]} == {"{'max_steps': 9}"}
    assert found["finetuning"]["seeds"] == [7]
    assert found["finetuning"]["learning_rates"] == [1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4]
    assert found["finetuning"]["extend"] == 3
    assert found["finetuning"]["protocol"]["max_steps"] == 9
    assert "max_seqlen" not in found["finetuning"]["protocol"]
    assert "# finetuning.protocol.max_seqlen is not set" in out
    assert list(tmp_path.iterdir()) == []


def test_a_length_that_is_set_is_printed():
    text = evaluation_text(
        [task_from_text("sst2")],
        learning_rates=None,
        extend=None,
        seeds=None,
        protocol={"max_seqlen": 64},
        is_paper=False,
        convention="paper",
    )
    assert yaml.safe_load(text)["finetuning"]["protocol"]["max_seqlen"] == 64
    assert "#" not in text


def test_study_run_does_nothing_else(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("study", "run", STUDIES[0], "--set", "title=Other", "--print-config")
    assert (code, err) == (0, "")
    assert yaml.safe_load(out)["title"] == "Other"
    assert list(tmp_path.iterdir()) == []


def test_adapt_prints_the_recipe_of_its_model(cli, tmp_path, monkeypatch):
    from tiny_use import write_model

    monkeypatch.chdir(tmp_path)
    model = write_model(tmp_path / "llama", "llama")
    Path("text.txt").write_text("a text\n")
    arguments = ["adapt", model, "--corpus", "text.txt", "--out", "out", "--steps", "40"]
    code, out, err = cli(*arguments, "--print-config")
    assert (code, err) == (0, "")
    Path("full.yaml").write_text(out)
    recipe = load_config(Recipe, "full.yaml")
    (phase,) = recipe.phases
    assert (phase.objective, phase.steps, recipe.max_seqlen) == ("mlm", 40, 64)
    assert recipe.learning_rate.peak == 0.013  # 0.4 / 32, to two digits
    assert (recipe.learning_rate.warmup_steps, recipe.learning_rate.decay_steps) == (2, 4)
    assert f"#   tokenizer: {model}\n" in out
    assert not Path("out").exists()
    assert not Path("runs").exists()


def test_a_task_folder_without_a_kind_takes_the_one_before_the_colon(tmp_path):
    (tmp_path / "task.json").write_text('{"name": "reviews"}')
    assert task_from_text(f"sc:{tmp_path}").name == "reviews"
    assert task_from_text(f"zs:{tmp_path}").name == "reviews-zs"
    with pytest.raises(DataError, match=r"task.json: no 'kind'; .* sc,"):
        task_from_text(str(tmp_path))
