"""The rules of kinds of tasks: ours keep them, and each is broken by a kind that it refuses."""

import re
from pathlib import Path

import pytest

from biphasic.errors import ConfigError, DataError
from biphasic.testing import KindRules, check_kind, check_named
from custom_tasks import write_csv
from plugin_files import forget_plugins

TUTORIAL = (Path(__file__).parents[3] / "docs/tutorials/new-task-kind.md").read_text("utf-8")
STARS = re.findall(r"%%writefile stars.py\n(.*?)```", TUTORIAL, re.S)[0]
START = """
import itertools
import random
import numpy as np
from dataclasses import replace
from biphasic.facts import metric_facts
from biphasic.tasks.kinds.text import Classification
from biphasic.tasks.kinds.examples import RecordFiles

class Examples(RecordFiles):
    pass

class Learner(Classification.learner):
    pass

class Broken(Classification):
    name = "broken"
    facts = replace(Classification.facts, metrics=(metric_facts("accuracy"),))
    examples = Examples(Classification.examples.record)
    learner = Learner
"""
BROKEN = {
    "parse": """
def inputs(self, task, split):
    yield from [*Classification.examples.inputs(task, split)][1:]
Examples.inputs = inputs
""",
    "encode": """
def encode(self, task):
    Classification.learner.encode(self, task)
    self.num_outputs += next(drawn)
Learner.encode = encode
drawn = iter(range(99))
""",
    "loss": """
Learner.mean_loss = lambda self, outputs, expected: outputs.mean(dim=0)
""",
    "scores": """
    facts = replace(Classification.facts, metrics=(metric_facts("f1"),))
""",
    "pure": """
def evaluate(self, encoder, head):
    scores = Classification.learner.evaluate(self, encoder, head)
    return {name: replace(one, scores=one.scores + random.random()) for name, one in scores.items()}
Learner.evaluate = evaluate
""",
    "batches": """
def evaluate(self, encoder, head):
    scores = Classification.learner.evaluate(self, encoder, head)
    sizes = [len(indices) for indices, *_ in encoder.batches(self.sequences["test"])]
    return {name: replace(one, scores=one.scores + sizes[0]) for name, one in scores.items()}
Learner.evaluate = evaluate
""",
}


@pytest.fixture
def texts(tmp_path):
    forget_plugins()
    folder = tmp_path / "texts"
    folder.mkdir()
    for split, number in (("train", 12), ("dev", 6), ("test", 10)):
        rows = [[f"the {pet} sat on mat {n} of {split}", stars] for n in range(number // 2)
                for stars, pet in enumerate(("cat", "dog"), 1)]  # fmt: skip
        write_csv(folder / f"{split}.csv", ["text", "label"], rows)
    yield folder
    forget_plugins()


@pytest.mark.parametrize("kind", ["sc", "ml"])
def test_ours_keep_the_rules(texts, kind):
    check_kind(kind, texts)


def test_the_tutorial_s_kind_keeps_the_rules(texts, tmp_path, cli):
    path = tmp_path / "stars.py"
    path.write_text(STARS)
    [line] = check_named(str(path), {}, texts)
    assert re.fullmatch(r"stars\.py:_?\w+ \([0-9a-f]{12}\): keeps all 6 rules of task_kinds", line)
    assert cli("plugin", "check", f"{path}:Stars", "--task", texts)[:2] == (0, f"{line}\n")
    code, _, error = cli("plugin", "check", path)
    assert (code, "a kind of task is checked with --task FOLDER" in error) == (2, True)


def test_a_row_that_a_record_refuses_is_named(texts, tmp_path):
    path = tmp_path / "stars.py"
    path.write_text(STARS)
    write_csv(texts / "test.csv", ["text", "label"], [["the food", 7]])
    with pytest.raises(DataError, match=r"test\.csv:2: 'stars': Input .* less than or equal to 5"):
        list(check_named(str(path), {}, texts))


@pytest.mark.parametrize("rule", sorted(BROKEN))
def test_a_kind_that_breaks_a_rule_is_refused_by_its_name(texts, tmp_path, rule):
    path = tmp_path / "broken.py"
    path.write_text(START + BROKEN[rule])
    with pytest.raises(ConfigError, match=f"breaks the rule '{rule}'"):
        list(check_named(f"{path}:Broken", {}, texts))


def test_every_rule_has_a_kind_that_breaks_it():
    assert {*BROKEN} == {*KindRules.names()}
