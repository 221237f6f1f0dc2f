from __future__ import annotations

import json

import pytest

from biphasic.errors import DataError
from biphasic.store import TASK
from biphasic.tasks.folder import TaskDescription, load_task, read_description, write_task_folder
from biphasic.tasks.records import SPLITS, TaskContent

ROW = {"id": "a", "text": "é\u2028", "label": 1}


def test_writes_what_load_task_reads(tmp_path):
    description = TaskDescription(
        name="mood", kind="sc", template="It is {text}", license="CC0", origin={"from": "here"}
    )
    folder = tmp_path / "t"
    splits = {split: (row for row in [ROW]) for split in SPLITS}
    write_task_folder(folder, description, TaskContent(splits=splits, labels=["bad", "good"]))
    TASK.open(folder).verify()
    task = load_task(folder)
    assert task.splits["test"][0].text == "It is é\u2028"
    assert (task.info.name, task.info.title, task.info.metric) == ("mood", "mood", "accuracy")
    assert read_description(folder) == description


def test_a_folder_that_lacks_a_file_never_looks_finished(tmp_path):
    description = TaskDescription(name="t", kind="sc")
    content = TaskContent(splits={"train": [ROW], "validation": [ROW]}, labels=["a"])
    with pytest.raises(DataError, match=r"test\.jsonl: no such file; .* 'sc'"):
        write_task_folder(tmp_path / "t", description, content)
    assert list(tmp_path.iterdir()) == []


def test_what_was_not_set_is_not_written(tmp_path):
    description = TaskDescription(name="t", kind="sr", title="T", metric="pearson")
    splits = {split: [{"text": "x", "value": 1}] for split in SPLITS}
    write_task_folder(tmp_path / "t", description, TaskContent(splits=splits))
    written = json.loads((tmp_path / "t" / "task.json").read_text())
    assert written == {"name": "t", "kind": "sr", "title": "T", "metric": "pearson"}


def test_the_name_overrides_the_folder_s(tmp_path):
    folder = tmp_path / "mood"
    folder.mkdir()
    assert read_description(folder, kind="sc").name == "mood"
    (folder / "task.json").write_text('{"kind": "sc", "name": "other"}')
    assert (read_description(folder).name, read_description(folder).title) == ("other", "other")
    with pytest.raises(DataError, match="none: no such task folder"):
        read_description(tmp_path / "none")
    (folder / "task.json").write_text("[]")
    with pytest.raises(DataError, match=r"task\.json: expected a JSON object"):
        read_description(folder)
