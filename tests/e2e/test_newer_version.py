"""Files of a newer version are refused by name, and nothing of them is deleted."""

import hashlib
import json
from pathlib import Path

import pytest

from biphasic.study.pins import record_pin
from mini_study import edit_json, write_study

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unrendered", "unprobed")]


def write_newer(path: Path) -> str:
    """Give a file the next number of its format, and its folder's manifest the new hash."""
    name = json.loads(path.read_text()).get("format", "biphasic.new/1").split("/")[0] + "/2"
    edit_json(path, format=name)
    manifest = path.with_name("manifest.json")
    if manifest.is_file() and path != manifest:
        files = json.loads(manifest.read_text())["files"]
        content = path.read_bytes()
        size, sha256 = len(content), hashlib.sha256(content).hexdigest()
        files[path.name] = {**files[path.name], "bytes": size, "sha256": sha256}
        edit_json(manifest, files=files)
    return name


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("mini/study.json", "study report mini"),
        ("store/finetunes/*/result.json", "study report mini"),
        ("store/states/*/state.json", "study report mini"),
        ("store/states/*/manifest.json", "study run STUDY"),
        ("store/finetunes/*/manifest.json", "study run STUDY"),
        ("store/pins/*.json", "study clean"),
        ("store/data/*/train/corpus.json", "study run STUDY"),
        ("store/data/*/built.json", "corpus verify CORPUS"),
    ],
)
def test_a_file_of_a_newer_version_is_refused(root, tmp_path, cli, pattern, command):
    record_pin(root / "store", "0" * 64, made_by="evaluate")
    path = sorted(root.glob(pattern))[0]
    name = write_newer(path)
    words = {"STUDY": write_study(tmp_path), "CORPUS": path.parent}
    place = () if "CORPUS" in command else ("--root", root)
    code, out, err = cli(*(words.get(word, word) for word in command.split()), *place)
    text = " ".join((out + err).split())
    assert code != 0
    assert f"/{path.name}: {name}" in text
    assert "upgrade biphasic" in text
    assert path.is_file()
