"""Kinds of tasks from a file or an installed package."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from biphasic import evaluate
from biphasic.errors import ConfigError
from biphasic.export.finetuned import _check_form
from biphasic.tasks.folder import load_task_file
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.source import split_source
from custom_tasks import write_csv
from plugin_files import forget_plugins, page_code
from tiny_use import words, write_model

MOOD = page_code("Mood")


@pytest.fixture
def task(tmp_path):
    """A task file that names the kind in a file beside it."""
    forget_plugins()
    rng, folder = np.random.default_rng(0), tmp_path / "texts"
    folder.mkdir()
    for split, number in (("train", 24), ("dev", 8), ("test", 8)):
        rows = [[" ".join([*words(rng), pet]), pet] for pet in ("cat", "dog") * (number // 2)]
        write_csv(folder / f"{split}.csv", ["text", "label"], rows)
    (tmp_path / "mood.py").write_text(MOOD)
    path = tmp_path / "task.yaml"
    path.write_text("{kind: './mood.py:Mood', folder: texts}")
    yield path
    forget_plugins()


def scored(tmp_path, task):
    torch.set_num_threads(1)
    return evaluate(
        write_model(tmp_path / "eurobert", "eurobert"),
        str(task),
        learning_rates=[1e-3],
        seeds=[0],
        protocol={"max_steps": 2, "batch_size": 8, "max_seqlen": 32},
        root=tmp_path / "root",
        quiet=True,
    )


@pytest.mark.usefixtures("unprobed", "warm")
def test_a_task_file_names_a_kind_in_a_file(task, tmp_path):
    kind = load_task_file(task).kind
    assert kind.startswith("mood.py:Mood@")
    assert KINDS[kind].facts.title == "mood"
    first = scored(tmp_path, task)
    assert (first.metric, first.task.kind) == ("accuracy", kind)
    results = [*(tmp_path / "root/store/finetunes").glob("*/result.json")]
    # A kind of its own declares its floors: it has none of classification.
    assert (len(results), first.baselines) == (1, {})
    assert {json.loads(one.read_text())["about"]["title"] for one in results} == {"mood"}
    assert len([*(tmp_path / "root/store/plugins").glob("*/mood.py")]) == 1
    # Comments are no code; other code gives other results.
    (tmp_path / "mood.py").write_text(MOOD + "\n# the end\n")
    assert scored(tmp_path, task).results[0].id == first.results[0].id
    (tmp_path / "mood.py").write_text(MOOD + "    trained_unit = 'texts'\n")
    assert scored(tmp_path, task).results[0].id != first.results[0].id


@pytest.mark.usefixtures("unprobed", "warm")
def test_scores_that_break_a_rule_are_refused(task, tmp_path):
    (tmp_path / "mood.py").write_text(MOOD.replace('"accuracy"', '"kindness"'))
    with pytest.raises(ConfigError, match=r"mood: breaks the rule 'scores': .*'kindness'"):
        scored(tmp_path, task)


def test_what_is_no_kind_is_refused(task, tmp_path):
    (tmp_path / "mood.py").write_text(MOOD.replace("(Classification)", ""))
    with pytest.raises(ConfigError, match=r"mood\.py: Mood .* not inherit from TaskKind"):
        load_task_file(task)
    task.write_text("{kind: moods, folder: texts}")
    with pytest.raises(ConfigError, match="unknown value 'moods'"):
        load_task_file(task)
    (tmp_path / "mood.py").write_text(MOOD.replace("Mood(", "Sc("))
    task.write_text("{kind: ./mood.py:Sc, folder: texts}")
    with pytest.raises(ConfigError, match=r"mood\.py: Sc has the name of our own 'sc'"):
        load_task_file(task)


def test_a_kind_names_the_class_that_loads_its_head(task, tmp_path):
    kind = load_task_file(task).kind
    assert KINDS[kind].facts.form == "sequence-classification"
    planned: Any = SimpleNamespace(info=SimpleNamespace(kind=kind))
    _check_form(planned)
    code = MOOD.replace('title="mood"', 'title="mood", form=None, is_pooled=False')
    (tmp_path / "mood.py").write_text(code)
    planned.info.kind = load_task_file(task).kind
    with pytest.raises(ConfigError, match=r"mood: facts\.form is None; set the class"):
        _check_form(planned)


def test_an_installed_kind_is_loaded_by_name(tmp_path, monkeypatch):
    package, info = tmp_path / "moods", tmp_path / "moods-2.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text(MOOD)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moods\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[biphasic.task_kinds]\nmood = moods:Mood\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "task.yaml"
    path.write_text("{kind: mood, folder: texts}")
    kind = load_task_file(path).kind
    assert kind == f"mood@{KINDS['mood'].plugin.code}"
    assert KINDS[kind].plugin.origin == "moods 2.0"
    assert "mood" not in [*KINDS]
    assert split_source("mood:texts") == (kind, "texts")
    assert split_source("moods:texts") == (None, "moods:texts")
