"""Files of tasks: those that are read (read.yaml), and those that are refused (refused.yaml)."""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

from biphasic import errors
from biphasic.tasks.folder import load_task
from custom_tasks import QRELS, Store
from refusals import refused
from tiny_use import read_jsonl

ASKED = {"id": "q", "question": "Who?", "answers": [{"text": "Anna", "answer_start": 10}]}
QUESTION = {"question": "Who?", "context": "It was Anna.", "answers": {}}
TEXTS = {
    "corpus.jsonl": [{"_id": "d1", "title": "T", "text": "one"}, {"_id": "d2", "text": "two"}],
    "queries.jsonl": [{"_id": "q1", "text": "which"}],
}
# What is named, and the files that are there before the changes.
GIVEN: dict[str, tuple[str, dict[str, Any]]] = {
    "labelled tables": ("sc:mood", {"*.csv": "text,label\na,x\nb,y\n"}),
    "labelled rows": ("sc:mood", {"*.jsonl": [{"text": t, "label": t} for t in "ab"]}),
    "label sets": ("ml:mood", {"*.jsonl": [{"text": "a", "labels": ["fast", "new"]}]}),
    "numbers": ("sr:mood", {"*.tsv": "text\tvalue\na\t1\nb\t2\n"}),
    "tagged files": ("tc:mood", {"*.conll": "a O\nb B-LOC\n"}),
    "minimal pairs": ("mp:mood", {"test.csv": "sentence_good,sentence_bad\nIt is.,It are.\n"}),
    "scored pairs": ("sts:mood", {}),
    "files of SQuAD": ("qa:mood", {"*.json": [{}]}),
    "files of BEIR": ("ir:mood", {**TEXTS, "qrels/*.tsv": f"{QRELS}q1\td1\t1\n"}),
    "settings": ("", {}),
    "folder of texts": ("mood", {"*.jsonl": [{"text": "a", "label": 1}], "kind": "sc"}),
    "folder of sentences": ("mood", {"*.jsonl": [{"tokens": ["a"], "tags": ["O"]}], "kind": "tc"}),
    "folder of questions": ("mood", {"*.jsonl": [{"answers": {"text": [], "answer_start": []}}],
                                     "kind": "qa"}),
    "folder of values": ("mood", {"*.jsonl": [{"text": "a", "value": 1}], "kind": "sr"}),
    "folder of retrieval": ("mood", {**TEXTS, "qrels/*.tsv": f"{QRELS}q1\td1\t1\n", "kind": "ir"}),
    "other sources": ("", {"all.csv": "", "all [1].csv": "", "task.yaml": "kind: sc\n"}),
}  # fmt: skip
LABELS = {"sc": ["bad", "good"], "tc": ["O", "B-LOC", "I-LOC", "I-PER"]}


def table(name: str) -> Any:
    return yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))


REFUSED = [
    pytest.param(what, *case[:2], (*case, "DataError")[2], id=f"{what}: {case[1]}"[:90])
    for what, cases in table("refused.yaml").items()
    for case in cases
]
READ = {name: case for case in table("read.yaml") for name in case if not case[name]}
assert len(READ) == len(table("read.yaml"))  # each with a name, and its body not below it


def write(folder: Path, name: str, content: Any, kind: str) -> None:
    """Write a file, or one for each split; null removes it."""
    if "*" in name:
        second = "validation" if kind else "dev"
        for split in ("train", second, "test"):
            write(folder, name.replace("*", split), content, kind)
        return
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        path.unlink(missing_ok=True)
    elif isinstance(content, list) and path.suffix == ".json":
        asked = [ASKED | question for question in content]
        paragraph = {"context": "Ein 😀 von Anna.", "qas": asked}
        path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    elif isinstance(content, list):
        rows = [QUESTION | row if kind == "qa" else row for row in content]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_bytes(content.encode())


@pytest.mark.parametrize(("what", "changes", "message", "error"), REFUSED)
def test_files_that_are_refused(tmp_path, monkeypatch, what, changes, message, error):
    source, files = GIVEN[what]
    folder, store = tmp_path / "mood", Store(tmp_path / "store")
    kind = files.get("kind", "")
    folder.mkdir()
    if kind:
        write(folder, "task.json", json.dumps({"name": "t", "kind": kind}), kind)
        if kind in LABELS:
            write(folder, "labels.json", json.dumps(LABELS[kind]), kind)
    for name, content in {**files, **changes}.items():
        if name not in {"kind", "source"}:
            write(folder, name.removeprefix("mood/"), content, kind)
    if "task.yaml" in changes:
        source = "mood/task.yaml"
        error = "ConfigError" if what == "settings" else error
    monkeypatch.chdir(tmp_path)
    source = changes.get("source", source)
    said = refused(getattr(errors, error), message.split(" ... "), store.folder_of, source)
    assert not [*store.folder.glob("tasks/*")]
    assert store.said == []
    if what == "settings":
        assert said.startswith(f"{source}: ")


OF_TASK: dict[str, Callable[[Any], Any]] = {
    "labels": lambda task: [*task.labels],
    "corpus": lambda task: task.corpus,
    "queries": lambda task: task.queries,
    "qrels": lambda task: task.qrels,
    **{name: attrgetter(f"info.{name}") for name in ("name", "metric", "trained_on", "clusters")},
}
OF_EXAMPLE = {"texts": "text", "answers": "answer", "words": "words", "tags": "tags", "ids": "id"}


@pytest.mark.parametrize("name", READ)
def test_files_that_are_read(tmp_path, monkeypatch, name):
    case = READ[name]
    folder, kind, files = tmp_path / "mood", case.get("kind", ""), case["files"]
    if kind:
        write(folder, "task.json", json.dumps({"kind": kind, **case.get("settings", {})}), kind)
    for path, content in files.items():
        write(folder, path, content, kind)
    monkeypatch.chdir(tmp_path)
    source = "mood/task.yaml" if "task.yaml" in files else case.get("source", "mood")
    made = Store(tmp_path / "store").folder_of(source)
    task = load_task(made)
    for what, expected in case["gives"].items():
        if what == "rows":
            found = read_jsonl(made / "test.jsonl")
        elif what == "absent":
            found = expected if not (made / expected).exists() else made / expected
        elif what in OF_TASK:
            found = OF_TASK[what](task)
        else:
            found = [getattr(example, OF_EXAMPLE[what]) for example in task.splits["test"]]
            found = json.loads(json.dumps(found))
        assert found == expected, what
