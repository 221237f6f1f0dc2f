from __future__ import annotations

import re
from pathlib import Path

import pytest

from biphasic.errors import ConfigError
from biphasic.tasks.folder import TaskFile, load_task_file


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mood.yaml"
    path.write_text(text)
    return path


def test_paths_begin_at_the_file(tmp_path):
    file = load_task_file(write(tmp_path, "kind: sc\nfolder: data\ntest: ../x.csv\n"))
    assert (file.name, file.folder) == ("mood", tmp_path / "data")
    assert file.test == tmp_path / "../x.csv"
    assert file.train is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x", "'kind' is required"),
        ("kind: sc\ntrian: x", "unknown key 'trian'.*did you mean 'train'"),
        ("kind: sc\nmetric: f1", "no metric 'f1' for kind 'sc'"),
        ("kind: sc\ncolumns: {tokens: x}", "columns.tokens: a task of kind sc has no such column"),
        ("kind: ir\ncolumns: {text: x}", "columns.text: a task of kind ir has no such column"),
        ("kind: sc\ncolumns: {text: [x, x]}", "a pair needs two different columns"),
        ("kind: qa\nlabels: [a, b]", "'labels' is for tasks of kind sc or ml or tc, not qa"),
        ("kind: sc\nlabels: [true, false]", "labels.0"),
        ("kind: sc\ntokens: characters", "'tokens' is for tasks of kind qa, not sc"),
        ("kind: qa\ntokens: letters", "tokens: "),
        ("kind: qa\ncorpus: x", "'corpus' is for tasks of kind ir or zs, not qa"),
        ("kind: qa\ntemplate: '{text}'", "'template' is for tasks of kind sc or ml or sr, not qa"),
        ("kind: sc\ntest: x\ntest_fraction: 0.1", "give 'test' or 'test_fraction', not both"),
        ("kind: sc\ntest_fraction: 1.0", "test_fraction"),
        ("kind: sc\nvalidation_fraction: 0.5\ntest_fraction: 0.5", "leave nothing to train on"),
        ("kind: zs\nvalidation_fraction: 0.5", "'validation_fraction': the task has no training"),
        ("kind: zs\ntrain: x", "'train': the task has no training split of its own"),
        ("kind: ir\ntrained_on: y\nlimits: {train: 5}", "'limits.train': the task has no training"),
        ("kind: sc\nlimits: {dev: 5}", "limits.dev"),
        ("kind: sc\nlimits: {test: 0}", "limits.test"),
        ("kind: sc\nprotocol: {max_step: 5}", "protocol: unknown key 'max_step'.*'max_steps'"),
    ],
)
def test_settings_that_cannot_be_used(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_task_file(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_the_examples_and_the_table_of_the_manual(tmp_path):
    text = (Path(__file__).parents[4] / "docs" / "tasks.md").read_text(encoding="utf-8")
    examples = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    kinds = [load_task_file(write(tmp_path, example)).kind for example in examples]
    assert kinds == ["sc", "ir", "sc"]
    table = text.partition("| Key | Meaning |")[2].partition("\n\n")[0]
    named = {
        key for row in re.findall(r"^\| (.*?) \|", table, re.MULTILINE) for key in row.split(", ")
    }
    assert {key.strip("`") for key in named} - {"---"} == set(TaskFile.model_fields)
