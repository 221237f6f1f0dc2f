"""Two people run two studies that share states, in one store, at once."""

import re
from collections import Counter

import pytest

from mini_study import STUDY, copy_root, start_command, write_study

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm", "unrendered", "unprobed")]

FIRST = ("untrained", "mlm", "clm", "clm-25-mlm-75")
SECOND = ("clm-50-mlm-50", "clm", "mlm", "untrained")
TASKS = {"pydocs-sc", "first-word"}


def started(folder, root, name, arms):
    folder.mkdir()
    study = write_study(
        folder,
        name=name,
        arms=[arm for arm in STUDY["arms"] if arm["name"] in arms],
        tasks=[task for task in STUDY["tasks"] if task["name"] in TASKS],
    )
    return start_command("study", "run", study, "--root", root, "--workers", "1")


def test_no_job_is_done_twice_and_nothing_is_damaged(finished, tmp_path):
    root = copy_root(finished, tmp_path / "root", data_only=True)
    with (
        started(tmp_path / "a", root, "first", FIRST) as one,
        started(tmp_path / "b", root, "second", SECOND) as other,
    ):
        said = [each.communicate(timeout=600)[1] for each in (one, other)]
    assert [one.returncode, other.returncode] == [0, 0], said
    done = [Counter(re.findall(r"^\[\d+/\d+\] done: (.*)$", text, re.MULTILINE)) for text in said]
    both = done[0] + done[1]
    assert set(both.values()) == {1}, both
    # All states and all fine-tunings of both; shared ones once: 5 arms, 3 steps of CLM shared by
    # one, 6 by another.
    assert sum(name.endswith(tuple(f" on {task}" for task in TASKS)) for name in both) == 5 * 2
    assert done[0], "the first did nothing"
    assert done[1], "the second did nothing"
    theirs = finished / "root/store/states"
    for folder in (root / "store/states").iterdir():
        for part in ("model.safetensors", "optimizer.safetensors"):
            known = theirs / folder.name / part
            if known.is_file():
                assert (folder / part).read_bytes() == known.read_bytes()
    assert not list((root / "store").rglob(".partial-*"))
