from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from biphasic.errors import ConfigError, DataError
from biphasic.store import TASK
from biphasic.tasks.folder import TaskDescription, load_task, write_task_folder
from biphasic.tasks.records import SPLITS, TaskContent
from biphasic.tasks.source import split_source
from custom_tasks import Store, refused, write_beir, write_splits, write_yaml


def test_overlaps_and_the_most_frequent_label_are_kept(store, custom):
    write_splits(
        custom,
        ".csv",
        {"train": "text,label\nA  b,x\nc,y\n", "test": "text,label\na B,y\nd,x\nf,x\n"},
    )
    write_splits(custom, ".csv", "text,label\ne,x\n", "dev")
    task = store.task(f"sc:{custom}")
    assert task.info.overlaps == {"train/test": 1}
    assert store.said == [
        "task mood: examples: train 2, validation 1, test 3",
        "mood: 1 of 3 test examples also occur in train",
    ]


def test_a_task_is_built_once_and_rebuilt_when_a_file_changes(store, custom):
    write_splits(custom, ".csv", "text,label\na,x\nb,y\n")
    first = store.folder_of(f"sc:{custom}")
    TASK.open(first).verify()
    (store.folder / "tasks" / f".partial-{first.name}-1").mkdir()
    said = list(store.said)
    assert store.folder_of(f"sc:{custom}") == first
    assert store.said == said
    write_splits(custom, ".csv", "text,label\na,x\nc,y\n", "test")
    assert store.folder_of(f"sc:{custom}") != first
    assert (
        store.folder_of(write_yaml(custom, "kind: sc\nname: mood\nfolder: .\nseed: 1\n")) != first
    )


def test_leftovers_of_interrupted_writers_go(store, custom):
    write_splits(custom, ".csv", "text,label\na,x\nb,y\n")
    first = store.folder_of(f"sc:{custom}")
    leftover = first.with_name(f".partial-{first.name}-0a1b2c3d")
    leftover.mkdir()
    (first / "manifest.json").unlink()
    assert store.folder_of(f"sc:{custom}") == first
    assert list(first.parent.iterdir()) == [first]


def test_two_writers_at_once(store, custom):
    write_splits(custom, ".csv", "text,label\na,x\nb,y\n")
    folders: list[Path] = []
    threads = [
        threading.Thread(target=lambda: folders.append(store.folder_of(f"sc:{custom}")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 4
    assert len(set(folders)) == 1
    # Only one of them made it.
    assert sum("examples: train" in message for message in store.said) == 1


def write_rows(name, folder, label=0, **settings):
    """Write a task folder of one row in each split."""
    description = TaskDescription(name=name, kind="sc", **settings)
    splits = {split: [{"text": "x", "label": label}] for split in SPLITS}
    write_task_folder(folder, description, TaskContent(splits=splits, labels=["a", "b"]))


def test_task_folders_keep_their_identity(store, custom):
    folder = custom / "canonical"
    write_rows("own", folder, template="T: {text}")
    direct = load_task(folder)
    assert store.task(folder) == store.task(f"sc:{folder}") == direct
    refused(Store(custom / "s"), f"tc:{folder}", "the task is of kind 'sc', not 'tc'")
    refused(Store(custom / "s"), f"zs:{folder}", "the task is of kind 'sc', not 'zs'")
    (folder / "test.jsonl").write_text('{"text": "x", "label": 3}\n')
    refused(Store(custom / "s"), folder, "unknown label 3")


def test_zero_shot_of_a_task_folder_drops_prompts_and_training(store, custom):
    write_beir(custom, "train", "validation", "test")
    settings = {"query_template": "Q: {text}", "protocol": {"retrieval_corpus": "judged"}}
    (custom / "task.json").write_text(json.dumps({"kind": "ir", "name": "n", **settings}))
    assert store.task(custom).queries["q0"] == "Q: t0"
    folder = store.folder_of(f"zs:{custom}")
    task = load_task(folder)
    assert (task.info.name, task.info.kind, task.queries["q0"]) == ("n-zs", "zs", "t0")
    assert not (folder / "qrels" / "train.tsv").exists()
    described = json.loads((folder / "task.json").read_text())
    assert described["protocol"] == {"retrieval_corpus": "judged"}
    (custom / "task.json").write_text(json.dumps({"name": "n"}))
    assert store.task(f"zs:{custom}").info.kind == "zs"


def test_copies_are_in_a_folder(store, custom):
    (custom / "file").touch()
    for copies in (custom / "file", custom / "nowhere"):
        with pytest.raises(DataError, match=f"^{copies}: no such folder"):
            store.folder_of("sst2", copies=copies)


def test_kind_and_path_are_read_as_a_folder_even_under_a_published_name(
    store, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sst2").mkdir()
    write_splits(tmp_path / "sst2", ".csv", "text,label\na,x\nb,y\n")
    assert store.task("sc:sst2").labels == ("x", "y")


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("sc:data/x", ("sc", "data/x")),
        ("sc:data:1/x", ("sc", "data:1/x")),
        ("zs:nq", ("zs", "nq")),
        ("C:/x", (None, "C:/x")),
        ("data:1/x", (None, "data:1/x")),
        ("sc", (None, "sc")),
        ("x/sc:y", (None, "x/sc:y")),
    ],
)
def test_a_kind_is_before_the_first_colon(source, parts):
    assert split_source(source) == parts


def test_paths_may_have_colons(store, tmp_path):
    folder = tmp_path / "data:1" / "mood"
    folder.mkdir(parents=True)
    write_splits(folder, ".csv", "text,label\na,x\nb,y\n")
    assert store.task(f"sc:{folder}").info.name == "mood"


def test_a_task_that_cannot_be_read_never_looks_finished(store, custom):
    write_rows("wrong", custom / "wrong", 7)
    refused(store, custom / "wrong", "unknown label 7")
    assert [*(store.folder / "tasks").glob("[!.]*")] == []


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        (
            "sst3",
            ConfigError,
            r"unknown task 'sst3' \(did you mean 'sst2'\?\); or write KIND:FOLDER",
        ),
        ("xx:mood", ConfigError, "unknown task 'xx:mood'"),
        ("mood", ConfigError, "task 'mood': no kind of task given"),
        ("sc:nowhere", DataError, "task 'sc:nowhere': no such folder"),
        ("sts:nowhere.csv", DataError, "task 'sts:nowhere.csv': no such file or folder"),
        ("sc:sst2", DataError, "for the published dataset, write 'sst2'"),
        ("sc:mood/task.yaml", DataError, "name a task file without the kind"),
        ("sc:mood/all.csv", DataError, "write all.yaml with {kind: sc, train: all.csv, valid"),
        ("mood/all.csv", ConfigError, "write all.yaml with {kind: sc, train: all.csv, valid"),
        ("mood/all [1].csv", ConfigError, r'{kind: sc, train: "all \[1\].csv", valid'),  # in YAML
        ("ir:mood/all.csv", DataError, "task 'ir:mood/all.csv': a file, not a folder"),
        ("nowhere.yaml", ConfigError, "nowhere.yaml: no such file"),
    ],
)
def test_sources_that_are_none(custom, monkeypatch, source, kind, message):
    store = Store(custom / "store")
    monkeypatch.chdir(custom.parent)
    write_yaml(custom, "kind: sc\n")
    for name in ("all.csv", "all [1].csv"):
        (custom / name).write_text("text,label\n")
    refused(store, source, message, kind)


def test_only_published_datasets_have_revisions(store, custom):
    with pytest.raises(ConfigError, match="only published datasets have revisions"):
        store.folder_of(f"sc:{custom}", revision="abc")
    with pytest.raises(ConfigError, match="only published datasets have revisions"):
        store.folder_of("mteb:STSBenchmark", revision="abc")
