"""Bad input: one clear line, exit code 2, and nothing done."""

import pytest

from biphasic.study.settings.load import load_study
from biphasic.study.study import Study
from mini_study import write_study


def one_line(err):
    [line] = [line for line in err.splitlines() if line.startswith("error: ")]
    assert err.splitlines()[-1] == line
    return line


WRONG = [
    ({"corpus": {"sources": ["no-such-file.txt"]}}, ["no-such-file.txt"]),
    ({"corpus": {"folder": "nowhere"}}, ["nowhere"]),
    ({"tasks": [{"name": "own", "source": "sc:no-such-folder"}]}, ["no-such-folder"]),
    ({"corpus": {"libraries": ["filelock"], "vocab_size": 300}}, ["documentation", "no"]),
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
