"""Bad input: one clear line, exit code 2, and nothing done."""

import shutil

import pytest

from biphasic.study.settings.load import load_study
from biphasic.study.study import Study
from mini_study import write_study


def one_line(err):
    [line] = [line for line in err.splitlines() if line.startswith("error: ")]
    assert err.splitlines()[-1] == line
    return line


WRONG = [
    ({"heldout_evry": 3}, ["heldout_evry", "did you mean 'heldout_every'?"]),
    ({"corpus": {"sources": ["no-such-file.txt"]}}, ["no-such-file.txt"]),
    ({"corpus": {"folder": "nowhere"}}, ["nowhere"]),
    ({"tasks": [{"name": "own", "source": "sc:no-such-folder"}]}, ["no-such-folder"]),
    ({"tasks": [{"name": "own"}]}, ["'own'", "give a source"]),
    ({"corpus": {"libraries": []}}, ["corpus.libraries", "at least 1"]),
    ({"corpus": {"libraries": ["filelock"], "vocab_size": 300}}, ["documentation", "no"]),
    ({"arms": []}, ["arms"]),
]


@pytest.mark.parametrize(("changes", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_study_file_is_refused_with_a_hint(tmp_path, cli, changes, words):
    study = write_study(tmp_path, **changes)
    code, out, err = cli("study", "run", study, "--root", tmp_path / "root")
    assert (code, out) == (2, "")
    line = one_line(err)
    for word in words:
        assert word in line
    assert not (tmp_path / "root/store/states").exists()


def test_a_wrong_setting_is_refused_before_data_are_built(tmp_path, cli):
    study = write_study(tmp_path)
    schedule = "recipe.learning_rate.decay_steps=11"
    code, _, err = cli("study", "run", study, "--root", tmp_path / "root", "--set", schedule)
    assert code == 2
    assert str(study) in one_line(err)
    assert "decay_steps 11" in one_line(err)
    assert not (tmp_path / "root").exists()


@pytest.mark.usefixtures("undrawn")
def test_a_study_that_another_process_runs_is_locked(root, tmp_path, cli):
    file = write_study(tmp_path)
    with Study(load_study(file), root).locked():
        code, _, err = cli("study", "run", file, "--root", root)
    assert code == 2
    assert str(root / "mini") in one_line(err)
    assert "another process" in one_line(err)
    code, _, _ = cli("study", "run", write_study(tmp_path), "--root", root)
    assert code == 0


def test_a_missing_root_is_named(tmp_path, cli):
    nowhere = tmp_path / "nowhere"
    for command in (("clean",), ("status", "mini"), ("verify",)):
        code, out, err = cli("study", *command, "--root", nowhere)
        assert (code, out) == (2, "")
        assert str(nowhere) in one_line(err)
    assert not nowhere.exists()


def test_a_taken_name_of_a_study_is_refused(tmp_path, cli):
    one, other = write_study(tmp_path), tmp_path / "other.yaml"
    shutil.copy(one, other)
    root = tmp_path / "root"
    Study(load_study(one), root, file=one).save()
    code, out, err = cli("study", "run", other, "--root", root, "--set", "title=Other")
    assert (code, out) == (2, "")
    line = one_line(err)
    assert str(one) in line
    assert str(other) in line
    assert not (root / "store/data").exists()
