"""Objectives from a file that a recipe or a study names."""

import shutil

import pytest
import yaml

from biphasic import plugin_code
from biphasic.config import parse_config
from biphasic.errors import ConfigError, DataError
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.plugin_code import look_in
from biphasic.plugins import find_plugin, keep_files
from biphasic.study.plan.summary import difference_lines
from biphasic.study.settings.arms import arm_name, recipe_name
from biphasic.study.settings.load import load_study, read_recipe
from biphasic.study.settings.tuned_rates import ObjectiveRate
from biphasic.study.study import Study
from biphasic.study.tune.trials import plan_tuning, trial_study
from biphasic.training.lineage import Lineage
from biphasic.training.recipe import Recipe
from plugin_files import forget_plugins, page_code, write_stride
from tiny_study import GROUND, plan_of

RECIPE = {
    "model": "pico",
    "max_seqlen": 32,
    "rows_per_step": 4,
    "learning_rate": {"peak": 2e-3},
    "phases": [
        {"objective": "clm", "steps": 2},
        {"objective": "./stride.py:Stride", "steps": 3, "every": 5},
    ],
}


@pytest.fixture
def path(tmp_path):
    """A recipe file beside a plugin's, in a process that has read no plugin before."""
    forget_plugins()
    write_stride(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    return path


def forget():
    """Forget all code, as a process that starts has."""
    plugin_code._sources.clear()
    plugin_code.module_of.cache_clear()


def last_state(path):
    return Lineage(read_recipe(path, ()), GROUND).identities


def test_a_recipe_names_a_file_beside_it(path, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    recipe = read_recipe(path, ())
    assert recipe.phases[1].every == 5
    assert recipe.phases[1].short_name == "stride"
    assert recipe_name(recipe) == "pico-clm-2-stride.every5-5"
    assert parse_config(Recipe, recipe.model_dump(mode="json"), where="again") == recipe
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
    assert recipe.phases[1].identity(7) == {
        "name": "stride",
        "every": 5,
        "mask_seed": 7,
        "plugin": {"class": "Stride", "code": recipe.phases[1].plugin.code},
    }


def test_settings_are_checked_as_ours_are(path):
    for change, message in (
        ("phases.1.every=0", r"recipe.yaml: phases\.1\.every: input should be greater than 0"),
        ("phases.1.evry=3", r"unknown key 'phases\.1\.evry' \(did you mean 'every'\?\)"),
        ("phases.1.step=3", r"unknown key 'phases\.1\.step' \(did you mean 'steps'\?\)"),
        (
            "phases.1.objective=./stride.py:Strode",
            r"^objective: .*stride.py: has no class Strode .did you mean 'Stride'",
        ),
        ("phases.1.objective=./strode.py:Stride", r"strode.py: no such file"),
        (
            "phases.1.objective=./stride.py",
            r"'\./stride\.py' is not a plugin; name a file and class",
        ),
        ("phases.1.objective='./a b.py:Stride'", r"'\./a b\.py:Stride' is not a plugin"),
        ("phases.1.objective=strode", r"phases\.1\.objective: unknown value 'strode'"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_recipe(path, [change])


def test_names_of_ours_and_of_settings_of_phases_are_refused(path, tmp_path):
    edits = (("every: PositiveInt", "steps: PositiveInt"), ("self.every", "self.steps"))
    write_stride(tmp_path, *edits)
    with pytest.raises(ConfigError, match=r"stride\.py: Stride has a setting 'steps', which every"):
        read_recipe(path, ["phases.1={steps: 3, objective: './stride.py:Stride'}"])
    write_stride(tmp_path, ("class Stride", "class Mlm"))
    with pytest.raises(ConfigError, match=r"stride\.py: Mlm has the name of our own 'mlm'"):
        read_recipe(path, ["phases.1.objective=./stride.py:Mlm"])


def test_mixtures_and_alternations_use_it(path):
    parts = "objectives: [{objective: mlm}, {objective: ./stride.py:Stride}]"
    for settings in ("objective: alternate, every: 1", "objective: mix, shares: [0.5, 0.5]"):
        recipe = read_recipe(path, [f"phases.1={{steps: 3, {settings}, {parts}}}"])
        code = recipe.phases[1].objectives[1].plugin.code
        assert code in repr(recipe.phases[1].at(1, num_steps=3).identity(0))


def test_code_is_part_of_the_identity_and_comments_are_not(path, tmp_path):
    first = last_state(path)
    write_stride(tmp_path, ("rows = batch.packed", "rows = (batch.packed)  # all of them"))
    assert last_state(path) == first
    write_stride(tmp_path, ("[:: self.every]", "[1 :: self.every]"))
    edited = last_state(path)
    assert edited[:3] == first[:3]
    assert not {*edited[3:]} & {*first[3:]}


def test_a_store_has_the_code_when_the_file_is_gone(path, tmp_path):
    recipe = read_recipe(path, ())
    keep_files(tmp_path / "store", recipe)
    saved = recipe.model_dump_json()
    (tmp_path / "stride.py").unlink()
    forget_plugins()
    with pytest.raises(ConfigError, match=r"stride.py: .* code [0-9a-f]{12}"):
        parse_config(Recipe, yaml.safe_load(saved), where="job")
    look_in(tmp_path / "store")
    again = Recipe.model_validate_json(saved)
    assert Lineage(again, GROUND).identities == Lineage(recipe, GROUND).identities


@pytest.mark.parametrize("name", ["again.py", "größe.py"])
def test_a_store_has_the_code_of_a_copy_under_another_name(path, tmp_path, name):
    keep_files(tmp_path / "store", read_recipe(path, ()))
    shutil.copy(tmp_path / "stride.py", tmp_path / name)
    for store in (tmp_path / "store", tmp_path / "other"):
        recipe = read_recipe(path, [f"phases.1.objective=./{name}:Stride"])
        keep_files(store, recipe)
        forget_plugins()
        look_in(store)
        again = Recipe.model_validate_json(recipe.model_dump_json())
        assert Lineage(again, GROUND).identities == last_state(path)


def test_an_edited_copy_is_refused(path, tmp_path):
    recipe = read_recipe(path, ())
    keep_files(tmp_path / "store", recipe)
    forget()
    (tmp_path / "stride.py").unlink()
    [copy] = (tmp_path / "store/plugins").glob("*/stride.py")
    copy.write_text(copy.read_text().replace("self.every]", "self.every + 1]"))
    with pytest.raises(ConfigError, match=r"stride\.py: changed since it was copied"):
        Recipe.model_validate_json(recipe.model_dump_json())


def test_a_name_with_its_hash_takes_that_code_alone(path, tmp_path):
    reference = read_recipe(path, ()).phases[1].objective
    assert read_recipe(path, [f"phases.1.objective={reference}"]).phases[1].objective == reference
    forget()
    write_stride(tmp_path, ("[:: self.every]", "[1 :: self.every]"))
    with pytest.raises(ConfigError, match="restore the file"):
        read_recipe(path, [f"phases.1.objective={reference}"])


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("import numpy", "import beside\nimport numpy"), "imports 'beside' from its own folder"),
        (("import numpy as np", "from . import beside"), r"imports .\.. from its own folder"),
        (("import numpy as np", "1 / 0"), "cannot be imported .ZeroDivisionError"),
        (("import numpy as np", "raise SystemExit"), "cannot be imported .it exits"),
        (("class Stride", "class class Stride"), "not valid Python"),
        (("def directions", "def direction"), "Stride cannot be used: it lacks directions"),
        (("    @property\n", ""), "Stride cannot be used: directions must be a property"),
        (
            ("Vocabulary, *, mask_seed: int", "Vocabulary"),
            r"Stride cannot be used: supervise must take \(self, batch, .*, \*, mask_seed\)",
        ),
        (
            ("(ObjectiveConfig)", ""),
            "Stride cannot be used: it does not inherit from ObjectiveConfig",
        ),
    ],
)
def test_files_that_cannot_be_used_are_refused_by_name(path, tmp_path, edit, message):
    (tmp_path / "beside.py").write_text("value = 1\n")
    file = write_stride(tmp_path, edit)
    with pytest.raises(ConfigError, match=f"stride.py: {message}"):
        find_plugin("objectives", f"{file}:Stride", ObjectiveConfig)


def study_file(folder, name="own"):
    recipe = {key: value for key, value in RECIPE.items() if key != "phases"}
    arms = [
        {"name": "clm", "phases": RECIPE["phases"][:1]},
        {"axes": {"phases.1.objective": ["mlm", "./stride.py:Stride"]}, "phases": RECIPE["phases"]},
    ]
    arms[1]["phases"] = [RECIPE["phases"][0], {"objective": "clm", "steps": 3}]
    path = folder / f"{name}.yaml"
    raw = {"name": name, "title": "Own", "recipe": recipe, "arms": arms}
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


def test_axes_of_a_study_name_files_and_a_diff_names_the_code(path, tmp_path):
    first = load_study(study_file(tmp_path))
    assert [arm.name for arm in first.arms] == ["clm", "pico-clm-2-mlm40-5", "pico-clm-2-stride-5"]
    other = shutil.copytree(tmp_path, tmp_path / "other")
    write_stride(other, ("[:: self.every]", "[1 :: self.every]"))
    second = load_study(study_file(other))
    lines = [*difference_lines(plan_of(first), plan_of(second), "first", "second")]
    codes = [study.arms[2].phases[1].plugin.code[:12] for study in (first, second)]
    [line] = (
        line for line in lines if line.startswith("pico-clm-2-stride-5: differs after step 2")
    )
    assert all(code in line for code in codes)


MOMENTUM = page_code("Momentum")


def with_optimizer(folder):
    (folder / "momentum.py").write_text(MOMENTUM, encoding="utf-8")
    path = study_file(folder)
    raw = yaml.safe_load(path.read_text())
    raw["arms"][0]["recipe"] = {"optimizer": {"name": "./momentum.py:Momentum", "momentum": 0.8}}
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


WITH_PATH = ("\n\n\nclass", "\nfrom pathlib import Path\n\n\nclass")


def test_identities_have_the_content_of_paths_which_are_relative_to_the_recipe(path, tmp_path):
    write_stride(tmp_path, WITH_PATH, ("    every:", "    words: Path\n    every:"))
    momentum = MOMENTUM.replace(*WITH_PATH).replace(
        "    momentum:", "    words: Path\n    momentum:"
    )
    (tmp_path / "momentum.py").write_text(momentum, encoding="utf-8")
    own = {"objective": "./stride.py:Stride", "words": "words.txt"}
    mixed = {"objective": "mix", "objectives": [{"objective": "mlm"}, own], "shares": [0.5, 0.5]}
    optimizer = {"name": "./momentum.py:Momentum", "words": "words.txt"}

    def identities(folder):
        for changes in (
            {"phases": [{**own, "steps": 1}]},
            {"phases": [{**mixed, "steps": 1}]},
            {"phases": [{"objective": "mlm", "steps": 1}], "optimizer": optimizer},
        ):
            (folder / "recipe.yaml").write_text(yaml.safe_dump({**RECIPE, **changes}), "utf-8")
            yield Lineage(read_recipe(folder / "recipe.yaml", ()), GROUND).identities[-1]

    with pytest.raises(DataError, match=r"words\.txt: no such file or folder"):
        next(identities(tmp_path))
    (tmp_path / "words.txt").write_text("one")
    first = [*identities(tmp_path)]
    assert [*identities(shutil.copytree(tmp_path, tmp_path / "copy"))] == first
    (tmp_path / "words.txt").write_text("two")
    assert not {*identities(tmp_path)} & {*first}


def test_an_arm_may_have_an_optimizer_of_a_file(path, tmp_path):
    config = load_study(with_optimizer(tmp_path))
    recipe = config.recipe_of(config.arms[0])
    code = recipe.optimizer.plugin.code
    assert recipe.optimizer.identity() == {
        "name": "momentum",
        "weight_decay": 0.0,
        "max_gradient_norm": 1.0,
        "momentum": 0.8,
        "plugin": {"class": "Momentum", "code": code},
    }
    assert recipe_name(recipe) == "pico-clm-2"
    assert arm_name(recipe, config.recipe) == "pico-clm-2-momentum-weightdecay0-momentum0.8"
    rate = {"model": "pico", "phase": {"objective": "clm"}, "peak": 1e-3}
    named = {**rate, "optimizer": recipe.optimizer.name}
    assert parse_config(ObjectiveRate, named, where="x") == ObjectiveRate.of(recipe, peak=1e-3)
    with pytest.raises(ConfigError, match=r"optimizer: .*'adam' \(did you mean"):
        parse_config(ObjectiveRate, {**rate, "optimizer": "adam"}, where="rates")


def test_the_rate_of_an_optimizer_of_a_file_is_tuned(path, tmp_path):
    tuning = plan_tuning(load_study(with_optimizer(tmp_path)), 1.0)
    assert "pico-clm-momentum" in [group.name for group in tuning.groups]
    trials = trial_study(tuning, {group.name: [1e-3] for group in tuning.groups})
    assert "pico-clm-momentum-lr0.001" in [arm.name for arm in trials.arms]


def test_saved_settings_of_a_study_need_no_file(path, tmp_path):
    config = load_study(with_optimizer(tmp_path))
    study = Study(config, tmp_path / "root")
    keep_files(study.store, config, *study.recipes.values())
    study.save()
    for file in ("stride.py", "momentum.py"):
        (tmp_path / file).unlink()
    forget_plugins()
    again = Study.saved(study.folder).recipes
    assert [each.model_dump() for each in again.values()] == [
        each.model_dump() for each in study.recipes.values()
    ]


def test_a_module_of_pythonpath_is_refused(path, tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/helper_of_stride.py").write_text("RATE = 0.2\n")
    monkeypatch.syspath_prepend(tmp_path / "lib")
    write_stride(tmp_path, ("import numpy as np", "import helper_of_stride\nimport numpy as np"))
    with pytest.raises(ConfigError, match=r"stride\.py: imports 'helper_of_stride'"):
        read_recipe(path, ())
