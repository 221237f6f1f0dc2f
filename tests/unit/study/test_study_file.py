"""Study files: includes, and the settings that are saved of them."""

from __future__ import annotations

import json
import shutil

import pytest

from biphasic.errors import ConfigError
from biphasic.study.settings.load import load_study
from biphasic.study.study import Study

BASE = """
name: base
title: Base
recipe: {model: nano, max_seqlen: 128, learning_rate: {peak: 1.0e-3, decay_steps: 2}}
arms:
  - {name: mlm, phases: [{objective: mlm, steps: 10}]}
  - {name: clm, phases: [{objective: clm, steps: 10}]}
finetuning: {seeds: [0, 1], protocol: {max_seqlen: 64}}
"""


@pytest.fixture
def write(tmp_path):
    def make(name, text):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        return tmp_path / name

    make("base.yaml", BASE)
    return make


def test_groups_are_merged_and_lists_replaced(write):
    path = write(
        "own.yaml",
        "include: base.yaml\nname: own\nrecipe: {learning_rate: {peak: 5.0e-3}}\n"
        "finetuning: {seeds: [7]}\n",
    )
    config = load_study(path)
    assert (config.name, config.title) == ("own", "Base")
    assert config.recipe.learning_rate.peak == 5e-3
    assert (config.recipe.learning_rate.decay_steps, config.recipe.max_seqlen) == (2, 128)
    assert config.finetuning.seeds == (7,)
    assert len(config.arms) == 2


def test_an_override_changes_one_place_of_an_alias_only(write):
    phases = "phases: [{objective: clm, steps: 10}]"
    path = write(
        "own.yaml",
        "include: base.yaml\narms:\n"
        f"  - {{name: a, recipe: &shared {{max_seqlen: 64}}, {phases}}}\n"
        f"  - {{name: b, recipe: *shared, {phases}}}\n",
    )
    config = load_study(path, ["arms.0.recipe.max_seqlen=96"])
    assert [arm.recipe["max_seqlen"] for arm in config.arms] == [96, 64]


def test_what_is_named_later_and_the_command_line_win(write):
    write("more.yaml", "recipe: {model: pico}\ntitle: More\n")
    path = write("deep/own.yaml", "include: [../base.yaml, ../more.yaml]\nname: own\n")
    config = load_study(
        path, ["recipe.max_seqlen=256", "arms.1.phases.0.steps=12", "arms.0.name=first"]
    )
    assert (config.title, config.recipe.model, config.recipe.max_seqlen) == ("More", "pico", 256)
    assert [arm.name for arm in config.arms] == ["first", "clm"]
    assert [arm.phases[0].steps for arm in config.arms] == [10, 12]


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("include: own.yaml\n", [], "includes itself"),
        ("include: none.yaml\n", [], "own.yaml: include: "),
        ("include: none.yaml\n", [], "none.yaml: no such file"),
        ("include: 3\n", [], "include: expected a file name"),
        ("include: base.yaml\ntitel: x\n", [], "unknown key 'titel'"),
        ("include: base.yaml\n", ["arms.5.name=x"], "'5' is not one of 0..1"),
    ],
)
def test_a_mistake_is_named(write, text, overrides, message):
    with pytest.raises(ConfigError) as refused:
        load_study(write("own.yaml", text), overrides)
    assert message in str(refused.value)


def test_each_file_is_read_once_however_often_it_is_included(write):
    below = "base.yaml"
    for level in range(30):  # read for each path to it, the lowest would be read 2^30 times
        for side in "ab":
            write(f"{level}{side}.yaml", f"include: {below}\n")
        below = f"[{level}a.yaml, {level}b.yaml]"
    config = load_study(write("own.yaml", f"include: {below}\nname: own\n"))
    assert (config.name, config.title) == ("own", "Base")


def test_saved_settings_have_the_paths_of_a_project_that_was_moved(write, tmp_path):
    write("project/mood.yaml", "kind: sc\n")
    path = write(
        "project/own.yaml",
        "include: ../base.yaml\ncorpus: {sources: [texts, ../texts, builtin:pydocs]}\n"
        "tasks: [{name: a, source: mood.yaml}, {name: b, source: 'sc:b'}, {name: pydocs-sc}]\n",
    )
    study = Study(load_study(path), path.parent / "runs", file=path)
    study.folder.mkdir(parents=True)
    study.save()
    record = json.loads((study.folder / "config.json").read_text())
    assert str(tmp_path) not in str(record["study"])
    # Only the study's folder is copied, without its file.
    alone = shutil.copytree(study.folder, tmp_path / "far/away/runs/own")
    assert Study.saved(alone).config == study.config
    assert Study.saved(study.folder).config == study.config
    for name in ("moved", "again"):
        project = path.parent.rename(tmp_path / name)
        path = project / "own.yaml"
        saved = Study.saved(project / "runs" / "base")
        assert saved.config == load_study(path) != study.config
        saved.save()  # as 'study retry' does: the study file stays known
        assert Study.saved(saved.folder).config == saved.config
